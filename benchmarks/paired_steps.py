"""One rank of ``step_overhead.py``: two models of the same weights, one stepped by us, one by hand, in turn."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from paceline.compute.models.decoder import Decoder
from paceline.deliver.device import Device
from paceline.deliver.mesh import build_mesh
from paceline.deliver.wire.record import CallRecorder
from paceline.deliver.wire.slot import Slot
from paceline.deliver.wire.world import open_world
from paceline.job import Job
from paceline.job.presets import ModelWidths
from paceline.ledger.spans import Ledger
from paceline.plan.layout import Layout
from paceline.recipes.assemble import Assembly, assemble
from paceline.update.due import Due
from paceline.update.every_step import Counts
from paceline.update.loop import Hooks, train
from paceline.update.schedule import Schedule
from paceline.update.telemetry import RunFacts, Telemetry

WARM_UP = 3
LENGTH = 256
ROWS = 8  # global batch: with these widths a step takes 0.3 s or more on two cores
CPU = Device("cpu", 0, "gloo")
WIDTHS = ModelWidths(
    vocab_size=2048, hidden_size=256, intermediate_size=704, num_hidden_layers=6,
    num_attention_heads=8, num_key_value_heads=4, head_dim=32, tie_word_embeddings=True,
)  # fmt: skip


def run(payload: dict[str, Any], place: Any, emit: Any, stop: Any) -> dict[str, Any]:
    """Seconds of each of our steps and of each step by hand, alternated, on this rank."""
    layout = Layout.parse(payload["layout"])
    ledger = Ledger(Path(payload["folder"]) / f"ledger-{place.rank}.jsonl", place.rank)
    recorder = CallRecorder(ledger, Slot(place.slot, place.rank) if place.slot else None)
    world = open_world(place, "cpu", recorder, place.timeout_s) if place.world_size > 1 else None
    job = Job(model="tiny", data={"train": "python-stdlib"})
    mesh = build_mesh(layout, place.rank, world)
    batch = _batch(place.rank, layout.data_degree)
    by_hand = _by_hand(layout, job, batch)
    pairs = payload["pairs"] + WARM_UP
    seconds: dict[str, list[float]] = {"ours_s": [], "by_hand_s": []}

    built = assemble(job, WIDTHS, "fp32", mesh, CPU)
    schedule = Schedule("cosine", 3e-4, pairs, 2, 0, 0.1)
    telemetry = Telemetry(
        RunFacts(mesh.world_size, LENGTH, 1e8, 1e11, 1000), 0, lambda row: None, time.monotonic
    )
    counts = Counts(
        float(batch["tokens"].numel()), float(batch["tokens"].numel()), float(len(batch["tokens"]))
    )
    began = 0.0

    def batches(step: int) -> tuple[list[dict[str, torch.Tensor]], Counts]:
        """Between our steps, one by hand: what our step cost ends where its batch for the next begins."""
        nonlocal began
        now = time.perf_counter()
        if step > 1:
            seconds["ours_s"].append(now - began)
        _together(world)
        before = time.perf_counter()
        by_hand()
        seconds["by_hand_s"].append(time.perf_counter() - before)
        _together(world)
        began = time.perf_counter()
        return [batch], counts

    never = Due(job.checkpoint.keep_every, pairs, 100.0, time.monotonic)
    hooks = Hooks(batches, lambda step: None, lambda step: 0.0, lambda: None, recorder.at_step)
    train(
        built.policy(job, mesh, CPU, ledger), schedule, hooks, telemetry, ledger,
        rank=place.rank, start=0, eval_due=never, save_due=never,
    )  # fmt: skip
    if world is not None:
        world.close()
    kept = slice(WARM_UP, pairs - 1)
    return {name: values[kept] for name, values in seconds.items()}


def _together(world: Any) -> None:
    """Both kinds of step begin with the ranks level, so that neither pays for the other's lateness."""
    if world is not None:
        dist.barrier()


def _by_hand(layout: Layout, job: Job, batch: dict[str, torch.Tensor]) -> Any:
    """The shortest loop over the same model: a function that takes one step."""
    model: nn.Module = Decoder(WIDTHS)
    plain = build_mesh(Layout.parse("single"), 0, None)
    start: Assembly = assemble(job, WIDTHS, "fp32", plain, CPU)
    model.load_state_dict(start.models[0].state_dict())
    if layout.degree("dp") > 1:
        model = DistributedDataParallel(model)
    if layout.degree("fsdp") > 1:
        mesh = init_device_mesh("cpu", (layout.degree("fsdp"),))
        for block in model.layers.values():  # type: ignore[operator]
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True
    )

    def step() -> None:
        logits = model(batch["tokens"])
        loss = F.cross_entropy(logits.flatten(0, 1), batch["targets"].flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        loss.item()

    return step


def _batch(rank: int, degree: int) -> dict[str, torch.Tensor]:
    gen = torch.Generator().manual_seed(rank)
    stream = torch.randint(0, WIDTHS.vocab_size, (ROWS // degree, LENGTH + 1), generator=gen)
    return {"tokens": stream[:, :-1].contiguous(), "targets": stream[:, 1:].contiguous()}
