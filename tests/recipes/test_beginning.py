"""Imported weights are saved as a run that starts from them would save its step 0: every shard, byte for byte."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from paceline.api.matched import matched
from paceline.plan.layout import Layout
from paceline.recipes.beginning import Beginning, first_checkpoint
from paceline.recover import checkpoint
from paceline.recover.export import Entry, export
from paceline.recover.foreign import Imported, Weights
from paceline.recover.manifest import NAME
from tests.pool import RankPool
from tests.recipes.checkpoint_cases import IDENTITY
from tests.recipes.test_reshard import EXPERTS, TIED, _run
from tests.tiny import tiny_job, tiny_widths

STEP = "step-00000000"
SGD = {"optimizer__name": "sgd", "optimizer__momentum": 0.9}


@pytest.mark.parametrize(
    ("features", "layout", "precision", "changes"),
    [
        (TIED, "single", "fp32", {}),
        (TIED, "fsdp=2,tp=2", "fp64", {}),
        (TIED, "dp=2,pp=2", "fp32", SGD),
        (EXPERTS, "fsdp=2,ep=2", "fp64", {}),
        (EXPERTS, "tp=2,pp=2,ep=2", "bf16", {"optimizer__weight_decay": 0.0}),
    ],
)
def test_step_0_is_the_one_that_real_ranks_save(
    ranks: RankPool,
    tmp_path: Path,
    features: dict[str, Any],
    layout: str,
    precision: str,
    changes: dict[str, Any],
) -> None:
    widths = tiny_widths(**features)
    job = tiny_job(train__precision=precision, **changes)
    arguments = {"folder": str(tmp_path / "real"), "job": job, "widths": widths, "precision": precision}
    _run(ranks, "save_first", layout, arguments)
    real = tmp_path / "real" / STEP
    table = checkpoint.open_manifest(real)
    entries = [Entry(n.removeprefix("model/"), n) for n in table.tensors if n.startswith("model/")]
    export(real, tmp_path / "weights", entries, {}, most_file_bytes=30_000)

    start = Beginning.of(job, widths, precision)
    with Weights(tmp_path / "weights") as weights:
        keys, whose = matched(weights, widths, start)
        tensors = start.tensors(keys)
        nbytes = first_checkpoint(
            tmp_path / "alone", Imported(weights, tensors), start, tensors,
            job=job, widths=widths, layout=Layout.parse(layout), steps=30, identity=IDENTITY,
        )  # fmt: skip
    assert whose == "own"
    assert nbytes == sum(t.nbytes for t in table.tensors.values())
    ours = tmp_path / "alone" / STEP
    assert checkpoint.verify(ours) == []
    assert checkpoint.latest(tmp_path / "alone") == ours
    for file in real.glob("*.safetensors"):
        assert (ours / file.name).read_bytes() == file.read_bytes(), file.name
    found, expected = (json.loads((folder / NAME).read_text()) for folder in (ours, real))
    for key in expected.keys() - {"created", "hash"}:
        assert found[key] == expected[key], key
