"""A repair names the job and the run; a proof of a run is of the layout that it trained with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from paceline.api.asked import refuse_options, trained_layout
from paceline.api.jobs import load_job
from paceline.api.naming import Names, names_in_repairs
from paceline.api.runs import Run
from paceline.api.subject import Subject
from paceline.api.target import find_target
from paceline.launch.cause import from_death
from paceline.ledger.folder import RunFolder, create
from paceline.ledger.outcome import Failed, Refused
from paceline.ledger.plural import many
from paceline.ledger.status import Status
from paceline.plan.shrink import Small
from tests.plan.answers import job


def run_of_two(tmp_path: Path, layout: str = "dp=2,mbs=4") -> RunFolder:
    folder = create(tmp_path / "runs", "trained")
    job().save(folder.job_toml)
    Status(state="done", layout=layout).write(folder.status)
    return folder


def test_a_dead_rank_is_told_with_the_jobs_and_the_runs_name(tmp_path: Path) -> None:
    folder = run_of_two(tmp_path)
    with pytest.raises(Failed) as caught, names_in_repairs("my job.toml", flags=" --name a") as names:
        names.run = folder
        raise from_death(1, "host", -9)
    assert caught.value.use == (
        f"paceline train 'my job.toml' --name a --resume   (log: paceline logs {folder.path} --rank 1)"
    )


def test_a_job_made_in_python_is_named_by_its_run(tmp_path: Path) -> None:
    folder = run_of_two(tmp_path)
    assert Names("", folder).filled("paceline train JOB --resume") == f"paceline train {folder.path} --resume"
    assert Names("RUN.toml", None).filled("JOB RUN JOBS") == "RUN.toml RUN JOBS"


def test_a_proof_is_not_resumed() -> None:
    with pytest.raises(Failed) as caught, names_in_repairs("job.toml", again="paceline prove"):
        raise from_death(0, "host", -9)
    assert caught.value.use.startswith("paceline prove job.toml ")
    assert "--resume" not in caught.value.use


def test_a_proof_of_a_run_is_of_the_layout_that_it_trained_with(tmp_path: Path) -> None:
    folder, said = run_of_two(tmp_path), []

    def say(field: str, text: str) -> None:
        said.append(text)

    assert load_job(str(folder.path)).job.layout.use == "auto"
    assert trained_layout(str(folder.path), "auto", (), say) == "dp=2,mbs=4"
    assert said == ["dp=2,mbs=4: what trained trained with"]
    assert trained_layout(str(folder.path), "tp=2", (), say) == "tp=2"
    assert trained_layout(str(folder.path), "auto", {"layout.use": "auto"}, say) == "auto"
    assert trained_layout(str(folder.job_toml), "auto", (), say) == "auto"


def test_the_layout_of_a_run_without_a_status_is_in_its_plan(tmp_path: Path) -> None:
    folder = run_of_two(tmp_path, layout="")
    assert Run(folder).layout.auto
    folder.phases.mkdir(parents=True, exist_ok=True)
    (folder.phases / "1-plan.json").write_text('{"decision": {"layout": "pp=2,mbs=1"}}')
    assert str(Run(folder).layout) == "pp=2,mbs=1"


def test_what_to_do_without_a_checkpoint_keeps_the_runs_layout(tmp_path: Path) -> None:
    folder = run_of_two(tmp_path)
    with pytest.raises(Refused) as caught:
        find_target(str(folder.path), load_job(str(folder.path)), folder, ())
    assert caught.value.exit_code == 52
    assert caught.value.use == f"paceline train {folder.job_toml} --layout dp=2,mbs=4"


def test_the_rules_of_a_proofs_options_say_what_they_do() -> None:
    for bad in ({"leg": "x"}, {"shrink": "x"}, {"steps": 1}):
        options: dict[str, Any] = {"steps": 3, "shrink": "auto", "leg": "both"} | bad
        with pytest.raises(Refused) as caught:
            refuse_options(**options)
        assert "words" not in caught.value.rule
        assert len(caught.value.rule.split()) > 8


def test_a_subject_knows_how_long_its_rows_are(tmp_path: Path) -> None:
    small = Small(job().model.widths(512), 256, 8)
    subject = Subject("s", job(), small, tmp_path, "fp32", 3, tmp_path)
    assert subject.facts.sequence_length == 256


@pytest.mark.parametrize(
    ("count", "word", "text"),
    [(1, "micro-batch", "1 micro-batch"), (2, "micro-batch", "2 micro-batches"), (0, "rank", "0 ranks")],
)
def test_one_is_not_many(count: int, word: str, text: str) -> None:
    assert many(count, word) == text


def test_only_train_has_a_flag_for_the_name() -> None:
    assert Names("job.toml").filled("--name demo") == "--name demo"
    assert Names("job.toml", again="paceline prove job.toml").filled("--name demo") == "--set run.name=demo"
