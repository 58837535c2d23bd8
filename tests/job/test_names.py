"""Unknown keys: other tools' names first, then the nearest spelling; every answer names a key that exists."""

from __future__ import annotations

import pytest

from paceline.job.names import nearest, other_name, other_names, unknown
from paceline.job.schema import leaves, table_names


def test_there_are_at_least_100_names():
    assert len(other_names()) >= 100


@pytest.mark.parametrize(
    "tool", ["Hugging Face", "TRL", "Axolotl", "TorchTitan", "Megatron", "nanoGPT", "Accelerate", "Flower"]
)
def test_every_tool_of_the_interface_is_there(tool):
    assert sum(tool in other.of for other in other_names().values()) >= 5


@pytest.mark.parametrize("name", sorted(other_names()))
def test_every_name_leads_to_a_key(name):
    other = other_names()[name]
    assert other.of
    assert other.ours in leaves() or (not other.ours and other.use)
    if " = " in other.use and not other.use.startswith("paceline"):
        assert other.use.partition(" = ")[0] in leaves()


@pytest.mark.parametrize("name", sorted(leaves()))
def test_no_key_of_ours_is_somebody_elses(name):
    """A full dotted name of ours never reaches the lookup, so the table must not hold one."""
    assert name not in other_names()


@pytest.mark.parametrize(
    ("key", "ours"),
    [
        ("train.learning_rate", "optimizer.lr"),
        ("training.steps", "train.steps"),
        ("--learning-rate", "optimizer.lr"),
        ("Max_Steps", "train.steps"),
        ("block_size", "data.sequence_length"),
        ("checkpoint.interval", "checkpoint.every"),
    ],
)
def test_other_names(key, ours):
    other = other_name(key)
    assert other is not None
    assert other.ours == ours


@pytest.mark.parametrize(
    ("key", "ours"),
    [
        ("train.step", "train.steps"),
        ("trian.steps", "train.steps"),
        ("steps", "train.steps"),
        ("model.sequence_length", "data.sequence_length"),
        ("optimiser.lr", "optimizer.lr"),
        ("modle", "model"),
        ("cluster.link.intr", "cluster.link.intra"),
        ("model.hiden_size", "model.hidden_size"),
        ('"train.steps"', "train.steps"),
        ("xyzzy.qwerty", ""),
        ("", ""),
    ],
)
def test_nearest(key, ours):
    assert nearest(key) == ours


@pytest.mark.drill(49)
@pytest.mark.parametrize("key", ["learning_rte", "optimizer.learning_rte", "train.learnin_rate"])
def test_a_misspelt_name_of_another_tool(key):
    error = unknown(key, "3e-4", "job.toml:3")
    assert error.use == "optimizer.lr = 3e-4"
    assert "learning_rate is the" in error.rule


def test_the_error_explains_batches():
    error = unknown("per_device_train_batch_size", "4", "job.toml:3")
    assert "global_batch_size = micro-batch × accumulation × data ranks" in error.rule
    assert "mbs=" in error.rule
    assert error.where == "job.toml:3"
    assert error.exit_code == 2


def test_the_error_of_the_interface():
    error = unknown("train.learning_rate", "3e-4", "job.toml:14")
    assert error.message == "train.learning_rate is not a key"
    assert error.seen == "train.learning_rate = 3e-4"
    assert error.use == "optimizer.lr = 3e-4"
    assert "Hugging Face" in error.rule
    assert unknown("train.learning_rate", "3e-4", "--set", flag=True).use == "--set optimizer.lr=3e-4"


@pytest.mark.parametrize("key", ["a", "train.x", "x.y.z", "a" * 1000, "ü", '"', "[train]", "."])
def test_every_error_ends_with_something_to_paste(key):
    error = unknown(key, "1", "job.toml:1")
    assert error.use
    assert error.rule
    first = error.use.partition(" = ")[0].strip("[]")
    assert first in leaves() or first in table_names() or first.startswith("paceline job keys")
