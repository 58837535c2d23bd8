"""D13, D14, D18: a collective that one rank skips or makes with other tensors, and the order of time-outs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import paceline as pl
from paceline.launch.local import run_ranks
from paceline.ledger.outcome import Exit, Failed, PacelineError
from tests.drills.small import fired, plant, train, write_tiny

CASES = "tests.launch.cases"


@pytest.mark.drill(13)
def test_a_collective_that_one_rank_skips_is_named_with_its_number_and_the_rank(tmp_path: Path) -> None:
    """The last of ten: the rank has returned, and its peers wait for it."""
    payload = {"steps": 10, "at": 9, "rank": 1, "how": "skip"}
    with pytest.raises(PacelineError) as caught:
        run_ranks(f"{CASES}:collectives", payload, world_size=3, logs=tmp_path, hang_timeout_s=2.0)
    error = caught.value
    assert error.exit_code == Exit.DISAGREE
    assert error.message == "rank 1 has ended, and others wait for it in all_reduce #9 on world (0-2), step 9"


@pytest.mark.drill(14)
@pytest.mark.xfail(
    strict=True,
    reason="a rank that is one equal-sized collective behind meets its peers' next one: sums of two steps are used",
)
def test_a_rank_that_is_one_collective_behind_is_found_before_a_sum_of_two_steps_is_used(
    tmp_path: Path,
) -> None:
    payload = {"steps": 10, "at": 3, "rank": 1, "how": "skip"}
    with pytest.raises(PacelineError, match="#3"):
        run_ranks(f"{CASES}:collectives", payload, world_size=3, logs=tmp_path, hang_timeout_s=2.0)


@pytest.mark.drill(14)
@pytest.mark.parametrize("larger", [0, 1])
@pytest.mark.parametrize("op", ["all_reduce", "order"])
def test_ranks_that_disagree_about_a_collective_end_before_its_result_is_used(
    larger: int, op: str, tmp_path: Path
) -> None:
    with pytest.raises(Failed) as caught:
        run_ranks(
            f"{CASES}:disagreeing", {"larger": larger, "op": op}, world_size=2, logs=tmp_path,
            timeout_s=2.0, hang_timeout_s=4.0,
        )  # fmt: skip
    told = caught.value.message + caught.value.seen
    if op == "order":  # nobody's tensors meet: each waits, and both calls are named when the time is up
        assert caught.value.exit_code == Exit.HUNG
        assert "all_reduce #0" in told
        assert "all_gather #0" in told
    else:
        assert caught.value.exit_code == Exit.DISAGREE
        assert "ranks disagree in" in told
    assert not list(tmp_path.glob("used-*"))


@pytest.mark.slow_drill
@pytest.mark.drill(14)
def test_a_rank_of_a_run_that_leaves_out_a_reduction_does_not_train_on(tmp_path: Path, cache: str) -> None:
    job = write_tiny(tmp_path, restart__hang_timeout='"4s"', restart__max="0")
    plant(job, "skip", step=7)
    with pytest.raises(PacelineError) as caught:
        train(job, "skipped")
    assert fired(job)
    assert caught.value.exit_code in (Exit.DISAGREE, Exit.HUNG)


@pytest.mark.drill(18)
@pytest.mark.parametrize("hang_timeout", ["1s", "60s", "1h"])
def test_the_inner_time_out_is_always_the_shorter_one(
    hang_timeout: str, tmp_path: Path, cache: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is one key; what ranks wait for each other follows from it, so no job can have the order wrong."""
    given: list[dict[str, Any]] = []

    def caught(*_: Any, **settings: Any) -> list[dict[str, Any]]:
        given.append(settings)
        raise Failed("enough", exit_code=Exit.FAULT)

    monkeypatch.setattr("paceline.api.attempts.run_ranks", caught)
    with pytest.raises(Failed, match="enough"):
        pl.train(write_tiny(tmp_path, restart__hang_timeout=f'"{hang_timeout}"'), layout="dp=2")
    (settings,) = given
    assert 0 < settings["timeout_s"] < settings["hang_timeout_s"]


@pytest.mark.drill(18)
@pytest.mark.parametrize("value", ['"0s"', '"-5s"'])
def test_a_limit_that_no_time_out_fits_into_is_refused_with_its_rule(value: str, tmp_path: Path) -> None:
    with pytest.raises(PacelineError) as caught:
        pl.train(write_tiny(tmp_path, restart__hang_timeout=value), layout="dp=2")
    assert caught.value.exit_code == Exit.USAGE
    assert caught.value.key == "restart.hang_timeout"
    assert caught.value.rule
    assert not (tmp_path / "runs").exists()
