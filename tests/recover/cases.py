"""What the ranks of the recovery tests run: a small model with every awkward thing in it, on any layout."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.distributed.tensor import DTensor

from paceline.deliver.axes import deliver
from paceline.deliver.delivery import Part, Precision
from paceline.deliver.mesh import Mesh, build_mesh
from paceline.deliver.wire.world import World
from paceline.ledger.outcome import PacelineError
from paceline.plan.layout import Layout
from paceline.recover.load import read
from paceline.recover.save import save
from paceline.recover.state import TrainState, apply, collect
from paceline.recover.write import Saved

IDENTITY = {"run_id": "run-a", "job_hash": "j", "data_hash": "d", "tokenizer_hash": "t", "code_hash": "c"}
Values = dict[str, np.ndarray]


class Odd(nn.Module):
    """Rows that 4 ranks cut unevenly (11, 7) or leave a rank without (5, 1), a tied head, two buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 6)
        self.up = nn.Linear(6, 7)
        self.norm = nn.LayerNorm(7)
        self.down = nn.Linear(7, 6, bias=False)
        self.gate = nn.Linear(6, 5)
        self.back = nn.Linear(5, 6, bias=False)
        self.one = nn.Parameter(torch.ones(1))
        self.head = nn.Linear(6, 11, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("seen", torch.arange(3, dtype=torch.int64))
        self.register_buffer("cache", torch.zeros(2), persistent=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids)
        x = x + self.down(self.norm(self.up(x)).relu()) + self.back(self.gate(x).sigmoid()) * self.one
        return self.head(x)


class Run:
    """A model on a layout with its optimizer; ``world`` None is one process."""

    def __init__(self, world: World | None, layout: str, optimizer: str = "fused") -> None:
        rank = 0 if world is None else world.rank
        self.mesh: Mesh = build_mesh(Layout.parse(layout), rank, world)
        self.layout, self.world = layout, world
        self.model: nn.Module = Odd()
        with torch.no_grad():
            for name, p in self.model.named_parameters():
                p.copy_(_values(name, p.shape))
        units = [self.model.up, self.model.gate]
        delivery = deliver([Part(self.model, units)], self.mesh, Precision(torch.float32, torch.float32))
        self.model, self.module, self._before = delivery.model, delivery.module, delivery.before
        self.optimizer: torch.optim.Optimizer
        if optimizer == "sgd":
            self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)
        else:
            fused = optimizer == "fused"
            self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01, fused=fused)

    def train(self, first: int, last: int) -> None:
        for step in range(first, last):
            ids = (torch.arange(8).reshape(2, 4) * (step + 3)) % 11
            self._before(True, True)
            logits = self.module(ids)
            loss = nn.functional.cross_entropy(logits.flatten(0, 1), ids.flatten().roll(1)) / 4
            loss.backward()
            self.optimizer.step()
            self.optimizer.zero_grad()

    def state(self, **scalars: Any) -> TrainState:
        return collect(self.model, self.optimizer, scalars)

    def save(self, folder: Path, step: int, **options: Any) -> Saved:
        state = self.state(step=step, position=step * 8, seed=7)
        return save(folder, state, layout=self.layout, identity=IDENTITY, world=self.mesh.everyone, **options)

    def load(self, step_dir: Path) -> TrainState:
        state = self.state()
        read(step_dir, state, world=self.mesh.everyone)
        apply(state, self.model, self.optimizer)
        return state

    def spoil(self) -> None:
        """Fill everything with NaN, so that nothing can pass for loaded that was not."""
        with torch.no_grad():
            for tensor in collect(self.model, None).tensors.values():
                part = tensor.to_local() if isinstance(tensor, DTensor) else tensor
                part.fill_(float("nan") if part.is_floating_point() else -1)

    def gather(self) -> Values:
        """Every tensor whole, by torch's own gathering and not by ours."""
        out = {}
        for name, tensor in self.state().tensors.items():
            full = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
            out[name] = full.detach().clone().numpy()
        return out


def _values(name: str, shape: torch.Size) -> torch.Tensor:
    seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "little")
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * 0.5


def train_and_save(
    world: World | None, layout: str, folder: Path, steps: int = 2, optimizer: str = "fused"
) -> Values:
    run = Run(world, layout, optimizer)
    run.train(0, steps)
    run.save(folder, steps)
    return run.gather()


