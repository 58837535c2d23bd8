"""``cluster measure``: what it writes plans on any machine as this one would."""

from __future__ import annotations

import json
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from paceline.api import measure, measuring
from paceline.api.plan import resolve_cluster
from paceline.ledger.outcome import Exit, Refused
from paceline.plan.measured import Measured
from tests.plan.answers import ask, job, machine, measurement
from tests.plan.speed.test_cpu import row
from tests.tiny import tiny_widths

WIDTHS = tiny_widths()
BLOCK: dict[str, Any] = row(0.01) | {"kind": WIDTHS.to_dict()}


def taken(monkeypatch: pytest.MonkeyPatch, found: Measured) -> None:
    monkeypatch.setattr(measure, "measure_now", lambda *_: found)


def measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, dict[str, Any]]:
    taken(monkeypatch, replace(measurement(), torch="2.13.0", blocks=[BLOCK], cpu_share=0.97))
    file = tmp_path / "lab.toml"
    return file, measuring.measure_cluster(str(file), lambda *_: None)


def test_the_file_holds_what_was_measured_with_versions_and_a_hash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, short = measured(tmp_path, monkeypatch)
    table = tomllib.loads(file.read_text())["measured"]
    assert table["torch"] == "2.13.0"
    assert table["paceline"]
    assert table["hash"] == measuring.hash_of(table) == short["hash"]
    assert short["flops_per_s"] == {"fp32": 80e9}
    assert measuring.hash_of({**table, "dispatch_s": 1.0}) != table["hash"]
    assert json.dumps(short)


def test_a_plan_with_the_file_is_the_plan_of_the_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, _ = measured(tmp_path, monkeypatch)
    cluster = resolve_cluster(str(file))
    here = machine(cluster.devices, cluster.memory_bytes / 2**30)
    found = replace(measurement(), blocks=[BLOCK], cpu_share=0.97)
    there, home = ask(job(), cluster, measured=None), ask(job(), here, measured=found)
    assert (there.layout, there.best.step_s) == (home.layout, home.best.step_s)
    assert there.measured_at == home.measured_at != ""


def test_a_catalogue_machine_is_not_called_measured() -> None:
    assert ask(job(), "2xCPU").measured_at == ""


@pytest.mark.parametrize("out", ["lab.json", "nowhere/lab.toml", "folder.toml"])
def test_what_cannot_be_written_is_refused_before_anything_is_measured(
    out: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder.toml").mkdir()
    monkeypatch.setattr(measure, "measure_now", lambda *_: pytest.fail("measured"))
    with pytest.raises(Refused) as caught:
        measuring.measure_cluster(out, lambda *_: None)
    assert caught.value.exit_code == Exit.USAGE
    assert caught.value.use == "--out lab.toml"
