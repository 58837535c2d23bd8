"""What may change on resume: every key falls under one rule, and every change is listed."""

from __future__ import annotations

import pytest

from paceline.job import Job
from paceline.job.changes import judge_resume
from paceline.ledger.outcome import Refused

OLD = Job(run={"name": "a"}, data={"train": "/d/input.txt"}, train={"steps": 100, "precision": "fp32"})

FREE = {
    "layout.use": "fsdp=2",
    "cluster.devices": 2,
    "run.device": "cpu",
    "run.note": "x",
    "eval.every": "5%",
    "checkpoint.every": "1min",
    "restart.max": 1,
    "track.every": "1s",
    "train.max_time": "1h",
    "train.deterministic": True,
}
ASK = {
    "data.sequence_length": 512,
    "data.tokenizer": "bytes",
    "data.train": "/d/other.txt",
    "data.packing": "masked",
    "optimizer.lr": 1e-3,
    "optimizer.schedule": "wsd",
    "train.seed": 5,
    "train.global_batch_size": 8,
    "train.precision": "bf16",
    "train.reduce_precision": "bf16",
}


@pytest.mark.parametrize("key", sorted(FREE))
def test_free(key):
    (change,) = judge_resume(OLD, OLD.replace({key: FREE[key]}))
    assert (change.key, change.rule) == (key, "free")
    assert key in str(change)


@pytest.mark.parametrize("key", sorted(ASK))
def test_only_when_allowed(key):
    new = OLD.replace({key: ASK[key]})
    with pytest.raises(Refused) as caught:
        judge_resume(OLD, new)
    assert (caught.value.exit_code, caught.value.key) == (54, key)
    assert caught.value.use == f"--allow-change {key}"
    for allow in (key, key.partition(".")[0], key.partition(".")[0] + ".*"):
        (change,) = judge_resume(OLD, new, [allow])
        assert (change.key, change.rule) == (key, "allowed")
    with pytest.raises(Refused):
        judge_resume(OLD, new, ["update", "data.bad_row"])


@pytest.mark.parametrize(
    "shape",
    [
        {"model.num_hidden_layers": 5},
        {"model.preset": "nano"},
        {"model.vocab_size": 9},
        {"model.rope_theta": 5.0},
    ],
)
def test_the_shape_never_changes(shape):
    new = OLD.replace(shape)
    with pytest.raises(Refused) as caught:
        judge_resume(OLD, new, ["optimizer", "data", "train"])
    assert caught.value.exit_code == 54
    assert caught.value.key.startswith("model.")
    with pytest.raises(Refused) as caught:
        judge_resume(OLD, new, ["model"])
    assert caught.value.exit_code == 2


def test_another_spelling_of_the_same_shape_is_no_change():
    assert judge_resume(OLD, OLD.replace({"model.num_hidden_layers": 4})) == []


def test_length_is_recomputed_and_listed():
    changes = judge_resume(OLD, OLD.replace({"train.tokens": "1M"}))
    assert [(c.key, c.old, c.new, c.rule) for c in changes] == [
        ("train.steps", 100, None, "schedule"),
        ("train.tokens", None, 10**6, "schedule"),
    ]


def test_auto_means_what_the_run_resolved():
    assert judge_resume(OLD, OLD.replace({"train.precision": "auto", "layout.use": "auto"})) == []


def test_moved_data_is_said_and_free():
    (change,) = judge_resume(OLD, OLD.replace({"data.train": "/elsewhere/input.txt"}))
    assert change.rule == "moved"


def test_every_refused_change_is_listed():
    new = OLD.replace({"optimizer.lr": 1.0, "train.seed": 5, "run.note": "x"})
    with pytest.raises(Refused) as caught:
        judge_resume(OLD, new)
    assert "optimizer.lr" in caught.value.use
    assert "train.seed" in caught.value.use
    assert "train.seed" in caught.value.seen
    with pytest.raises(Refused):
        judge_resume(OLD, new, ["optimizer.lr"])
    assert {c.key for c in judge_resume(OLD, new, ["optimizer.lr", "train.seed"])} == {
        "optimizer.lr",
        "train.seed",
        "run.note",
    }


@pytest.mark.parametrize("allow", ["optimiser.lr", "", "x", "lr"])
def test_allow_must_name_a_key(allow):
    with pytest.raises(Refused) as caught:
        judge_resume(OLD, OLD, [allow])
    assert caught.value.exit_code == 2
    assert caught.value.use


def test_nothing_changed():
    assert judge_resume(OLD, OLD) == []
