"""Fixtures of all tests."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from tests.pool import RankPool


@pytest.fixture(scope="session")
def ranks() -> Iterator[RankPool]:
    """Warm rank processes: ``ranks(4).run("tests.deliver.cases:fn", timeout_s=60, **kwargs)``."""
    pool = RankPool()
    yield pool
    pool.close()


def pytest_sessionstart(session: pytest.Session) -> None:
    """A shell that starts us in the background has Ctrl-C ignored, and what we start inherits that: tests that
    interrupt a command would wait for ever."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
