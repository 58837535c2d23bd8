"""Drills share the cache of whole runs; each starts processes, so each has a hard limit."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.flow.conftest import cache as cache
from tests.hard_limit import hard_limit


@pytest.fixture(autouse=True)
def limited() -> Iterator[None]:
    with hard_limit(120):
        yield
