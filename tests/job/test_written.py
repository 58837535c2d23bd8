"""``job show`` loads to the same job; every line of ``job new`` can be taken out of its comment."""

from __future__ import annotations

import json
import tomllib

import pytest

from paceline.job import load
from paceline.job.schema import flatten, leaves
from paceline.job.written import KINDS, SCHEMA_FILE, new, show
from paceline.ledger.outcome import Refused

PUBLISHED = {"model_type": "llama", "vocab_size": 32000, "hidden_size": 64, "intermediate_size": 96}
PUBLISHED |= {"num_hidden_layers": 2, "num_attention_heads": 4, "max_position_embeddings": 1024}


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("paceline.job.stack.DEFAULTS_FILES", ())
    return tmp_path


def test_show_is_the_job_with_its_origins(here):
    (here / "job.toml").write_text(
        'data.train = {a = {path = "a.txt", weight = 2.0}, "b c" = {path = "x\\u007f\\"y"}}\n'
        'run.tags = ["é", ""]\n'
        'model.preset = "llama-3.1-8b"\nmodel.rope_scaling = {rope_type = "linear", factor = 2}\n'
    )
    loaded = load("job.toml", sets=["train.steps=5", "run.note=# no comment"])
    text = show(loaded)
    (here / "again.toml").write_text(text)
    assert load("again.toml").job == loaded.job
    assert "# --set" in text
    assert "# job.toml:3" in text
    assert "# built-in default" in text


def test_new_is_a_job_as_it_is(here):
    text = new()
    assert text.splitlines()[0] == f"#:schema ./{SCHEMA_FILE}"
    assert max(len(line) for line in text.splitlines()) <= 160
    (here / "job.toml").write_text(text)
    job = load("job.toml").job
    assert (job.train.steps, job.model.preset) == (200, "tiny")


def test_every_line_of_new_can_be_taken_out_of_its_comment(here):
    lines = new().splitlines()
    seen = set()
    for at, line in enumerate(lines):
        if not line.startswith("# ") or " = " not in line.partition("  #")[0]:
            continue
        text = "\n".join([*lines[:at], line[2:], *lines[at + 1 :]])
        if line.startswith(("# epochs", "# tokens")):  # alternatives to steps
            text = text.replace("\nsteps =", "\n# steps =")
        if line.startswith("# hf"):  # an alternative to preset, and it reads the file
            text = text.replace("\npreset =", "\n# preset =")
            (here / "config.json").write_text(json.dumps(PUBLISHED))
        if line.startswith("# extends"):
            (here / "base.toml").write_text("")
        (here / "job.toml").write_text(text)
        load("job.toml")
        seen |= set(dict(flatten(tomllib.loads(text))))
    assert seen == {name for name, leaf in leaves().items() if not leaf.arrives and "*" not in name}


def test_the_rule_of_new_can_be_taken_out_of_its_comment_as_a_whole(here):
    lines = [
        line[1:] if line.startswith("#") and line[1:2] not in (" ", ":") else line
        for line in new().splitlines()
    ]
    (here / "job.toml").write_text("\n".join(lines))
    assert load("job.toml").job.control["spike"].action == "rollback"


@pytest.mark.parametrize("kind", [*KINDS, "chat", ""])
def test_other_kinds_are_refused_by_name(kind):
    if kind == "pretrain":
        assert new(kind) == new()
        return
    with pytest.raises(Refused) as caught:
        new(kind)
    assert caught.value.exit_code == 2
    assert "pretrain" in caught.value.use
