"""The job as a value: built from Python with the same errors, frozen, hashed by what matters."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from paceline.job import Interval, Job, load
from paceline.job.files import from_text
from paceline.job.quantities import (
    FASTEST_BYTES_PER_S,
    LARGEST,
    LONGEST_S,
    print_bytes,
    print_duration,
    print_rate,
)
from paceline.ledger.outcome import Refused

DATA = {"train": "input.txt"}


def test_from_python(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    job = Job(model="tiny", data=DATA, train={"steps": "1k"}, eval={"every": Interval("steps", 5)})
    assert (job.model.preset, job.train.steps, str(job.eval.every)) == ("tiny", 1000, "5 steps")
    assert job.data.train is not None
    assert job.data.train[0].path == str(tmp_path / "input.txt")


@pytest.mark.parametrize(
    ("tables", "key"),
    [
        ({"trian": {"steps": 5}}, "trian"),
        ({"train": {"stepz": 5}}, "train.stepz"),
        ({"train": {"steps": True}}, "train.steps"),
        ({"train": {5: 1}}, "train.5"),
        ({"train": 5}, "train"),
        ({"train.steps": 5}, '"train.steps"'),
        ({"extends": "base.toml"}, "extends"),
        ({"run": {"note": "\ud800"}}, "run.note"),
        ({"run": {"tags": "x"}}, "run.tags"),
        ({"lora": {"rank": 8}}, "lora.rank"),
        ({"model": lambda: None}, "model"),
        ({"loss": lambda model, batch: None}, "loss"),
    ],
)
def test_from_python_the_same_errors(tables, key):
    with pytest.raises(Refused) as caught:
        Job(**tables)
    assert (caught.value.exit_code, caught.value.key) == (2, key)
    assert caught.value.use


def test_frozen():
    job = Job(data=DATA)
    with pytest.raises(ValidationError):
        job.train.steps = 5  # type: ignore[misc]
    with pytest.raises(ValidationError):
        job.train = job.train  # type: ignore[misc]
    assert hash(job) == hash(Job(data=DATA))


def test_replace_keeps_the_rest_and_its_groups():
    job = Job(data=DATA, train={"steps": 5, "seed": 3})
    other = job.replace({"train.tokens": "1M", "optimizer.lr": 1e-3})
    assert (other.train.steps, other.train.tokens, other.train.seed, other.optimizer.lr) == (
        None,
        10**6,
        3,
        1e-3,
    )
    assert job.train.steps == 5
    assert other.replace({"train.tokens": None}).train.epochs == 1.0
    assert job.replace({}) == job
    with pytest.raises(Refused) as caught:
        job.replace({"train.stepz": 5})
    assert caught.value.use == "train.steps = 5"


def test_resolved_has_every_key_that_has_a_value():
    text = Job(data=DATA).to_toml()
    flat = tomllib.loads(text)
    assert flat["train"]["epochs"] == 1.0
    assert flat["checkpoint"]["every"] == "15min"
    assert "federation" not in flat
    assert "control" not in flat


def test_what_cannot_change_the_result_is_not_hashed():
    job = Job(data=DATA, train={"steps": 5})
    for same in (
        {"run.name": "x", "run.root": "y", "run.device": "cpu"},
        {"layout.use": "fsdp=2", "cluster.devices": 8},
        {"checkpoint.every": "never", "restart.max": 0, "track.every": "1s", "eval.limit": 1},
        {"train.max_time": "1h", "train.deterministic": True},
        {"data.train": "/elsewhere/input.txt"},
        {"model.num_hidden_layers": 4},
    ):
        assert job.replace(same).hash == job.hash, same
    different = {
        job.replace(other).hash
        for other in (
            {"train.steps": 6},
            {"train.seed": 1},
            {"train.global_batch_size": 8},
            {"train.precision": "fp32"},
            {"optimizer.lr": 1e-3},
            {"data.train": "other.txt"},
            {"data.train": {"a": {"path": "input.txt", "weight": 2.0}}},
            {"data.tokenizer": "bytes"},
            {"data.sequence_length": 512},
            {"model.num_hidden_layers": 5},
            {"model.vocab_size": 9000},
        )
    }
    assert len(different) == 11
    assert job.hash not in different
    assert job.hash.startswith("sha256:")


def test_the_hash_is_stable():
    """A change of this value is a change of every run's identity: bump it knowingly."""
    job = Job(data=DATA, train={"steps": 5})
    assert job.hash == "sha256:ee26c252ba25f87f6c91326c307c2cbafc3f26541424458aafd66079c9f43808"
    assert job.hash == Job(train={"steps": "5"}, data=DATA, model="tiny").hash


