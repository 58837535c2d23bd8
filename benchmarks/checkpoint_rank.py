"""One rank of the checkpoint benchmark."""

from __future__ import annotations

import multiprocessing
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType
from torch.distributed.fsdp import fully_shard

from paceline.deliver.device import open_device
from paceline.deliver.wire.record import CallRecorder
from paceline.deliver.wire.slot import Slot
from paceline.deliver.wire.world import open_world
from paceline.ledger.spans import Ledger
from paceline.recover.agree import Ranks
from paceline.recover.background import Background
from paceline.recover.load import read
from paceline.recover.state import TrainState, collect

WIDTH = 2048


def run(payload: dict[str, Any], place: Any, emit: Any, stop: Any) -> dict[str, list[float]]:
    """Seconds of each thing by round."""
    # DCP's writer process is a child of multiprocessing, which a daemon may not have.
    multiprocessing.current_process()._config["daemon"] = False  # type: ignore[attr-defined]
    device = open_device("cpu", place.local_rank, threads=place.threads, deterministic=False)
    world = open_world(
        place, device.kind, CallRecorder(Ledger(None), Slot(place.slot, place.rank)), place.timeout_s
    )
    try:
        return _Bench(Path(payload["folder"]), float(payload["gb"])).rounds(int(payload["rounds"]))
    finally:
        world.close()


class _Bench:
    def __init__(self, folder: Path, gb: float) -> None:
        layers = max(1, round(gb * 1e9 / (3 * 4 * WIDTH * WIDTH)))
        with torch.device("meta"):
            model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(layers)))
        for layer in model:
            fully_shard(layer)
        fully_shard(model)
        model.to_empty(device="cpu")
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
        self.model, self.folder = model, folder
        for number, parameter in enumerate(model.parameters()):
            parameter.detach().to_local().normal_(generator=torch.Generator().manual_seed(number))
            parameter.grad = torch.ones_like(parameter)
        self.optimizer.step()
        self.optimizer.zero_grad()
        # DCP needs gloo for the CPU side of its asynchronous save; both get the same kind of group.
        self.group = dist.new_group(backend="gloo")
        self.saver = Background(
            folder / "ours", Ranks(dist.group.WORLD), layout="fsdp", identity={"run_id": "bench"}, keep=1
        )
        (folder / "ours").mkdir(exist_ok=True)

    def state(self, step: int) -> TrainState:
        return collect(self.model, self.optimizer, {"step": step})

    def tensors(self) -> dict[str, torch.Tensor]:
        return self.state(0).tensors

    def rounds(self, count: int) -> dict[str, list[float]]:
        times: dict[str, list[float]] = {}
        for number in range(count + 1):
            one = self._round(number + 1)
            if number:  # the first warms up all of them
                for what, seconds in one.items():
                    times.setdefault(what, []).append(seconds)
        self.saver.close()
        return times

    def _round(self, step: int) -> dict[str, float]:
        found: dict[str, float] = {}
        sync = self.folder / "dcp-sync"
        self._clear(sync)
        found["dcp save_s"] = _timed(lambda: dcp.save(self.tensors(), checkpoint_id=sync))
        for name, kind in (
            ("async", AsyncCheckpointerType.THREAD),
            ("process", AsyncCheckpointerType.PROCESS),
        ):
            path = self.folder / f"dcp-{name}"
            self._clear(path)
            began = _now()
            future = dcp.async_save(
                self.tensors(), checkpoint_id=path, process_group=self.group, async_checkpointer_type=kind
            )
            found[f"dcp {name} blocked_s"] = time.monotonic() - began
            future.result()
            dist.barrier()
            found[f"dcp {name} saved_s"] = time.monotonic() - began
        began = _now()
        self.saver.begin(self.state(step))
        found["paceline blocked_s"] = time.monotonic() - began
        self.saver.wait()
        found["paceline saved_s"] = time.monotonic() - began
        (saved,) = self.saver.poll()
        assert saved.step == step
        found["paceline write_s"] = saved.write_s
        into = self.tensors()
        found["dcp load_s"] = _timed(lambda: dcp.load(into, checkpoint_id=sync))
        path, mine = self.folder / "ours" / f"step-{step:08d}", self.state(0)
        found["paceline load_s"] = _timed(lambda: read(path, mine, world=dist.group.WORLD))
        return found

    def _clear(self, path: Path) -> None:
        dist.barrier()
        if dist.get_rank() == 0:
            shutil.rmtree(path, ignore_errors=True)
        dist.barrier()


def _now() -> float:
    dist.barrier()
    return time.monotonic()


def _timed(work: Callable[[], object]) -> float:
    began = _now()
    work()
    dist.barrier()
    return time.monotonic() - began
