"""Every second has one account (issue, point 4): spans sum to wall time, and planted sleeps come back where they were.

The sleeps are 0.4 s (1.2 s for the late rank and the checkpoint) in a run of two ranks; what an unplanted step costs
in the same account is taken off.
"""

from __future__ import annotations

import statistics

import pytest

import paceline as pl
from paceline.ledger.accounts import RankAccounts, accounts, read_ranks, split_waits, step_accounts
from paceline.ledger.lines import RankLedger
from tests.flow.corpus import JOB, write_job
from tests.flow.planted import CHECKPOINT_STEP, CLEAN, LATE_S, PLANTED, SLEEP_S, STEPS

TOLERANCE = 0.10
JOB_OF_SLEEPS = (
    JOB.replace("train.steps = 12", f"train.steps = {STEPS}")
    .replace("checkpoint.every = 4", f"checkpoint.every = {CHECKPOINT_STEP}")
    .replace('eval.every = "50%"', 'eval.every = "never"')
)
EXPECTED = {
    "data": ("idle", "data"),
    "forward": ("compute", "forward"),
    "collective": ("deliver", "step/all_reduce"),
    "optimizer": ("update", "optimizer"),
}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> pl.Run:
    folder = tmp_path_factory.mktemp("accounts")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("paceline.api.attempts.ENTRY", "tests.flow.planted:run")
        return pl.train(write_job(folder, JOB_OF_SLEEPS), layout="dp=2", name="planted")


@pytest.fixture(scope="module")
def ledgers(run: pl.Run) -> tuple[RankLedger, ...]:
    return split_waits(read_ranks(run.folder)).ranks


def extra_s(ledger: RankLedger, account: tuple[str, str], steps: tuple[int, ...]) -> float:
    """What the account has in ``steps`` above a clean step: the least of them, so that a busy machine adds nothing."""
    by_step = step_accounts(ledger)
    clean = statistics.median(by_step[step].get(account, 0.0) for step in CLEAN)
    return min(by_step[step].get(account, 0.0) for step in steps) - clean


@pytest.mark.parametrize("kind", list(EXPECTED))
def test_a_planted_sleep_comes_back_under_its_account(ledgers: tuple[RankLedger, ...], kind: str) -> None:
    for ledger in ledgers:
        found = extra_s(ledger, EXPECTED[kind], PLANTED[kind])
        assert found == pytest.approx(SLEEP_S, rel=TOLERANCE), f"rank {ledger.rank}"


@pytest.mark.drill(11)
def test_a_late_rank_is_idle_time_of_the_others_and_work_of_its_own(ledgers: tuple[RankLedger, ...]) -> None:
    waited = extra_s(ledgers[0], ("idle", "peer"), PLANTED["late"])
    worked = extra_s(ledgers[1], ("compute", "forward"), PLANTED["late"])
    assert waited == pytest.approx(LATE_S, rel=TOLERANCE)
    assert worked == pytest.approx(LATE_S, rel=TOLERANCE)


def test_the_late_rank_is_named(run: pl.Run) -> None:
    assert split_waits(read_ranks(run.folder)).latest_rank == 1


def test_a_slow_checkpoint_comes_back_under_recover(ledgers: tuple[RankLedger, ...]) -> None:
    for ledger in ledgers:
        saves = [line.ticks().get(("recover", "checkpoint"), 0) / 1e7 for line in ledger.lines]
        planted, last, _end = [s for s in saves if s > 0]  # the last waits for the writer to leave
        assert planted == pytest.approx(LATE_S, rel=TOLERANCE)
        assert last < LATE_S, "it waits until it is written, after the one under way"


def test_spans_sum_to_wall_time_and_little_is_unattributed(run: pl.Run) -> None:
    found: dict[int, RankAccounts] = accounts(run.folder)
    assert sorted(found) == [0, 1]
    for rank in found.values():
        assert sum(rank.seconds.values()) + rank.unattributed_s == pytest.approx(rank.wall_s, abs=1e-6)
        assert rank.unattributed_s <= 0.01 * rank.wall_s, f"{rank.unattributed_s / rank.wall_s:.2%}"