REALS = st.floats(allow_nan=False, allow_infinity=False)
TEXT = st.text(st.characters(codec="utf-8"), max_size=20)
PATHS = st.from_regex(r"[a-z][a-z0-9_*.-]{0,10}(/[a-z0-9*._-]{1,6}){0,2}", fullmatch=True)
WEIGHTS = st.floats(1e-300, 1e300) | st.integers(1, 9)
SOURCES = st.one_of(
    PATHS,
    st.just("python-stdlib"),
    st.lists(PATHS, min_size=1, max_size=3),
    st.dictionaries(
        TEXT.filter(bool),
        st.fixed_dictionaries({"path": PATHS}, optional={"weight": WEIGHTS}),
        min_size=1,
        max_size=3,
    ),
)
POSITIVE = REALS.filter(lambda x: x > 0)
SECONDS = st.floats(1e-300, LONGEST_S).map(print_duration)
JOBS = st.fixed_dictionaries(
    {},
    optional={
        "run.note": TEXT,
        "run.tags": st.lists(TEXT, max_size=3),
        "data.train": SOURCES,
        "data.eval": st.floats(0, 1, exclude_min=True, exclude_max=True) | SOURCES,
        "data.text_field": TEXT.filter(bool),
        "train.tokens": st.integers(1, LARGEST),
        "train.seed": st.integers(0, LARGEST),
        "train.max_time": SECONDS,
        "optimizer.lr": POSITIVE,
        "optimizer.betas": st.lists(st.floats(0, 1, exclude_max=True), min_size=2, max_size=2),
        "optimizer.eps": POSITIVE,
        "optimizer.warmup_steps": st.integers(0, LARGEST) | st.floats(1e-300, 1, exclude_max=True),
        "checkpoint.every": st.integers(1, LARGEST) | SECONDS | st.just("never"),
        "cluster.memory": st.integers(1, LARGEST).map(print_bytes),
        "cluster.link.inter": st.floats(1e-300, FASTEST_BYTES_PER_S).map(print_rate),
        "model.rope_theta": POSITIVE,
        "model.rope_scaling": st.fixed_dictionaries(
            {"rope_type": st.just("linear"), "factor": POSITIVE | st.integers(1, 99)}
        ),
    },
)


@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(JOBS)
def test_a_resolved_job_round_trips_bit_exact(tmp_path, values):
    job = Job(run={"name": "x"}).replace(values)
    job.save(tmp_path / "job.toml")
    text = (tmp_path / "job.toml").read_text(encoding="utf-8")
    again = load(tmp_path / "job.toml", defaults_files=()).job
    assert again == job
    assert again.to_toml() == text
    assert again.hash == job.hash
    assert Job(**job.to_dict()) == job


@settings(max_examples=50, deadline=None, suppress_health_check=list(HealthCheck))
@given(JOBS)
def test_every_value_of_a_resolved_job_has_its_line(values):
    assume(values)
    job = Job(run={"name": "x"}).replace(values)
    layer, _ = from_text(job.to_toml(), "job.toml", Path("."))
    assert all(":" in layer.where(key) for key in job.flat())
