"""Whole runs of tests share one cache: prepared data, and a made-up measurement so that nobody measures for 20 s."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from paceline.api import surroundings
from tests.api.measured import plant


@pytest.fixture(scope="session", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("cache")
    plant(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PACELINE_CACHE", str(folder))
        surroundings.environment.cache_clear()  # it is read once in a process
        yield str(folder)
    surroundings.environment.cache_clear()
