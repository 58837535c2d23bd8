"""The measurement file: only this machine's, only this schema; interpolation and merging."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from paceline.plan.measured import (
    SCHEMA,
    Measured,
    fastest_precision,
    interpolate,
    machine_key,
    measurement_path,
    merged,
    worlds,
)
from tests.plan.answers import measurement


def test_a_file_of_another_machine_schema_or_torn_is_not_used(tmp_path: Path) -> None:
    path = measurement_path(tmp_path, "k")
    assert Measured.read(path) is None
    path.parent.mkdir()
    whole = {"schema": SCHEMA, "key": "k", "matmul": [{"precision": "fp32"}], "process_bytes": 5}
    path.write_text(json.dumps(whole))
    found = Measured.read(path, "k")
    assert found is not None
    assert found.process_bytes == 5
    assert Measured.read(path, "other") is None
    path.write_text(json.dumps(whole | {"schema": 99}))
    assert Measured.read(path, "k") is None
    path.write_text('{"schema": 2, "matm')
    assert Measured.read(path, "k") is None


def test_the_key_tells_machines_apart_and_not_bytes() -> None:
    assert machine_key("cpu", 2, 23 << 30) == machine_key("cpu ", 2, (23 << 30) + 12345)
    assert (
        len(
            {
                machine_key("cpu", 2, 23 << 30),
                machine_key("cpu", 4, 23 << 30),
                machine_key("gpu", 2, 23 << 30),
            }
        )
        == 3
    )


def test_interpolation_is_log_log_and_extends_upwards_only() -> None:
    line = [(1.0, 1.0), (100.0, 10.0)]
    assert interpolate(line, 10.0) == pytest.approx(10**0.5)
    assert interpolate(line, 0.1) == 1.0
    assert interpolate(line, 1000.0) == 10.0
    assert interpolate(line, 1000.0, extend=True) == 100.0


def test_the_nearest_conditions_are_used() -> None:
    found = measurement(alone=80e9, shared=30e9)
    assert found.matmul_flops("fp32", 512, 2, 1) == 80e9
    assert found.matmul_flops("fp32", 512, 1, 2) == 30e9
    assert found.matmul_flops("fp32", 512, 1, 4) == 30e9
    assert found.matmul_flops("fp64", 512, 1, 1) is None
    assert found.collective_s("all_reduce", 2, 1 << 16) == pytest.approx(1e-4 + (1 << 16) / 1e9)
    assert found.collective_s("all_to_all", 2, 1) is None


def test_auto_precision_is_the_faster_one() -> None:
    slow = Measured(
        matmul=[{"precision": "bf16", "flops_per_s": 1e9}, {"precision": "fp32", "flops_per_s": 8e10}]
    )
    fast = Measured(
        matmul=[{"precision": "bf16", "flops_per_s": 4e11}, {"precision": "fp32", "flops_per_s": 8e10}]
    )
    assert fastest_precision(slow) == "fp32"
    assert fastest_precision(fast) == "bf16"
    assert fastest_precision(None) == "fp32"
    both = [
        {
            "precision": p,
            "sequence_length": 8,
            "mbs": 1,
            "threads": 2,
            "processes": 1,
            "layer_s": s,
            "outer_s": 0.1,
        }
        for p, s in (("fp32", 1.0), ("bf16", 1.2))
    ]
    assert fastest_precision(replace(fast, blocks=both)) == "fp32", "products are not all of a step"
    assert fastest_precision(replace(slow, blocks=[both[0], both[1] | {"layer_s": 0.5}])) == "bf16"
    assert fastest_precision(replace(fast, blocks=both[:1])) == "bf16", "nothing to compare with"
    assert fastest_precision(None, cuda=True) == "bf16"


def test_worlds_share_the_cores() -> None:
    assert worlds(2) == [(1, 2, True), (2, 1, True), (4, 1, False)]
    assert worlds(1) == [(1, 1, True), (2, 1, False), (4, 1, False)]
    assert (8, 1, True) in worlds(8)


def test_merging_replaces_the_same_conditions_and_keeps_other_models() -> None:
    block = {"threads": 2, "processes": 1, "hidden_size": 64, "mbs": 1, "layer_s": 1.0, "outer_s": 1.0}
    other = block | {"hidden_size": 128}
    before = {
        "matmul": [
            {"threads": 2, "processes": 1, "flops_per_s": 1.0},
            {"threads": 1, "processes": 2, "flops_per_s": 2.0},
        ],
        "blocks": [block, other],
        "process_bytes": 7,
    }
    found = {
        "threads": 2,
        "processes": 1,
        "matmul": [{"threads": 2, "processes": 1, "flops_per_s": 3.0}],
        "blocks": [block | {"layer_s": 9.0}],
        "process_bytes": 5,
    }
    whole = merged(before, found)
    assert [row["flops_per_s"] for row in whole["matmul"]] == [2.0, 3.0]
    assert whole["blocks"] == [other, block | {"layer_s": 9.0}]
    assert whole["process_bytes"] == 7
