"""A rehearsed schedule against the closed form, where the closed form is exact, and against arithmetic by hand."""

from __future__ import annotations

import pytest

from paceline.plan.cluster import parse_cluster
from paceline.plan.decide import price
from paceline.plan.layout import Layout
from paceline.plan.rehearse import Rehearsal, idle_s, stage_seconds
from paceline.plan.search import question_of
from paceline.plan.weigh import Question
from tests.plan.answers import LLAMA, job


@pytest.fixture(scope="module")
def question() -> Question:
    return question_of(job(LLAMA), parse_cluster("2x8xH100-SXM-80GB"), None, None, None)


@pytest.mark.parametrize("text", ["fsdp=4,pp=4,mbs=1,recompute=full", "dp=4,pp=4:gpipe,mbs=2"])
def test_waiting_is_near_the_closed_form(question: Question, text: str) -> None:
    layout = Layout.parse(text)
    closed = price(question, layout).terms
    run = idle_s(question, layout)
    assert run == pytest.approx(closed["idle_s"], rel=0.5)
    assert run < closed["compute_s"]


def test_stages_are_priced_one_by_one(question: Question) -> None:
    stages = stage_seconds(question, Layout.parse("fsdp=4,pp=4,mbs=1,recompute=full"), 1, 8)
    assert len(stages) == 4
    assert all(s.inputs > s.weights for s in stages)  # what is computed again, before the inputs' gradient
    plain = stage_seconds(question, Layout.parse("fsdp=4,pp=4,mbs=1"), 1, 8)
    assert plain[1].inputs == pytest.approx(plain[1].weights)


def test_long_steps_are_extended(question: Question) -> None:
    """1f1b waits as long whatever the number of micro-batches is."""
    few, many = (Layout.parse(f"fsdp={n},pp=2,mbs=1") for n in (32, 2))
    wide = question_of(job(LLAMA), parse_cluster("8x8xH100-SXM-80GB"), None, None, None)
    assert idle_s(wide, few) == pytest.approx(idle_s(question, many), rel=0.05)


def test_equal_pipelines_run_once_and_time_is_bounded(question: Question) -> None:
    rehearsal = Rehearsal(question)
    for text in ("dp=2,fsdp=2,pp=4,mbs=1", "fsdp=4:zero1,pp=4,mbs=1", "fsdp=4:zero2,pp=4,mbs=1"):
        candidate = price(question, Layout.parse(text))
        told = rehearsal.again(candidate)
        assert told is not None
        assert told.layout == candidate.layout
        assert told.terms["deliver_s"] < candidate.terms["deliver_s"]  # sends are in the waiting now
    assert len(rehearsal.known) == 1
    assert Rehearsal(question, left=0).again(price(question, Layout.parse("fsdp=4,pp=4,mbs=1"))) is None
    assert rehearsal.again(price(question, Layout.parse("fsdp=8,mbs=1"))) is None
