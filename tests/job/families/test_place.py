"""Where a config is found: file, folder, and the cache of Hugging Face's libraries, in its own layout."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from paceline.job import load
from paceline.job.families.place import config_file, in_hub, is_hub_id, name_of, read_config
from paceline.ledger.outcome import Refused
from tests.published import config


@pytest.fixture
def hub(tmp_path: Path) -> Path:
    """A cache with one model: two revisions, main is the newer."""
    for commit, layers in (("aaa", 30), ("bbb", 28)):
        folder = tmp_path / "hub" / "models--Qwen--Qwen3-0.6B" / "snapshots" / commit
        folder.mkdir(parents=True)
        (folder / "config.json").write_text(json.dumps(config("qwen3-0.6b") | {"num_hidden_layers": layers}))
    refs = tmp_path / "hub" / "models--Qwen--Qwen3-0.6B" / "refs"
    refs.mkdir()
    (refs / "main").write_text("bbb")
    (refs / "v1").write_text("aaa")
    return tmp_path / "hub"


@pytest.mark.parametrize(("word", "commit"), [("", "bbb"), ("@v1", "aaa"), ("@aaa", "aaa")])
def test_a_hub_id_is_found_in_the_cache(hub: Path, word: str, commit: str) -> None:
    found = in_hub(f"Qwen/Qwen3-0.6B{word}", hub)
    assert found is not None
    assert found.parent.name == commit
    assert name_of(str(found)) == "Qwen/Qwen3-0.6B"


@pytest.mark.parametrize("word", ["Qwen/Qwen3-8B", "Qwen/Qwen3-0.6B@v2", "Qwen/Qwen3-0.6B@../../x"])
def test_what_the_cache_does_not_have_is_refused_with_what_brings_it(hub: Path, word: str) -> None:
    assert in_hub(word, hub) is None
    if is_hub_id(word):
        with pytest.raises(Refused) as caught:
            config_file(word, hub)
        assert caught.value.exit_code == 2
        assert f"hf download {word.partition('@')[0]} config.json" in caught.value.use


def test_a_job_means_the_cached_revision(hub: Path, tmp_path: Path) -> None:
    (tmp_path / "job.toml").write_text('model.hf = "Qwen/Qwen3-0.6B@v1"\n')
    job = load(tmp_path / "job.toml", defaults_files=(), hub=hub).job
    assert job.model.widths(1).num_hidden_layers == 30
    assert "snapshots/aaa" in str(job.model.hf)


def test_a_path_is_relative_to_the_job_file(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text(json.dumps(config("gpt2")))
    (tmp_path / "job.toml").write_text('model.hf = "model"\nmodel.num_hidden_layers = 2\n')
    loaded = load(tmp_path / "job.toml", defaults_files=())
    assert loaded.job.model.hf == str(tmp_path / "model")
    assert loaded.job.model.widths(1).num_hidden_layers == 2
    assert loaded.job.model.own_vocab_size() == 50257
    assert loaded.job.model.start == "pretrained"


def test_the_job_may_say_what_the_file_does_not(tmp_path: Path) -> None:
    given = {key: value for key, value in config("llama-3-8b").items() if key != "vocab_size"}
    (tmp_path / "config.json").write_text(json.dumps(given))
    (tmp_path / "job.toml").write_text('model.hf = "config.json"\nmodel.vocab_size = 9000\n')
    assert load(tmp_path / "job.toml", defaults_files=()).job.model.widths(1).vocab_size == 9000


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[]", "holds no object"),
        ("{", "not valid JSON"),
        ("[" * 100_000, "not valid JSON"),
        ("\xff", "not valid JSON"),
    ],
)
def test_a_file_that_is_no_config_is_refused(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "config.json"
    file.write_bytes(text.encode("latin-1"))
    with pytest.raises(Refused, match=said):
        read_config(file)


def test_a_changed_file_is_read_again(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text('{"a": 1}')
    assert read_config(file) == {"a": 1}
    file.write_text('{"a": 1, "b": 2}')
    assert read_config(file) == {"a": 1, "b": 2}


@pytest.mark.parametrize("word", ["nowhere/config.json", "."])
def test_a_path_without_a_config_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, word: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(Refused) as caught:
        config_file(word)
    assert caught.value.key == "model.hf"
