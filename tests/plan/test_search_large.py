"""The largest question of the examples: tens of millions of layouts in seconds. The real figures are those of
``benchmarks/plan_search.py`` on a quiet machine; here only what no load can excuse."""

from __future__ import annotations

import resource
import subprocess
import sys

from tests.cli.shell import ROOT, environment

CPU_S, GIB = 60.0, 1.0  # measured, quiet: 8.5 s and 0.13 GiB


def test_10_240_devices_are_searched_in_seconds() -> None:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [sys.executable, "benchmarks/plan_search.py"], cwd=ROOT, env=environment(), capture_output=True,
        text=True, timeout=900, check=False,
    )  # fmt: skip
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "32 715 642 layouts divide" in done.stdout
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < CPU_S
    assert float(done.stdout.rsplit(" GiB at most", 1)[0].rsplit(" ", 1)[1]) < GIB
