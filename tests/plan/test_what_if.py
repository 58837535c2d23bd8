"""Another value of one key, and the answer for it."""

from __future__ import annotations

import pytest

from paceline.plan.what_if import key_named
from tests.plan.answers import ask, job
from tests.plan.cases.test_known_answers import BASE


@pytest.mark.parametrize(
    ("word", "key"),
    [
        ("devices", "cluster.devices"),
        ("link.inter", "cluster.link.inter"),
        ("latency.inter", "cluster.latency.inter"),
        ("cluster", "cluster.use"),
        ("use", "cluster.use"),
        ("cluster.link.inter", "cluster.link.inter"),
        ("train.global_batch_size", "train.global_batch_size"),
        ("layout.use", "layout.use"),
    ],
)
def test_the_table_of_the_cluster_may_be_left_out(word: str, key: str) -> None:
    assert key_named(word, job()) == key


def test_a_slower_network_brings_the_answer_home() -> None:
    """64 devices train 3 B in hours instead of weeks, and not where the network is that of an office."""
    asked = job(
        BASE | {"model.preset": "llama-3.2-3b", "train.global_batch_size": 512, "train.steps": 20_000}
    )
    found = ask(asked, "64x1xH100-SXM-80GB", what_if={"link.inter": ["100Gbit", "100Mbit"]})
    fast, slow = found.what_if
    assert fast["layout"].count("=") > 1
    assert fast["hours"] < 24
    assert slow["layout"].startswith("single")
    assert slow["hours"] > 24 * 14


def test_a_larger_batch_names_its_learning_rate_and_what_nobody_can_plan() -> None:
    base = job()
    batch, rate = base.train.global_batch_size, base.optimizer.lr
    four = ask(base, what_if={"train.global_batch_size": [4 * batch]}).what_if[0]
    assert four["learning_rate"] == pytest.approx(2 * rate)
    assert four["memory_gib"] > 0
    assert "a measurement, not a plan" in four["says"]
    plain = job(optimizer__name="sgd")
    assert ask(plain, what_if={"train.global_batch_size": [4 * batch]}).what_if[0][
        "learning_rate"
    ] == pytest.approx(4 * plain.optimizer.lr)
