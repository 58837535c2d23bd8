"""What ``start.py`` starts: a rank that takes one optimizer step and says so.

As a program it is one launcher: ``python -m benchmarks.first_step RANKS FOLDER`` prints a line when every
rank has stepped. One rank runs in the calling process, without groups, as ``single`` does; like it, it
imports FSDP2.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any


def run(
    payload: dict[str, Any],
    place: Any,
    emit: Callable[[dict[str, Any]], None],
    stop: Callable[[], str | None],
) -> dict[str, Any]:
    import torch
    from torch import nn
    from torch.distributed.fsdp import fully_shard  # noqa: F401 (each rank of a real run imports it)

    layers = [nn.Linear(256, 256) for _ in range(4)]
    model = nn.Sequential(*layers)
    world = _shard(model, layers, place) if place.world_size > 1 else None
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    model(torch.randn(8, 256)).square().sum().backward()
    optimizer.step()
    emit({"kind": "event", "event": "first step"})
    if world is not None:
        world.close()
    return {}


def _shard(model: Any, layers: list[Any], place: Any) -> Any:
    from torch.distributed.fsdp import fully_shard

    from paceline.deliver.wire.record import CallRecorder
    from paceline.deliver.wire.slot import Slot
    from paceline.deliver.wire.world import open_world

    world = open_world(place, "cpu", CallRecorder(None, Slot(place.slot, place.rank)), place.timeout_s)
    mesh = world.mesh({"fsdp": place.world_size})
    for part in (*layers, model):
        fully_shard(part, mesh=mesh)
    return world


def main(ranks: int, folder: Path) -> None:
    from paceline.launch.local import run_here, run_ranks

    stepped: set[int] = set()

    def on_message(rank: int, row: dict[str, Any]) -> None:
        if row.get("event") == "first step":
            stepped.add(rank)
            if len(stepped) == ranks:
                print("first step", flush=True)

    entry = "benchmarks.first_step:run"
    if ranks == 1:
        run_here(entry, {}, logs=folder, on_message=on_message)
    else:
        run_ranks(entry, {}, world_size=ranks, logs=folder, on_message=on_message)


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
