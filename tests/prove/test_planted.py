"""Whether a proof finds what is planted (``planted/``), and says what it is: the tensor, the axis, what it needs.

A faulty rank leads to exit 61; a change that is no fault leaves everything proven. ``make test`` runs a fixed part,
``make prove`` the rest (marker ``proof``).
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import paceline as pl
from paceline.api import trials
from tests.flow.corpus import write_job
from tests.prove.faults import ALONE, FAULTS, HARMLESS, IN_TESTS, LONG_DOCUMENTS, PATIENT, Fault


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A job whose rows have several documents each, and targets at the border of a vocabulary cut in four.

    257 bytes over four ranks: the second's first row is 65, "A". In ``long`` a row is a part of one document, and in
    ``some`` one of several rows has a border.
    """
    folder = tmp_path_factory.mktemp("planted")
    path = write_job(folder)
    long, some = folder / "long", folder / "some"
    long.mkdir()
    some.mkdir()
    for file in sorted((folder / "corpus").glob("*.txt")):
        text = file.read_text(encoding="utf-8").replace("times", "A")
        (long / file.name).write_text(text, encoding="utf-8")
        file.unlink()
        lines = text.splitlines(keepends=True)
        for first in range(0, len(lines), 10):
            (some / f"{file.stem}-{first:03d}.txt").write_text(
                "".join(lines[first : first + 10]), encoding="utf-8"
            )
        for number, line in enumerate(text.splitlines()[:40]):
            file.with_name(f"{file.stem}-{number:02d}.txt").write_text(f"{line}\n", encoding="utf-8")
    return path


def name_of(fault: Fault) -> str:
    return f"{fault.planted} {fault.layout}{' long' if fault.job is LONG_DOCUMENTS else ''}"


@pytest.mark.parametrize("fault", IN_TESTS, ids=name_of)
def test_it_is_found_and_named(job: Path, monkeypatch: pytest.MonkeyPatch, fault: Fault) -> None:
    monkeypatch.setattr(trials, "ENTRY", f"tests.prove.planted.{fault.planted}")
    changes = {**PATIENT, **fault.job}
    if "data.train" in changes:
        changes["data.train"] = str(job.parent / changes["data.train"])
    proof = pl.prove(job, fault.layout, leg=fault.leg, shrink=fault.shrink, set=changes)
    assert not proof.proven, "nobody has noticed"
    assert proof.exit_code == 61
    first = proof.first_difference
    assert first is not None
    said = f"{first.to_dict()}"
    assert set(first.together) == set(fault.needs), said
    assert first.axis in fault.axis, said
    assert first.what.startswith(fault.what), said
    assert re.fullmatch(fault.name or ".*", first.name), said
    assert first.step == fault.step, said
    assert re.search(fault.text, first.text), said
    assert fault.forward or "the forward does" not in first.text, said


@pytest.mark.proof
@pytest.mark.parametrize("fault", FAULTS, ids=name_of)
def test_the_rest_is_found_and_named(job: Path, monkeypatch: pytest.MonkeyPatch, fault: Fault) -> None:
    test_it_is_found_and_named(job, monkeypatch, fault)


@pytest.mark.proof
@pytest.mark.parametrize(("planted", "layout", "changes"), ALONE)
def test_less_than_a_fault_needs_is_proven(
    job: Path, monkeypatch: pytest.MonkeyPatch, planted: str, layout: str, changes: dict[str, Any]
) -> None:
    monkeypatch.setattr(trials, "ENTRY", f"tests.prove.planted.{planted}")
    proof = pl.prove(job, layout, leg="fp64", set={**PATIENT, **changes})
    assert proof.proven, proof.first_difference


def harmless(
    job: Path, monkeypatch: pytest.MonkeyPatch, planted: str, layout: str, changes: dict[str, Any], leg: str
) -> None:
    monkeypatch.setattr(trials, "ENTRY", f"tests.prove.planted.{planted}")
    proof = pl.prove(job, layout, leg=leg, set={**PATIENT, **changes})
    assert proof.proven, proof.first_difference
    assert proof.exit_code == 0


def test_another_order_of_sums_is_no_fault(job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    harmless(job, monkeypatch, *HARMLESS[0])


@pytest.mark.proof
@pytest.mark.parametrize(("planted", "layout", "changes", "leg"), HARMLESS[1:])
def test_what_is_no_fault_is_proven(
    job: Path, monkeypatch: pytest.MonkeyPatch, planted: str, layout: str, changes: dict[str, Any], leg: str
) -> None:
    harmless(job, monkeypatch, planted, layout, changes, leg)
