"""Rows of the fault log about low precision and parameters that are not used: ROPE BF16 SYNC FRZ."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from paceline.compute.models.rope import RotaryTables
from paceline.deliver import cp
from paceline.deliver.mesh import build_mesh
from paceline.plan.layout import Layout
from paceline.recipes.assemble import assemble
from tests.deliver.traffic import expected
from tests.faults.open_rows_cases import given, train
from tests.faults.open_rows_late_cases import alone
from tests.pool import RankPool
from tests.recipes.parity_cases import CPU
from tests.tiny import tiny_job, tiny_widths

CASES = "tests.faults.open_rows_cases:"


@pytest.mark.parametrize("scaling", [None, {"rope_type": "linear", "factor": 4.0}], ids=["plain", "scaled"])
def test_b020_a_longer_batch_after_training_finds_exact_tables(scaling: dict[str, Any] | None) -> None:
    """The assembled model in bf16: 16, then 512, then 4,096 tokens; and positions as a context shard has them."""
    widths = tiny_widths(rope_scaling=scaling)
    built = assemble(tiny_job(), widths, "bf16", build_mesh(Layout(), 0, None), CPU)
    model = built.models[0]
    model(torch.zeros(1, 16, dtype=torch.int64), targets=torch.zeros(1, 16, dtype=torch.int64)).backward()
    tables = model.rotary
    assert isinstance(tables, RotaryTables)
    for length in (512, 4096):
        with torch.no_grad():
            model(torch.zeros(1, 512, dtype=torch.int64))
        angle = torch.arange(length).double()[:, None] * 10000.0 ** (-torch.arange(4).double() / 4)
        angle /= scaling["factor"] if scaling else 1.0
        cos, sin = tables.get(length, torch.device("cpu"), torch.bfloat16)
        assert cos.dtype == sin.dtype == torch.float32
        assert float((cos[:length, :4].double() - angle.cos()).abs().max()) < 1e-7
        assert float((sin[:length, :4].double() - angle.sin()).abs().max()) < 1e-7
        row = {n: torch.zeros(1, length, dtype=torch.int64) for n in ("tokens", "targets")}
        positions = cp.take(row, 2, 1)["positions"]
        assert not positions.is_floating_point()
        part, _ = tables.at(positions, torch.bfloat16, length)
        assert float((part[0, :, :4].double() - angle.cos()[positions[0]]).abs().max()) < 1e-7


def test_b060_a_tiny_rate_moves_bf16_as_it_moves_fp32(ranks: RankPool) -> None:
    """200 steps at 6e-7: the weights are kept in fp32 on every layout, and only computed with in bf16."""
    arguments = given(200, rows=2, num_hidden_layers=1) | {"job": tiny_job(optimizer__lr=6e-7)}
    moved = {}
    for precision in ("bf16", "fp32"):
        found = train(None, layout="single", mbs=2, **arguments, precision=precision)
        moved[precision] = {n: found["weights"][n] - w for n, w in found["start"].items()}
        assert found["dtypes"] == {"torch.float32"}
    changed = {p: sum(int((change != 0).sum()) for change in moved[p].values()) for p in moved}
    assert changed["bf16"] > 0.99 * changed["fp32"] > 10_000
    for name, wanted in moved["fp32"].items():
        assert float(moved["bf16"][name].norm()) == pytest.approx(float(wanted.norm()), rel=0.05), name
    layouts = ["fsdp=2", "fsdp=2:zero1", "tp=2", "pp=2", "dp=2"]
    runs = [{**given(1), "layout": x, "mbs": 2, "precision": "bf16", "gather": False} for x in layouts]
    for found in ranks(2).run(f"{CASES}several", timeout_s=100, runs=runs)[0]:
        assert found["dtypes"] == {"torch.float32"}


@pytest.mark.parametrize("layout", ["single", "fsdp=2"])
def test_b061_weight_decay_is_not_lost_in_bf16(ranks: RankPool, layout: str) -> None:
    """lr 1e-4, decay 0.01, no valid target and so a gradient of zero, 100 steps: matrices shrink, the others do not."""
    arguments = given(1, rows=2, num_hidden_layers=1)
    batch = arguments["batches"][0]
    batch["targets"] = torch.full_like(batch["targets"], -100)
    arguments["batches"] = [batch] * 100
    job = tiny_job(optimizer__lr=1e-4, optimizer__weight_decay=0.01)
    arguments |= {"job": job, "layout": layout, "mbs": 1, "precision": "bf16"}
    wide = train(None, **arguments | {"layout": "single", "precision": "fp32"})
    if layout == "single":
        found = train(None, **arguments)
    else:
        found = ranks(2).run(f"{CASES}several", timeout_s=100, runs=[arguments])[0][0]
    for name, start in wide["start"].items():
        fall, wanted = (1 - float(run["weights"][name].norm() / start.norm()) for run in (found, wide))
        assert fall == pytest.approx(wanted, rel=0.01, abs=1e-12), name
        assert wanted == pytest.approx(1e-4 if start.ndim > 1 else 0.0, rel=0.05), name


# torch refuses to reduce bf16 beside accumulated fp32, and cannot look at weights that it has not gathered yet.
# No decoder of this version has such weights: each forward uses all of them.
LATE = ["dp=2", "fsdp=2", "fsdp=2:zero2", "fsdp=2:zero1"]


def compare_late(ranks: RankPool, layout: str, late: str) -> None:
    size = Layout.parse(layout).world_size
    wanted = alone(size, late)
    for found in ranks(size).run(
        "tests.faults.open_rows_late_cases:late", timeout_s=60, layout=layout, late=late
    ):
        for precision, limit in (("float32", 1e-6), ("bfloat16", 0.03)):
            for got, exact in zip(found[precision], wanted, strict=True):
                assert got.dtype == torch.float32
                assert float((got - exact).norm()) < limit * float(exact.norm())


@pytest.mark.parametrize("layout", LATE)
def test_b063_a_layer_that_is_used_in_the_last_micro_batch_only(ranks: RankPool, layout: str) -> None:
    """Compute in bf16, reduce in fp32, two micro-batches."""
    compare_late(ranks, layout, "layer")


@pytest.mark.parametrize("layout", LATE)
def test_b063_half_a_layer_that_is_used_in_the_last_micro_batch_only(ranks: RankPool, layout: str) -> None:
    """The other half has accumulated in fp32 by then, and both go in one reduction."""
    compare_late(ranks, layout, "half")


@pytest.mark.parametrize("zero", ["zero3", "zero2", "zero1"])
def test_b067_b068_a_layer_that_is_never_called_under_every_stage(ranks: RankPool, zero: str) -> None:
    """No switch, nothing to declare: it has no gradient or zero, and the others have the right one."""
    case = "tests.deliver.traffic:one_step"
    for size, layout in ((2, f"fsdp=2:{zero}"), (4, f"dp=2,fsdp=2:{zero}")):
        found = ranks(size).run(case, layout=layout, micro_batches=2, skip=2, timeout_s=60)
        for result in found:
            got, wanted = result["gradients"], expected(size, 2, skip=2)
            assert got[2] is None or not bool(got[2].any())
            for number in (0, 1):
                assert torch.allclose(got[number], wanted[number], rtol=1e-5)
