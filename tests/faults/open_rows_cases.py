"""What the ranks of the fault log's rows run: steps of the assembled model on given global batches, and what it logs.

Every case of a row is a :func:`train` of plain arguments, so that several share one round of ranks (:func:`several`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from paceline.deliver import cp
from paceline.deliver.held import slice_of
from paceline.deliver.mesh import Mesh, build_mesh
from paceline.deliver.wire.world import World
from paceline.job import Job
from paceline.job.presets import ModelWidths
from paceline.ledger.spans import Ledger
from paceline.plan.layout import Layout
from paceline.recipes.assemble import Assembly, assemble
from paceline.recipes.evaluate import held_out_loss
from paceline.update.every_step import Counts, EveryStep
from paceline.update.telemetry import RunFacts, Telemetry
from tests.pool import RankPool
from tests.recipes.parity_cases import CPU
from tests.tiny import LENGTH, ragged_batches, share_of, tiny_job, tiny_widths

Batch = dict[str, Tensor]
LIMIT = 1e-9


def given(steps: int = 2, rows: int = 8, documents: bool = False, **changes: Any) -> dict[str, Any]:
    """Arguments of :func:`train`: TINY with these widths on ragged batches."""
    batches = ragged_batches(steps, documents=documents, rows=rows)
    return {"job": tiny_job(), "widths": tiny_widths(**changes), "batches": batches}


def several(world: World, *, runs: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """One :func:`train` after the other in the same world."""
    return [train(world, **run) for run in runs]


def train(
    world: World | None,
    *,
    job: Job,
    widths: ModelWidths,
    layout: str,
    batches: Sequence[Batch],
    mbs: int,
    precision: str = "fp64",
    poisoned: bool = False,
    noise: bool = False,
    experts: Sequence[int] = (),
    gather: bool = True,
) -> dict[str, Any]:
    """A step on each of the batches.

    Args:
        poisoned: new memory is full of NaN.
        noise: random numbers are drawn between the steps, other ones on every rank.
        experts: sigmoid routers send every token to these.
        gather: whole first gradients (as the optimizer saw them) and last weights.

    Returns:
        By name: ``losses``, ``norms``, ``rows`` (as metrics.jsonl would have them, of rank 0), ``eval`` (of the first
        batch, before training), ``first``, ``weights``, ``dtypes``.
    """
    torch.use_deterministic_algorithms(poisoned)  # with its default, new memory is filled with NaN
    try:
        mesh = build_mesh(Layout.parse(layout), 0 if world is None else world.rank, world)
        built = assemble(job, widths, precision, mesh, CPU)
        send_all(built, experts)
        return _train(built, job, mesh, batches, mbs, noise, gather)
    finally:
        torch.use_deterministic_algorithms(False)


def _train(
    built: Assembly, job: Job, mesh: Mesh, batches: Sequence[Batch], mbs: int, noise: bool, gather: bool
) -> dict[str, Any]:
    policy = built.policy(job, mesh, CPU, Ledger(None))
    first: dict[str, Tensor] = {}
    original = built.optimizer.step

    def keep_gradients() -> None:
        if gather and not first:
            first.update(gathered(built, mesh, [p.grad for p in built.parameters]))
        original()

    built.optimizer.step = keep_gradients  # type: ignore[method-assign]
    found: dict[str, Any] = {"losses": [], "norms": [], "rows": [], "first": first}
    passes = built.passes(Ledger(None))
    held_out = [(b, 0) for b in share_for(mesh, batches[0], mbs)]
    found["eval"] = held_out_loss(built.delivery, passes, held_out, mesh, CPU)
    if mesh.world_size == 1:
        found["start"] = gathered(built, mesh, [p.detach() for p in built.parameters])
    telemetry = logging(mesh, found["rows"])
    for batch in batches:
        if noise:
            torch.rand(3 * mesh.rank + 1)
        step(policy, telemetry, mesh, batch, mbs, job.optimizer.lr, found)
    telemetry.release(tuple(mesh.sum(torch.tensor(telemetry.carried, dtype=torch.float64)).tolist()))
    if gather:
        found["weights"] = gathered(built, mesh, [p.detach() for p in built.parameters])
    found["dtypes"] = {str(p.dtype) for p in built.parameters}
    return found


def gathered(built: Assembly, mesh: Mesh, tensors: Sequence[Tensor | None]) -> dict[str, Tensor]:
    """Whole tensors by name out of every rank's slices, on every rank, in two messages.

    Ranks that hold the same elements must agree to the last bit, and every element must be held, or this raises.
    """
    shapes = built.whole.parameters
    low = {name: torch.full(shape, torch.inf).double() for name, shape in shapes.items()}
    high = {name: -tensor for name, tensor in low.items()}
    for name, tensor in zip(built.names, tensors, strict=True):
        if tensor is not None:
            part = slice_of(tensor.detach(), built.held[name])
            at = tuple(slice(a, a + n) for a, n in zip(part.starts, part.local.shape, strict=True))
            low[name][at] = high[name][at] = part.local.double()
    ends = [torch.cat([t.flatten() for t in end.values()]) for end in (low, high)]
    if mesh.world_size > 1:
        dist.all_reduce(ends[0], op=dist.ReduceOp.MIN, group=mesh.everyone)
        dist.all_reduce(ends[1], op=dist.ReduceOp.MAX, group=mesh.everyone)
    sizes = [tensor.numel() for tensor in low.values()]
    found = {}
    for (name, shape), least, most in zip(shapes.items(), *(end.split(sizes) for end in ends), strict=True):
        assert torch.isfinite(least).all(), f"{name}: no rank holds some elements, or they are not finite"
        assert torch.equal(least, most), f"{name}: holders disagree"
        found[name] = least.view(shape)
    return found


def step(
    policy: EveryStep,
    telemetry: Telemetry,
    mesh: Mesh,
    batch: Batch,
    mbs: int,
    rate: float,
    found: dict[str, Any],
) -> None:
    """One step of this rank's share; loss and norm go to ``found``, and the row to the telemetry."""
    share = share_for(mesh, batch, mbs)
    valid = float(
        sum(int((b["targets"] >= 0).sum()) for b in share_of(batch, mesh.data_rank, mesh.data_degree, mbs))
    )
    counts = Counts(valid, 0.0, float(len(batch["tokens"])) / mesh.data_degree)
    result = policy.step(share, counts, rate, telemetry.carried)
    assert result.verdict is None, result
    found["losses"].append(result.loss)
    found["norms"].append(result.grad_norm)
    telemetry.step(len(found["losses"]), rate, result, {("compute", "forward"): 1.0})


