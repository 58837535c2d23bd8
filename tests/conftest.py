"""Fixtures of all tests."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

# Ranks share the cores, and so do tests and the ranks they start: with a second thread each, tiny operators wait for a
# core twenty times as long as they compute. torch reads this when it is first imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")

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
