"""Fixtures of all tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.pool import RankPool


@pytest.fixture(scope="session")
def ranks() -> Iterator[RankPool]:
    """Warm rank processes: ``ranks(4).run("tests.deliver.cases:fn", timeout_s=60, **kwargs)``."""
    pool = RankPool()
    yield pool
    pool.close()
