"""The largest question of the examples: tens of millions of layouts in seconds. The real figures are those of
``benchmarks/plan_search.py`` on a quiet machine; here only what no load can excuse."""

from __future__ import annotations

import resource
import subprocess
import sys

import pytest

from paceline.ledger.outcome import Refused
from paceline.plan.cost.sheaf import Sheaf
from paceline.plan.sift import _Sieve
from tests.cli.shell import ROOT, environment
from tests.plan.answers import LLAMA, ask, job

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


def test_a_deadline_that_nothing_meets_is_told_without_pricing_everything(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The nearest is the one that pricing all of them finds."""
    asked = job(LLAMA, layout__deadline="1min")
    scored: list[int] = []
    price = _Sieve._score

    def counted(self: _Sieve, sheaf: Sheaf) -> None:
        scored.append(len(sheaf))
        price(self, sheaf)

    monkeypatch.setattr(_Sieve, "_score", counted)
    told, sums = [], []
    for tighten in (_Sieve._tighten, lambda *_: None):
        monkeypatch.setattr(_Sieve, "_tighten", tighten)
        scored.clear()
        with pytest.raises(Refused) as caught:
            ask(asked, "4x8xH100-SXM-80GB")
        told.append((caught.value.seen, caught.value.use))
        sums.append(sum(scored))
    assert told[0] == told[1]
    assert sums[0] < sums[1] / 3
