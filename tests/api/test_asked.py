"""What a proof is asked, refused before anything starts, with a repair that is this proof and no other."""

from __future__ import annotations

from pathlib import Path

import pytest

import paceline as pl
from paceline.api.asked import asked_layout, refuse_options
from paceline.api.prove import _flags
from paceline.ledger.outcome import Exit, Refused

JOB = {"model": {"preset": "tiny"}, "train": {"steps": 20, "global_batch_size": 8}}


def job(batch: int = 8) -> pl.Job:
    return pl.Job(**JOB).replace({"train.global_batch_size": batch, "data.sequence_length": 32})


def test_a_layout_that_no_micro_batch_makes_possible_is_refused_with_one_that_runs() -> None:
    with pytest.raises(Refused) as caught:
        asked_layout(job(3), "pp=4")
    assert caught.value.exit_code == Exit.RULE
    repaired = caught.value.use.removeprefix("--layout ")
    assert asked_layout(job(3), repaired).pp == 4
    assert asked_layout(job(9), "pp=2:interleaved").mbs is None


def test_an_empty_layout_is_no_wish_for_the_default() -> None:
    with pytest.raises(Refused) as caught:
        asked_layout(job(), "")
    assert caught.value.use == "--layout single"


def test_a_model_that_fits_nowhere_here_is_proven_on_a_layout_given() -> None:
    large = job().replace({"model.preset": "llama-3.1-405b"})
    with pytest.raises(Refused) as caught:
        asked_layout(large, "auto")
    assert caught.value.exit_code == Exit.MEMORY
    assert asked_layout(large, caught.value.use.removeprefix("--layout ")).fsdp == 2


@pytest.mark.parametrize("steps", [2, 101, 10**9])
def test_steps_have_a_least_and_a_most(steps: int) -> None:
    with pytest.raises(Refused) as caught:
        refuse_options(steps, "auto", "both")
    assert caught.value.use == "--steps 3"


def test_a_repair_says_again_what_was_asked() -> None:
    flags = _flags("fsdp=2,tp=2", 5, "off", "fp64", [("run.name", "two words")])
    assert flags == " --layout fsdp=2,tp=2 --steps 5 --shrink off --leg fp64 --set 'run.name=two words'"
    assert _flags("auto", 3, "auto", "both", ()) == ""


@pytest.mark.parametrize(
    ("layout", "batch"),
    [("pp=2:interleaved", "9"), ("dp=2,pp=2:interleaved,mbs=1", "23"), ("pp=2:dualpipev", "11")],
)
def test_batches_that_do_not_divide_are_proven_in_small(layout: str, batch: str, tmp_path: Path) -> None:
    """Each was refused once: the proof's own micro-batch, or its batch in small, was none that the schedule takes."""
    (tmp_path / "input.txt").write_text("to be or not to be, that is the question\n" * 400)
    asked = job(int(batch)).replace(
        {
            "data.train": str(tmp_path / "input.txt"),
            "data.tokenizer": "bytes",
            "run.root": str(tmp_path / "runs"),
        }
    )
    proof = pl.prove(asked, layout, leg="fp64")
    assert proof.proven
