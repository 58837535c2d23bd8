"""JOB may be a config; what is planned and not trained is refused by name before anything starts."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from paceline.api.jobs import load_job
from paceline.api.kept import kept_job, save_job
from paceline.api.plan import plan
from paceline.job import Job
from paceline.job.untrained import refuse_to_build, refuse_to_load
from paceline.ledger.folder import RunFolder
from paceline.ledger.outcome import Refused
from paceline.plan.show import table
from tests.published import config_file

CLUSTER, LAYOUT = "2x8xH100-SXM-80GB", "fsdp=16,mbs=1,recompute=full"


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("paceline.job.stack.DEFAULTS_FILES", ())


def folder(name: str, at: Path) -> Path:
    at.mkdir()
    shutil.copyfile(config_file(name), at / "config.json")
    return at


def test_a_config_is_a_job_of_defaults_around_its_model(tmp_path: Path) -> None:
    for word in (folder("llama-3-8b", tmp_path / "My Llama"), tmp_path / "My Llama" / "config.json"):
        job = load_job(word).job
        assert (job.run.name, job.data.sequence_length) == ("My-Llama", 8192)
        assert job.model.widths(1).num_hidden_layers == 32


def test_flags_lie_over_a_config(tmp_path: Path) -> None:
    word = folder("gpt2", tmp_path / "gpt2")
    job = load_job(word, [("data.sequence_length", "512"), ("train.steps", "10")]).job
    assert (job.data.sequence_length, job.train.steps) == (512, 10)
    assert load_job(word).job.data.sequence_length == 1024


def test_a_folder_with_a_job_file_is_that_job(tmp_path: Path) -> None:
    at = folder("gpt2", tmp_path / "both")
    (at / "job.toml").write_text('model.preset = "nano"\n')
    assert load_job(at).job.model.preset == "nano"


def test_a_plan_of_a_config_says_what_it_assumed(tmp_path: Path) -> None:
    found = plan(config_file("deepseek-v2-lite"), cluster=CLUSTER, layout=LAYOUT, top=1)
    said = " · ".join(found.assumed)
    assert "32 × 8192 tokens a step, the defaults of a job" in said
    assert "length of the run unknown" in said
    assert "does not compute rotary positions scaled by yarn" in said
    text = table(found)
    assert "deepseek-v2-lite, 15.71 B parameters" in text
    assert "next     planned only: training deepseek-v2-lite (deepseek_v2) is not in this version" in text


def test_a_model_that_can_be_trained_says_how() -> None:
    text = table(plan(config_file("qwen3-0.6b"), cluster=CLUSTER, layout=LAYOUT, top=1))
    assert 'model.weights = "random" and data.train' in text


def test_what_our_decoder_lacks_is_refused_by_name() -> None:
    job = Job(model={"hf": str(config_file("gemma-2-9b")), "weights": "random"})
    with pytest.raises(Refused, match="training gemma-2-9b is not in this version") as caught:
        refuse_to_build(job)
    assert caught.value.exit_code == 2
    assert "norms after attention and MLP; scaled embeddings" in caught.value.rule


def test_weights_are_not_loaded_in_silence_nor_left_out_in_silence() -> None:
    job = Job(model={"hf": str(config_file("qwen3-0.6b"))})
    refuse_to_build(job)
    with pytest.raises(Refused, match=r"loading the weights of qwen3-0\.6b is not in this version") as caught:
        refuse_to_load(job)
    assert caught.value.use == 'model.weights = "random"'
    refuse_to_load(job.replace({"model.weights": "random"}))
    refuse_to_load(Job(model="tiny"))


def test_prove_and_a_dry_run_refuse_what_cannot_be_built(tmp_path: Path) -> None:
    from paceline.api.dry_run import dry_run
    from paceline.api.prove import prove

    (tmp_path / "a.txt").write_text("text " * 1000)
    job = Job(model={"hf": str(config_file("gemma-2-9b"))}, data={"train": "a.txt"})
    with pytest.raises(Refused, match="not in this version"):
        dry_run(job, layout="single,mbs=1")
    with pytest.raises(Refused, match="not in this version"):
        prove(job, "fsdp=2")


def test_a_run_keeps_the_config_and_moves_with_it(tmp_path: Path) -> None:
    source = folder("qwen3-0.6b", tmp_path / "model")
    job = Job(model={"hf": str(source), "weights": "random"})
    run = RunFolder(tmp_path / "run")
    run.path.mkdir()
    save_job(run, job)
    assert kept_job(run, job).hash == job.hash
    shutil.rmtree(source)
    (tmp_path / "run").rename(tmp_path / "moved")
    again = Job.load(tmp_path / "moved" / "job.toml")
    assert again.hash == job.hash
    assert again.model.hf == str(tmp_path / "moved" / "source" / "config.json")


def test_a_file_that_describes_no_decoder_is_refused_with_what_is_missing(tmp_path: Path) -> None:
    (tmp_path / "index.json").write_text(json.dumps({"weight_map": {}}))
    with pytest.raises(Refused, match="has no vocab_size"):
        load_job(tmp_path / "index.json")


def test_a_hub_id_that_is_not_here_is_refused_with_what_brings_it(tmp_path: Path) -> None:
    with pytest.raises(Refused) as caught:
        load_job("org/name")
    assert "hf download org/name config.json" in caught.value.use
    (tmp_path / "runs").mkdir()
    with pytest.raises(Refused) as caught:
        load_job("runs/nothing")
    assert "hf download" not in caught.value.use
