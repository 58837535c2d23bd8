"""Whole proofs: the command and the function, a layout that is right, one that is wrong, one that dies."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import paceline as pl
from paceline.api import trials
from paceline.api.subject import Subject
from paceline.api.trials import Trials
from paceline.ledger.atomic import read_json
from paceline.ledger.outcome import Exit
from paceline.plan.layout import Layout
from tests.cli.shell import in_process
from tests.flow.corpus import write_job


@pytest.fixture
def job(tmp_path: Path, cache: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return write_job(tmp_path)


def test_a_right_layout_is_proven_by_the_command(
    job: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    done = in_process(capsys, "prove", str(job), "--layout", "fsdp=2,mbs=2")
    assert done.code == 0, done.err
    lines = done.out.splitlines()
    assert lines[0] == "prove    job in its own size · your data · float64 and fp32 · 3 steps"
    assert lines[1].strip() == "single (1 rank) against fsdp=2,mbs=2 (2 ranks); fresh buffers filled with NaN"
    assert [line.split("limit")[1].split()[1] for line in lines[2:-1]] == ["equal"] * 8
    assert lines[-1].startswith("PROVEN   fsdp=2,mbs=2 trains the same model · ")
    run = pl.Run("job-prove", root=job.parent / "runs")
    assert (run.state, run.exit_code, run.status.kind) == ("proven", 0, "prove")
    found = read_json(run.folder.evidence / "prove.json")
    assert found["proven"] is True
    assert [row["leg"] for row in found["rows"]] == ["fp64"] * 6 + ["fp32"] * 2
    assert not list(run.folder.evidence.glob("tensors*")), "no tensors are left behind"
    monkeypatch.setenv("PACELINE_RUNS", "runs")
    shown = in_process(capsys, "runs").out.splitlines()[1].split()
    assert shown[:4] == ["job-prove", "prove", "proven", "–"]


def test_a_fault_of_two_axes_together_is_named_so(job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trials, "ENTRY", "tests.flow.planted_proof:run")
    proof = pl.prove(job, "dp=2,fsdp=2,mbs=1", leg="fp64")
    assert not proof.proven
    assert proof.exit_code == Exit.UNPROVEN
    first = proof.first_difference
    assert first is not None
    assert (first.what, first.step) == ("gradient", 1)
    assert "ratio 0.500 everywhere" in first.text
    assert set(first.together) == {"dp=2", "fsdp=2"}, "each of them alone is equal"
    assert (proof.run.state, proof.run.exit_code) == ("failed", 61)
    found = read_json(proof.run.folder.evidence / "prove.json")
    assert found["first_difference"]["together"] == ["dp=2", "fsdp=2"]
    assert found["differing"]["fp64"][0]["name"] == first.name


def test_a_failed_proof_ends_with_61_and_says_so_in_json(
    job: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(trials, "ENTRY", "tests.flow.planted_proof:run")
    done = in_process(capsys, "prove", str(job), "--layout", "dp=2,fsdp=2,mbs=1", "--leg", "fp64", "--json")
    assert done.code == 61
    assert done.object["error"]["exit_code"] == 61
    assert done.object["result"]["proven"] is False


def test_what_the_data_is_changed_for_is_said_and_the_same_for_every_layout(job: Path) -> None:
    from contextlib import ExitStack

    from paceline.api.bench import open_bench
    from paceline.api.jobs import load_job

    with ExitStack() as held:
        bench = open_bench(load_job(job), held, lambda field, text: None)
        layouts = (Layout(), Layout.parse("tp=2,cp=2"))
        subject = bench.subject("reference", load_job(job).job, layouts, shrunk=True, steps=3)
        plain = bench.subject(
            "reference", load_job(job).job, (Layout(), Layout.parse("dp=2")), shrunk=True, steps=3
        )
    assert any("so that every vocabulary border is met" in note for note in subject.notes)
    assert any("places of cp shards" in note for note in subject.notes)
    reference, cut = (subject.case("x", layout, write=layout == Layout()) for layout in layouts)
    assert reference.touch == cut.touch == subject.touch
    assert subject.touch["ids"]
    assert plain.notes == ()
    assert plain.touch == {"rows": [], "ids": []}


def test_one_device_is_proven_too(job: Path) -> None:
    proof = pl.prove(job, "single", leg="fp64")
    assert proof.proven
    assert max(row.error for row in proof.rows) < 1e-12, (
        "it accumulates, the reference takes the batch at once"
    )


def test_a_case_that_kills_its_ranks_ends_alone(
    job: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cases before and after it are run, and it is told with its cause."""
    from contextlib import ExitStack

    from paceline.api.bench import open_bench
    from paceline.api.jobs import load_job
    from paceline.api.legs import ready

    with ExitStack() as held:
        bench = open_bench(load_job(job), held, lambda field, text: None)
        subject: Subject = bench.subject("reference", load_job(job).job, (Layout(),), shrunk=False, steps=3)
        ready(bench, subject, exact=True, own=False)
        monkeypatch.setattr(trials, "ENTRY", "tests.flow.planted_proof:die")
        cases = [
            subject.case(text, Layout.parse(text)) for text in ("dp=2,mbs=1", "fsdp=2,mbs=1", "dp=2,mbs=3")
        ]
        told: list[str] = []
        runner: Trials = bench.trials
        outcomes = runner.run(cases, lambda outcome: told.append(outcome.case.name))
    assert told == ["dp=2,mbs=1", "fsdp=2,mbs=1", "dp=2,mbs=3"]
    assert [outcome.error is None for outcome in outcomes] == [True, False, True]
    assert [len(outcome.reports) for outcome in outcomes] == [2, 0, 2]
    assert outcomes[1].error is not None
    assert outcomes[1].error.exit_code == Exit.RANK_DIED


@pytest.mark.parametrize(
    ("options", "key"),
    [
        ({"steps": 2}, "--steps"),
        ({"leg": "bf16"}, "--leg"),
        ({"shrink": "no"}, "--shrink"),
    ],
)
def test_options_out_of_range_are_refused(job: Path, options: dict[str, Any], key: str) -> None:
    with pytest.raises(pl.Refused) as caught:
        pl.prove(job, "dp=2", **options)
    assert caught.value.exit_code == Exit.USAGE
    assert caught.value.key == key


def test_a_layout_that_the_rule_book_refuses_is_refused_before_anything_starts(job: Path) -> None:
    with pytest.raises(pl.Refused) as caught:
        pl.prove(job, "tp=3")
    assert caught.value.exit_code == Exit.RULE
    assert not (job.parent / "runs").exists()


def test_a_job_that_diverges_on_one_device_is_told_so(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    done = in_process(
        capsys, "prove", str(job), "--layout", "dp=2,mbs=1", "--leg", "fp64", "--set", "optimizer.lr=1e30"
    )
    assert done.code == Exit.NONFINITE, done.err
    assert "one device diverges" in done.err
