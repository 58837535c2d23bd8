"""D41: a bit that flips on one replica is found within K steps, and the rank is named."""

from __future__ import annotations

from pathlib import Path

import pytest

import paceline as pl
from paceline.ledger.outcome import Exit, Failed
from tests.drills.small import assert_same_bits, events, fired, plant, train, write_tiny

EVERY = {"restart.compare_replicas": 3}


@pytest.mark.drill(41)
@pytest.mark.parametrize(
    ("layout", "rank", "named"),
    [
        ("dp=3", 1, "rank 1 differs in"),
        ("dp=3,fsdp=2", 4, "rank 4 differs in"),
        ("dp=2", 1, "ranks 0, 1 hold different values of"),
        ("tp=2", 0, ""),
    ],
)
def test_a_bit_that_flips_on_one_replica_is_found_and_the_rank_named(
    layout: str, rank: int, named: str, tmp_path: Path, cache: str
) -> None:
    job = write_tiny(tmp_path, train__global_batch_size="12")
    plant(job, "flip", step=11, rank=rank)
    if not named:  # the weight is cut: nobody else has it, and nothing can be compared
        assert train(job, "flipped", layout, set=EVERY).state == "done"
        assert fired(job)
        return
    with pytest.raises(Failed) as caught:
        train(job, "flipped", layout, set=EVERY)
    assert fired(job)
    assert caught.value.exit_code == Exit.CONTROL
    assert caught.value.message == "replicas differ after step 12"
    assert named in caught.value.seen
    assert "q_proj.weight" in caught.value.seen
    assert "step 10 are saved, and were equal" in caught.value.allowed
    run = tmp_path / "runs" / "flipped"
    assert [row["step"] for row in events(run, "control")] == [12]
    assert (run / "checkpoints" / "latest").read_text().startswith("step-00000010")


@pytest.mark.drill(41)
def test_going_back_from_a_flipped_bit_gives_the_bits_of_the_straight_run(tmp_path: Path, cache: str) -> None:
    """The flip comes before a save: what replicas do not agree about is never saved."""
    job = write_tiny(tmp_path)
    straight = pl.train(job, layout="dp=2", name="straight")
    plant(job, "flip", step=14)
    rule = {"control.replicas.action": "rollback", "control.replicas.owner": "me"}
    run = train(job, "back", set=rule)
    assert fired(job)
    assert run.state == "done"
    (restart,) = events(run, "restart")
    assert (restart["step"], restart["detail"]["left out"]) == (10, "nothing")
    assert_same_bits(run, straight)


def test_no_rule_fires_in_a_healthy_run_of_any_layout(tmp_path: Path, cache: str) -> None:
    job = write_tiny(tmp_path, train__steps="6")
    for layout in ("dp=2,tp=2", "dp=2,fsdp=2", "fsdp=2,pp=2", "dp=2,cp=2", "fsdp=2:zero1", "pp=2:zbv"):
        run = pl.train(
            job, layout=layout, name=layout.replace("=", "").replace(",", "-").replace(":", "-"), set=EVERY
        )
        assert run.state == "done"
        assert events(run, "control") == [], layout
