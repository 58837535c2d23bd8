"""The state of a run before its first step, as names, shapes and values: no model is in memory, no rank is started."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from paceline.compute.optim import build_optimizer
from paceline.job import Job
from paceline.job.presets import ModelWidths
from paceline.plan.layout import Layout
from paceline.recipes.assemble import whole_model
from paceline.recipes.holdings import Holdings
from paceline.recover.foreign import Whole
from paceline.recover.manifest import Tensor
from paceline.recover.pieces import Snapshot
from paceline.recover.reshard import part_of
from paceline.recover.state import collect, slot_names
from paceline.recover.steps import check_store
from paceline.recover.stream import Source
from paceline.recover.write import head_of, write_alone


@dataclass(frozen=True)
class Beginning:
    """Everything but the weights.

    Attributes:
        parameters: name → shape, of the model; each once.
        buffers: name → (shape, the value of every element at the first step).
        ties: another name of a parameter → its first.
        slots: what the optimizer keeps of each parameter.
        groups: its options, by kind: of matrices, then of vectors.
        dtype: of all of it but the step counters.
    """

    parameters: dict[str, tuple[int, ...]]
    buffers: dict[str, tuple[tuple[int, ...], float]]
    ties: dict[str, str]
    slots: tuple[str, ...]
    groups: list[dict[str, Any]]
    dtype: str

    @classmethod
    def of(cls, job: Job, widths: ModelWidths, precision: str) -> Beginning:
        """Of a job whose precision is decided."""
        shapes = whole_model(widths)
        # one parameter of each kind: what an optimizer says of a group is the same for a large one
        kinds = nn.ParameterDict(
            {"matrix": nn.Parameter(torch.zeros(1, 1)), "vector": nn.Parameter(torch.zeros(1))}
        )
        optimizer = build_optimizer(kinds.named_parameters(), job.optimizer)
        first = {name: next(n for n, s in shapes.parameters.items() if (len(s) >= 2) == (name == "matrix"))
                 for name in ("matrix", "vector")}  # fmt: skip
        groups = [
            {**row, "params": [first[name] for name in row["params"]]}
            for row in collect(kinds, optimizer).groups
        ]
        return cls(
            dict(shapes.parameters),
            {name: (shape, _value(name, shape)) for name, shape in shapes.buffers.items()},
            dict(shapes.ties),
            slot_names(optimizer, optimizer.param_groups[0]),
            groups,
            "F64" if precision == "fp64" else "F32",
        )

    def tensors(self, keys: dict[str, tuple[tuple[str, int | None], ...]]) -> dict[str, Whole]:
        """Every tensor of the state; ``keys``: what holds the model's, by its name (of a buffer it may be absent)."""
        found = {f"model/{n}": Whole(shape, self.dtype, keys[n]) for n, shape in self.parameters.items()}
        for name, (shape, value) in self.buffers.items():
            found[f"model/{name}"] = Whole(shape, self.dtype, keys.get(name, ()), value)
        for name, shape in self.parameters.items():
            for slot in self.slots:
                counter = slot == "step"
                found[f"optimizer/{name}/{slot}"] = Whole(
                    () if counter else shape, "F64" if counter else self.dtype
                )
        return found


def first_checkpoint(
    folder: Path,
    source: Source,
    start: Beginning,
    tensors: Mapping[str, Whole],
    *,
    job: Job,
    widths: ModelWidths,
    layout: Layout,
    steps: int,
    identity: Mapping[str, str],
) -> int:
    """Step 0 as the ranks of a layout would save it before they train; bytes of data.

    Args:
        folder: of checkpoints, whose lock the caller holds. source: of ``tensors``, all of the state.
        job: its precision is decided. layout: closed. steps: of the whole run.

    Raises:
        Failed: (53) a byte that is read; (55) the store.
    """
    scalars = {
        "step": 0,
        "position": 0,
        "tokens": 0.0,
        "samples": 0.0,
        "steps": steps,
        "seed": job.train.seed,
        "precision": job.train.precision,
    }
    table = {name: Tensor(made.shape, made.dtype, ()) for name, made in tensors.items()}
    holdings = Holdings(layout, widths, job.data.sequence_length, table)
    groups = holdings.groups(start.groups)
    ties = {f"model/{alias}": f"model/{name}" for alias, name in start.ties.items()}
    head = head_of(
        Snapshot(0, (), {}, scalars, ties, groups),
        layout=str(layout),
        world_size=layout.world_size,
        identity=identity,
    )
    check_store(folder, sum(tensor.nbytes for tensor in table.values()))
    whole = replace(head, tensors=table)
    parts = (
        part_of(source, whole, holdings.of(rank), rank, groups=groups, ties=ties)
        for rank in range(layout.world_size)
    )
    return write_alone(folder, parts, head)


def _value(name: str, shape: tuple[int, ...]) -> float:
    """As :meth:`paceline.compute.models.moe.Router.reset_buffers` fills it."""
    return 1.0 / shape[0] if name.endswith(".fraction") else 0.0
