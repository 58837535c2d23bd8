"""One model on one layout for a few steps, and what each rank holds of it: everything that a proof asks of a run.

It is built as training builds it (``assemble``, ``Feed``, the job's update policy), so that what is proven is what
trains. This file is the only contact between a proof and the runtime.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from paceline.compute.data.prepared import Prepared
from paceline.compute.data.touched import Touch, TouchedSet
from paceline.deliver.device import Device
from paceline.deliver.mesh import Mesh, build_mesh
from paceline.deliver.wire.world import World
from paceline.job import Job
from paceline.job.presets import ModelWidths
from paceline.ledger.spans import Ledger
from paceline.plan.layout import Layout
from paceline.recipes.assemble import Assembly, assemble
from paceline.recipes.evaluate import held_out_loss
from paceline.recipes.feed import Feed, MicroBatch
from paceline.recover.shards import boxes_of, held_boxes
from paceline.recover.slices import Box
from paceline.recover.state import local
from paceline.update.every_step import EveryStep


@dataclass(frozen=True)
class Part:
    """A block of a named tensor that is in this rank's memory.

    Attributes:
        name: the model's own. shape: of the whole tensor.
        starts: where the block begins in it. block: its values, a view.
    """

    name: str
    shape: tuple[int, ...]
    starts: tuple[int, ...]
    block: Tensor


@dataclass
class Trial:
    """A model ready to step.

    Attributes:
        fold: token ids are taken modulo this, for a model whose vocabulary was made smaller than the tokenizer's.
    """

    mesh: Mesh
    device: Device
    feed: Feed
    built: Assembly
    policy: EveryStep
    fold: int

    @classmethod
    def make(
        cls,
        job: Job,
        widths: ModelWidths,
        precision: str,
        layout: Layout,
        rank: int,
        world: World | None,
        device: Device,
        prepared: Prepared,
        touch: Touch,
    ) -> Trial:
        """Build it (every rank calls this, in the same order)."""
        mesh = build_mesh(layout, rank, world)
        feed = Feed(job, prepared, mesh, device, layout.mbs)
        feed.plan = replace(feed.plan, packed=TouchedSet(feed.train, touch))
        built = assemble(job, widths, precision, mesh, device)
        policy = built.policy(job, mesh, device, Ledger(None))
        return cls(mesh, device, feed, built, policy, widths.vocab_size)

    def step(self, number: int, rate: float, look: Callable[[], None]) -> tuple[float, float]:
        """Optimizer step ``number``, from 1: (loss, norm before clipping).

        Args:
            look: called once the gradients are complete and not yet clipped, finite or not.
        """
        batches, counts = self.feed(number)
        self.policy.complete = look
        result = self.policy.step([self._folded(b) for b in batches], counts, rate)
        return result.loss, result.grad_norm

    def gradients(self) -> Iterator[Part]:
        """This rank's blocks of every parameter's gradient; a parameter without one is left out."""
        for name, parameter in zip(self.built.names, self.built.parameters, strict=True):
            if parameter.grad is not None:
                place = self.built.held[name]
                boxes = held_boxes(parameter.grad, place.starts)
                yield from parts_of(name, place.shape, parameter.grad, boxes)

    def weights(self) -> Iterator[Part]:
        """Parameters and buffers, named as in a checkpoint."""
        return self._state(weights=True)

    def moments(self) -> Iterator[Part]:
        """What the optimizer keeps, named likewise."""
        return self._state(weights=False)

    def _state(self, *, weights: bool) -> Iterator[Part]:
        state = self.built.state()
        for name, tensor in state.tensors.items():
            if name.startswith("model/") == weights:
                yield from parts_of(name, state.shape(name), tensor, boxes_of(state, name))

    def held_out(self, rows: int) -> float:
        """Loss over ``rows`` held-out sequences, nats per token."""
        batches = ((self._folded(b), size) for b, size in self.feed.evaluation(rows))
        passes = self.built.passes(Ledger(None))
        return float(held_out_loss(self.built.delivery, passes, batches, self.mesh, self.device)["loss"])

    def agreed(self, flag: bool) -> bool:
        """Whether any rank says so; the same answer on every rank."""
        said = torch.tensor([float(flag)], dtype=torch.float64).to(self.device.torch)
        return bool(self.mesh.sum(said)[0] > 0)

    def _folded(self, batch: Mapping[str, Tensor]) -> MicroBatch:
        tokens, targets = batch["tokens"] % self.fold, batch["targets"]
        return {**batch, "tokens": tokens, "targets": torch.where(targets >= 0, targets % self.fold, targets)}


def parts_of(name: str, shape: tuple[int, ...], tensor: Tensor, boxes: Iterable[Box]) -> Iterator[Part]:
    """The blocks of a tensor, or of a shard, that are here."""
    mine = local(tensor)
    for box in boxes:
        block = mine[box.local_index()] if box.shape else mine
        yield Part(name, shape, box.starts, block)


def widths_from(values: Mapping[str, Any]) -> ModelWidths:
    """Widths that went through JSON: its lists are tuples again."""
    plain: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in values.items()}
    return ModelWidths(**plain)