def load_and_gather(
    world: World | None, layout: str, step_dir: Path, optimizer: str = "fused"
) -> tuple[Values, dict[str, Any]]:
    run = Run(world, layout, optimizer)
    run.spoil()
    state = run.load(step_dir)
    assert run.model.head.weight is run.model.embed.weight
    return run.gather(), state.scalars


def straight_and_resumed(world: World | None, layout: str, folder: Path) -> tuple[Values, Values]:
    """(six steps at once, three steps, saved, loaded by another model, three steps)."""
    straight = Run(world, layout)
    straight.train(0, 3)
    straight.save(folder, 3)
    straight.train(3, 6)
    resumed = Run(world, layout)
    resumed.spoil()
    resumed.load(folder / "step-00000003")
    resumed.train(3, 6)
    return straight.gather(), resumed.gather()


def names_of(world: World | None, layout: str) -> list[str]:
    run = Run(world, layout)
    return sorted(collect(run.module, run.optimizer).tensors)


def save_with_a_fault(world: World, layout: str, folder: Path, rank: int, fault: str) -> dict[str, Any]:
    """Save step 2 well, then step 4 with one rank in trouble; return the error that this rank saw."""
    import errno

    from paceline.recover import container

    run = Run(world, layout)
    run.train(0, 2)
    run.save(folder, 2)

    def broken(path: Path, *_: Any, **__: Any) -> None:
        path.write_bytes(b"torn")
        number = getattr(errno, fault)
        raise OSError(number, os.strerror(number), str(path))

    whole, error = container.write, {}
    if world.rank == rank:
        container.write = broken  # type: ignore[assignment]
    try:
        run.save(folder, 4)
    except PacelineError as failure:
        error = failure.to_dict()
    finally:
        container.write = whole
    run.save(folder, 6)  # with the fault gone the next save works
    return error


def disagree(world: World, layout: str, folder: Path) -> dict[str, Any]:
    run = Run(world, layout)
    state = run.state(step=1, position=world.rank)
    try:
        save(folder, state, layout=layout, identity=IDENTITY, world=run.mesh.everyone)
    except PacelineError as failure:
        return failure.to_dict()
    return {}


def bytes_by_rank(world: World, layout: str, folder: Path) -> int:
    run = Run(world, layout)
    run.save(folder, 1)
    return (folder / "step-00000001" / f"rank-{world.rank:05d}.safetensors").stat().st_size


def load_damaged(world: World, layout: str, step_dir: Path) -> dict[str, Any]:
    run = Run(world, layout)
    try:
        run.load(step_dir)
    except PacelineError as failure:
        return failure.to_dict()
    return {}


def die_while_saving(world: World, layout: str, folder: Path, rank: int) -> None:
    """Rank ``rank`` is killed with half its shard written."""
    import signal

    from paceline.recover import container

    run = Run(world, layout)
    run.save(folder, 2)

    def killed(path: Path, *_: Any, **__: Any) -> None:
        path.write_bytes(b"half")
        os.kill(os.getpid(), signal.SIGKILL)

    if world.rank == rank:
        container.write = killed  # type: ignore[assignment]
    run.save(folder, 4)


def save_apart(world: World, layout: str, folder: Path) -> dict[str, Any]:
    """Each rank has a disk of its own."""
    run = Run(world, layout)
    own = folder / f"host-{world.rank}"
    own.mkdir()
    try:
        run.save(own / "checkpoints", 1)
    except PacelineError as failure:
        return failure.to_dict()
    return {}


def together(world: World, fault: str) -> tuple[dict[str, Any], str, list[int]]:
    """Ranks 1 and 2 fail; (what this rank raised, its cause's class, results of a round without a fault)."""
    import torch.distributed as dist

    from paceline.recover.agree import Ranks

    ranks = Ranks(dist.group.WORLD)

    def part() -> int:
        if world.rank in (1, 2):
            raise ValueError(f"planted on {world.rank} " + fault)
        return world.rank

    try:
        ranks.together(part)
    except PacelineError as error:
        seen, cause = error.to_dict(), type(error.__cause__).__name__
    again = ranks.together(lambda: world.rank + 10)
    alone = ranks.together(lambda: world.rank + 20, on=1)
    return seen, cause, [-1 if v is None else v for v in (again, alone, ranks.total(world.rank))]
