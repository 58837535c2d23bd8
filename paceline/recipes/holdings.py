"""What each rank of a layout holds of a state, worked out in one process: no rank is started, no group is formed.

It asks the places that a run asks: which stage has a layer (``recipes/stages.py``), which part of a parameter the axes
leave on a rank (``deliver/held.py``), how FSDP2 shards that part (``deliver/fsdp.py``), whose a step counter is
(``recover/state.py``). The tests hold it to what real ranks save, byte for byte.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.distributed.tensor import Shard

from paceline.compute.models.cuts import cuts_of
from paceline.compute.models.decoder import Decoder
from paceline.compute.optim import groups_of
from paceline.deliver import fsdp
from paceline.deliver.held import Held, hold
from paceline.deliver.mesh import members
from paceline.job.presets import ModelWidths
from paceline.plan.layout import Layout
from paceline.recipes.stages import shared_by, stages_of
from paceline.recover.container import ITEM_BYTES
from paceline.recover.manifest import Tensor
from paceline.recover.owners import Holding
from paceline.recover.slices import Box, boxes, moved, whole
from paceline.recover.state import Whole, is_counter, owner_of, place_of


@dataclass(frozen=True)
class Holdings:
    """The ranks of one layout and what each holds.

    Args:
        layout: closed.
        widths: of the model, vocabulary included.
        sequence_length: tokens of a row; the stages of a pipeline are balanced by it.
        tensors: of the state, by name.
    """

    layout: Layout
    widths: ModelWidths
    sequence_length: int
    tensors: Mapping[str, Tensor]
    _stages: dict[int, list[Whole]] = field(default_factory=dict, repr=False)

    def of(self, rank: int) -> dict[str, Holding]:
        """Tensor → what this rank holds of it, of those that it holds at all."""
        held = self._held(rank)
        found: dict[str, Holding] = {}
        for name, tensor in self.tensors.items():
            place = place_of(name, tensor.shape, held)
            if place is None:
                continue
            mine = held[owner_of(name)]
            uncut = is_counter(name, tensor.shape, mine) or owner_of(name) in self._buffers(rank)
            parts = whole(tensor.shape) if uncut else self._boxes(mine, rank)
            found[name] = Holding(tuple(parts), place.replicas, ITEM_BYTES[tensor.dtype])
        return found

    def missing(self) -> list[str]:
        """Parameters and buffers of the model that the state has not."""
        return sorted(f"model/{n}" for n in self._shapes() if f"model/{n}" not in self.tensors)

    def unexpected(self) -> list[str]:
        """Tensors of the state that belong to nothing of the model, or have another shape than it."""
        shapes = self._shapes()
        return sorted(
            name
            for name, tensor in self.tensors.items()
            if owner_of(name) not in shapes
            or (tensor.shape != shapes[owner_of(name)] and not name.endswith("/step"))
        )

    def groups(self, saved: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """The optimizer's groups as rank 0 has them, with the options of the ``saved`` ones."""
        held, parameters = self._held(0), self._parameters(0)
        options = {
            _is_matrix(self.tensors[f"model/{row['params'][0]}"]): row for row in saved if row["params"]
        }
        found = groups_of(
            (name, len(shape), fsdp.shards(held[name], self.layout, 0) is not None)
            for name, shape in parameters.items()
        )
        return [{**options[matrices], "params": names} for matrices, names in found if matrices in options]

    def _shapes(self) -> dict[str, tuple[int, ...]]:
        """Of every parameter and buffer of the whole model."""
        with torch.device("meta"):
            found = Whole.of(Decoder(self.widths))
        return {**found.parameters, **found.buffers}

    def _held(self, rank: int) -> dict[str, Held]:
        shared = shared_by(self.layout, self.widths)
        own = (self.layout.coordinates(rank)["pp"],)
        stage = members(self.layout, rank, "stage")
        held = {
            name: hold(shape, cuts_of(name, self.widths), self.layout, rank, shared.get(name, own))
            for name, shape in self._parameters(rank).items()
        }
        for part in self._parts(rank):
            for name, shape in part.buffers.items():
                held[name] = Held(shape, (0,) * len(shape), shape, stage, stage, stage)
        return held

    def _buffers(self, rank: int) -> frozenset[str]:
        """No axis cuts a buffer: FSDP2 shards parameters only."""
        return frozenset(name for part in self._parts(rank) for name in part.buffers)

    def _boxes(self, place: Held, rank: int) -> list[Box]:
        sharded = fsdp.shards(place, self.layout, rank)
        if sharded is None:
            return moved(whole(place.extent), place.starts)
        ranks, dim = sharded
        found = boxes(place.extent, (len(ranks),), (ranks.index(rank),), (Shard(dim),))
        return moved(found, place.starts)

    def _parameters(self, rank: int) -> dict[str, tuple[int, ...]]:
        """In the order of the model; of a weight that two stages of this rank hold, the first counts."""
        found: dict[str, tuple[int, ...]] = {}
        for part in self._parts(rank):
            for name, shape in part.parameters.items():
                found.setdefault(name, shape)
        return found

    def _parts(self, rank: int) -> list[Whole]:
        """The stages of a rank; the ranks of one pipeline stage have the same."""
        at = self.layout.coordinates(rank)["pp"]
        if at not in self._stages:
            with torch.device("meta"):
                self._stages[at] = [
                    Whole.of(Decoder(self.widths, part=stage.part))
                    for stage in stages_of(self.layout, rank, self.widths, self.sequence_length)
                ]
        return self._stages[at]


def _is_matrix(tensor: Tensor) -> bool:
    return len(tensor.shape) >= 2
