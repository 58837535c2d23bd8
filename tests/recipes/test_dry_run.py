"""The recipe: what it refuses after its first part, and what it says it assumed."""

from __future__ import annotations

import json

import pytest

from paceline.launch.place import Place
from paceline.ledger.outcome import Exit, Refused
from paceline.recipes.dry_run import dry_run, run
from tests.recipes.dry.test_extend import deep
from tests.recipes.dry.test_step import EXPERTS, ask
from tests.tiny import tiny_job, tiny_widths


def test_a_step_that_takes_too_long_is_refused_before_it_is_run() -> None:
    said: list[str] = []
    with pytest.raises(Refused) as caught:
        dry_run(deep("single"), said.append, limit_s=1e-3)
    assert caught.value.exit_code == Exit.USAGE
    assert str(caught.value.use).startswith("--set train.global_batch_size=")
    assert said == ["4 layers, 2 micro-batches …"]


def test_balanced_routing_is_said_where_it_was_assumed() -> None:
    found = dry_run(ask("single", widths=tiny_widths(**EXPERTS)), lambda _: None)
    assert any(line.startswith("balanced routing") for line in found.assumed)
    plain = dry_run(ask("single"), lambda _: None)
    assert not any("routing" in line for line in plain.assumed)


def test_as_a_rank_it_speaks_json() -> None:
    rows: list[object] = []
    payload = {
        "job": tiny_job().to_dict(), "widths": tiny_widths().to_dict(), "layout": "fsdp=1024,mbs=1", "rank": 1023,
        "precision": "bf16", "rows": 1, "count": 1,
    }  # fmt: skip
    found = run(json.loads(json.dumps(payload)), Place.alone("here", 1, 60.0, 0), rows.append, lambda: None)
    assert json.loads(json.dumps(found))["kind_of_evidence"] == "fake cluster"
    assert found["at"]["fsdp"] == 1023
    assert {(row["axis"], row["op"]) for row in found["messages"]} == {
        ("fsdp", "all_gather"), ("fsdp", "reduce_scatter"), ("step", "all_reduce"),
    }  # fmt: skip
    assert rows