def logging(mesh: Mesh, rows: list[dict[str, Any]]) -> Telemetry:
    """What writes metrics.jsonl, into ``rows``."""
    facts = RunFacts(mesh.world_size, LENGTH, 1.0, None, 1, pipeline=(mesh.at["pp"], mesh.layout.pp))
    return Telemetry(facts, 1, rows.append, lambda: 1.0)


def share_for(mesh: Mesh, batch: Batch, mbs: int) -> list[Batch]:
    """This rank's micro-batches, and of a context shard its own part of each sequence."""
    share = share_of(batch, mesh.data_rank, mesh.data_degree, mbs)
    if mesh.layout.cp > 1:
        share = [cp.take(b, mesh.layout.cp, mesh.at["cp"]) for b in share]
    return share


@torch.no_grad()
def send_all(built: Assembly, experts: Sequence[int]) -> None:
    """Every token of every (sigmoid) router goes to these experts."""
    for model in built.models:
        for name, buffer in model.named_buffers():
            if experts and name.endswith("e_score_correction_bias"):
                buffer[list(experts)] = 100.0


def differences(found: dict[str, Any], expected: dict[str, Any], limit: float = LIMIT) -> dict[str, float]:
    """What differs by more than ``limit``, relative to the tensor's own norm or a floor (DESIGN §4)."""
    errors: dict[str, float] = {}
    largest = max((float(g.norm()) for g in expected["first"].values()), default=0.0)
    for what, floor in (("first", 1e-4 * largest), ("weights", 1e-4)):
        for name, tensor in expected.get(what, {}).items():
            error = float((found[what][name] - tensor).norm()) / max(float(tensor.norm()), floor)
            errors[f"{what} of {name}"] = error
    for what in ("losses", "norms"):
        assert len(found[what]) == len(expected[what])
        for number, (a, b) in enumerate(zip(found[what], expected[what], strict=True), start=1):
            errors[f"{what} of step {number}"] = abs(a - b) / max(abs(b), 1e-300)
    errors["eval"] = abs(found["eval"]["loss"] - expected["eval"]["loss"]) / max(
        expected["eval"]["loss"], 1e-300
    )
    for number, (a, b) in enumerate(zip(found["rows"], expected["rows"], strict=True), start=1):
        for key in ("loss", "grad_norm", "tokens", "samples", "aux_loss"):
            if key in b:
                errors[f"row {number}: {key}"] = abs(a[key] - b[key]) / max(abs(b[key]), 1e-300)
    return {name: error for name, error in errors.items() if not error <= limit}


def agree(
    ranks: RankPool,
    layouts: Sequence[str],
    *,
    limit: float = LIMIT,
    timeout_s: float = 110.0,
    **arguments: Any,
) -> dict[str, Any]:
    """One device and each of ``layouts``, all of one world size, train the same; what the one device found."""
    expected = train(None, layout="single", **{**arguments, "mbs": len(arguments["batches"][0]["tokens"])})
    size = Layout.parse(layouts[0]).world_size
    runs = [{**arguments, "layout": layout} for layout in layouts]
    results = ranks(size).run(f"{__name__}:several", timeout_s=timeout_s, runs=runs)
    for number, layout in enumerate(layouts):
        for rank in {0, size - 1}:
            assert differences(results[rank][number], expected, limit) == {}, f"{layout}, rank {rank}"
        for rank in range(size):
            assert results[rank][number]["norms"] == results[0][number]["norms"], (
                "ranks clip by different norms"
            )
    return expected
