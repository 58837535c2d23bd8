"""Processes that are stopped for a look stand still when the call returns, and go on."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from paceline.launch.freeze import freeze, has_ended, thaw

Counting = tuple[subprocess.Popen[bytes], Path]

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


@pytest.fixture
def counting(tmp_path: Path) -> Iterator[Counting]:
    """A process that counts in a file as fast as it can."""
    file = tmp_path / "count"
    code = (
        f"n = 0\nf = open({str(file)!r}, 'w')\nwhile True:\n n += 1\n f.seek(0); f.write(str(n)); f.flush()"
    )
    process = subprocess.Popen([sys.executable, "-c", code])
    while not (file.exists() and file.read_text()):
        time.sleep(0.005)
    yield process, file
    process.kill()
    process.wait()


def test_it_stands_still_and_goes_on(counting: Counting) -> None:
    process, file = counting
    freeze([process.pid])
    at = file.read_text()
    time.sleep(0.1)
    assert file.read_text() == at
    thaw([process.pid])
    until = time.monotonic() + 5
    while file.read_text() == at:
        assert time.monotonic() < until


def test_one_that_has_ended_is_not_waited_for(counting: Counting) -> None:
    process, _ = counting
    assert not has_ended(process.pid)
    process.kill()
    began = time.monotonic()
    freeze([process.pid])
    assert time.monotonic() - began < 0.9
    assert has_ended(process.pid)
    process.wait()
    assert has_ended(process.pid)
    freeze([process.pid])
    thaw([process.pid])
