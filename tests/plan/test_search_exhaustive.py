"""The pruned search finds what pricing every layout finds: the same twenty, in the same order, and counts add up."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from paceline.plan.cluster import parse_cluster
from paceline.plan.decide import judge, order, rank_key
from paceline.plan.enumerate import scopes
from paceline.plan.layout import Layout
from paceline.plan.search import question_of
from paceline.plan.sift import sift
from paceline.plan.speed.columns import ColumnSpeeds
from paceline.plan.survey import tally_of
from paceline.plan.weigh import Question
from tests.plan.answers import job, machine, measurement

SMALL = ("nano", "mini", "small", "gpt2", "tiny-moe", "tiny-mla", "smollm2-135m", "qwen2.5-0.5b")
ACCELERATORS = ("H100-SXM-80GB", "A100-SXM-40GB", "L4", "H200-SXM-141GB")
TOP = 20


def asked(seed: int) -> Question:
    """A random small job on a random small cluster, under a random objective and sometimes a limit."""
    draw = random.Random(seed)
    table: dict[str, Any] = {
        "model.preset": draw.choice(SMALL),
        "train.steps": 1000,
        "data.tokenizer": "bpe:8192",
        "data.sequence_length": draw.choice((256, 512, 1024)),
        "train.global_batch_size": draw.choice((6, 8, 12, 16, 24)),
        "layout.objective": draw.choice(("time", "time", "cost", "memory")),
    }
    if draw.random() < 0.2:
        table["layout.deadline"] = "30min"
    if seed % 7 == 0:
        return columns(question_of(job(table), machine(draw.choice((2, 4, 6))), measurement(), None, None))
    hosts, devices = draw.choice(((1, 2), (1, 4), (1, 8), (2, 2), (2, 4), (3, 2)))
    name = f"{hosts}x{devices}x{draw.choice(ACCELERATORS)}"
    return columns(question_of(job(table), parse_cluster(name), None, None, None))


def columns(question: Question) -> Question:
    """With speeds that answer for columns."""
    return replace(question, speeds=ColumnSpeeds(question.speeds, shared=question.cluster.is_cpu))


@pytest.mark.parametrize("seed", range(24))
def test_the_pruned_search_finds_what_pricing_everything_finds(seed: int) -> None:
    question = asked(seed)
    for space in scopes(question.cluster, question.facts.work, Layout(auto=True)):
        if space.total[0] > 12_000:
            continue
        every = judge(question, space.layouts(), explain=False)
        found = sift(question, space, TOP)
        whole = tally_of(every)
        assert found.tally.adds_up()
        assert (found.tally.divide, found.tally.refused) == (whole.divide, whole.refused)
        assert space.total == (whole.divide, whole.refused)
        best = sorted(every.candidates, key=lambda c: order(question, c))[:TOP]
        assert [str(layout) for _, layout in found.best] == [str(c.layout) for c in best]
        for (weight, _), candidate in zip(found.best, best, strict=True):
            assert weight == pytest.approx(rank_key(question, candidate), rel=1e-9)


def test_most_of_a_space_need_not_be_priced() -> None:
    small = job({"model.preset": "small", "train.steps": 10, "data.tokenizer": "bpe:8192"})
    question = columns(question_of(small, parse_cluster("4x8xH100-SXM-80GB"), None, None, None))
    space = scopes(question.cluster, question.facts.work, Layout(auto=True))[-1]
    found = sift(question, space, TOP)
    assert found.tally.scored < found.tally.divide / 4
    assert found.tally.too_slow > 0
    again = sift(question, space, TOP)
    assert [layout for _, layout in again.best] == [layout for _, layout in found.best]
