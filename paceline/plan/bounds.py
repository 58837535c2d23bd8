"""What a layout takes at least: seconds and bytes that are there whatever its share of the batch looks like.

Below the full price (``plan/cost/step.py``) and made of the same terms. Seconds: every micro-batch through the
slowest coordinate, the waiting of the schedule, the host; not what fsdp and dp send, nor the optimizer. Bytes:
states over all ranks that could share them, and the activations in flight. A layout whose bound is above what is
known to be reached need not be priced.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from paceline.plan.activations import layer_activation_bytes, working_bytes
from paceline.plan.cluster import Cluster
from paceline.plan.columns import Column
from paceline.plan.cost import cp, ep, pp, single, tp
from paceline.plan.cost.fsdp import UNIT_HOST_S
from paceline.plan.cost.held import Held, Layers
from paceline.plan.cost.step import COMMUNICATOR_BYTES, CONTENTION, SLACK
from paceline.plan.cost.terms import Delivered, Work, group_of
from paceline.plan.enumerate import Cut, Depth, Space
from paceline.plan.field import Field, Fields
from paceline.plan.layout import Layout
from paceline.plan.model import cut as cut_kind
from paceline.plan.model import held_layer, held_outer, kinds, predicted
from paceline.plan.speed.speeds import Group, Speeds

Array = Any
SURELY = 1 - 1e-9
"""Sums are taken in another order here than in the price."""


@dataclass(frozen=True)
class Times:
    """Seconds of one micro-batch of each size in the grid: of a layer of each kind, of the head, of its stream.

    ``sends``: to a rank on the same host, and to one on another.
    """

    layers: Array
    layer_messages: Array
    head: Array
    head_messages: Array
    sends: Array


@dataclass(frozen=True)
class LayerBytes:
    """Of a layer of each kind: parameters that are shared by all ranks of a stage, and those of experts; bytes that
    a token keeps for backward, and those that it takes while the layer is at work.
    """

    dense: Array
    experts: Array
    kept: Array
    working: Array


class Bounds:
    """Lower bounds in one space. ``speeds`` answers for columns."""

    def __init__(self, space: Space, speeds: Speeds) -> None:
        self.space, self.speeds = space, speeds
        self.work: Work = space.work
        self.cluster: Cluster = space.cluster
        self.fields = Fields(space)
        self._times: dict[tuple[Cut, str], Times] = {}
        self._messages: dict[Cut, tuple[Array, Array]] = {}

    def times(self, cut: Cut, recompute: str) -> Times:
        """Asked of the same formulas as the price: a layer of each kind alone, then the head alone."""
        key = (cut, recompute)
        if key not in self._times:
            model = self.space.model(cut, Depth(), recompute)
            rows = _column([rows for rows, _ in self.fields.grid])
            worlds = _column([world or 1 for _, world in self.fields.grid])
            devices = worlds if self.cluster.is_cpu else self.cluster.near
            layers = [self._layer(model, kind, rows, worlds, devices) for kind, _ in kinds(self.work.widths)]
            self._times[key] = Times(
                np.stack([seconds for seconds, _ in layers]),
                np.stack([sent for _, sent in layers]),
                *self._head(model, rows, worlds, devices),
                self._sends(cut, rows),
            )
        return self._times[key]

    def _layer(
        self, model: Layout, kind: Any, rows: Array, worlds: Array, devices: Column
    ) -> tuple[Array, Array]:
        mine = cut_kind(kind, model.tp, model.ep, model.etp)
        held = self._held(Layers(mine, held_layer(kind, model.tp, model.ep, model.etp), 1), model)
        length = self.work.sequence_length
        seconds = self.speeds.block_s(mine, length, rows / model.cp, worlds, model.tp)
        sent = [axis.deliver(model, self.work, self.speeds, devices, held, rows) for axis in (tp, cp, ep)]
        exposed = sum(sent, Delivered()).exposed_s
        return single.recomputed(model, self.speeds) * seconds, np.broadcast_to(exposed, rows.shape)

    def _held(self, layers: Layers, model: Layout) -> Held:
        return Held(self.work.widths, (layers,), False, False, 0, 0, model.ep * model.etp > 1)

    def _head(self, model: Layout, rows: Array, worlds: Array, devices: Column) -> tuple[Array, Array]:
        widths, length = cut_kind(self.work.widths, model.tp), self.work.sequence_length
        seconds = self.speeds.outer_s(widths, length, rows / model.cp, worlds)
        held = Held(self.work.widths, (), False, True, 0, 0, False)
        sent = tp.deliver(model, self.work, self.speeds, devices, held, rows).exposed_s
        return seconds, np.broadcast_to(sent, rows.shape)

    def _sends(self, cut: Cut, rows: Array) -> Array:
        tokens = rows * self.work.sequence_length / (cut.cp * cut.tp)
        size = tokens * self.work.widths.hidden_size * self.work.weight_bytes
        both = [self.speeds.collective_s("send", size, Group(2, on_host)) for on_host in (2, 1)]
        return np.stack(both) / (2 if self.speeds.overlaps else 1)

    def least_s(self, cut: Cut, recompute: str) -> float:
        """Of a cut at any depth and share: all layers, spread evenly over the ranks of the largest world."""
        times = self.times(cut, recompute)
        counts = np.array([len(which) for _, which in kinds(self.work.widths)])
        of_messages = min(1.0, self.speeds.factors.exposed)
        each = counts @ (times.layers + of_messages * times.layer_messages) + times.head
        rows = _column([rows for rows, _ in self.fields.grid])
        whole = self.work.global_batch * cut.tp * cut.cp * float((each / rows).min())
        return SURELY * whole / self.space.worlds[-1]

    def seconds(self, at: Field, cut: Cut, recompute: str) -> Array:
        """Of each point."""
        times, factors = self.times(cut, recompute), self.speeds.factors
        size, predicts = at.size, at.ends[:, 1]
        compute = _by_kind(at.counts, times.layers[:, size]) + predicts * times.head[size]
        each = compute + predicts * times.head_messages[size]
        if times.layer_messages.any():
            each = each + _by_kind(at.counts, times.layer_messages[:, size])
        near = self.cluster.world if self.cluster.is_cpu else self.cluster.near
        away = (2 * (at.world // at.pp) > near).astype(int)
        edges = np.maximum(0, 2 * at.vpp - at.ends.sum(axis=1)) * (at.pp > 1)
        each = each + edges * times.sends[away, size] * (at.many > 0)
        one = each.max(axis=0)
        waited = factors.idle * at.waiting * ((at.many * each).sum(axis=0) - one)
        exposed = min(1.0, factors.exposed)
        slowest = one
        if exposed < 1:
            least = np.where(at.many > 0, compute, np.inf).min(axis=0)
            slowest = exposed * one + (1 - exposed) * least
        actions = 2 * at.vpp * (at.pp > 1) * pp.ACTION_S
        host = factors.host * (single.STEP_S + (single.MICRO_BATCH_S + actions) * at.micros)
        return SURELY * (at.micros * slowest + waited + host)

    def update_s(self, at: Field, cut: Cut, *, sharded: bool) -> Array:
        """Of the optimizer, which a bound of seconds leaves out."""
        layer = self._layer_bytes(cut, "none")
        states = self._states(at, cut, layer, sharded=sharded).max(axis=0)
        return SURELY * self.speeds.optimizer_s(states, at.world)

    def sharded_s(
        self, at: Field, cut: Cut, recompute: str, stages: Iterable[str], shards: Array | None = None
    ) -> dict[str, Array]:
        """What fsdp adds to a bound of seconds, by its stage: its hooks, and of its messages (and those of the
        replicas beside it) what no compute can hide, or what compute loses beside them.

        ``shards``: the degree of each point; without, the quickest that its data ranks could be cut into.
        """
        factors, overlaps = self.speeds.factors, self.speeds.overlaps
        there = at.many > 0
        depth = np.where(there, at.counts.sum(axis=1), np.inf).min(axis=0)
        hooks = factors.host * UNIT_HOST_S * (depth + 1) * at.micros
        lost = min(factors.exposed, (CONTENTION - 1) * factors.contention if overlaps else 1.0)
        gather, scatter = (
            np.where(there, _by_kind(at.counts, sent), np.inf).min(axis=0)
            for sent in self._messages_of(at, cut, shards)
        )
        least, most = self._compute_s(at, cut, recompute)
        beside = 0.0 if shards is None else self._replicas_s(at, cut, shards, most / at.micros)
        found = {}
        for zero in stages:
            sent = gather * (2 * at.micros if zero == "zero3" else 1)
            sent = sent + scatter * (1 if zero == "zero1" else at.micros)
            added = lost * sent
            if overlaps:
                added = lost * np.minimum(least, sent) + factors.exposed * np.maximum(0, sent - most)
            found[zero] = SURELY * (hooks + added + factors.exposed * beside)
        return found

    def _compute_s(self, at: Field, cut: Cut, recompute: str) -> tuple[Array, Array]:
        """Of a step: layers of the coordinate with the least, and all of the one with the most."""
        times = self.times(cut, recompute)
        layers = _by_kind(at.counts, times.layers[:, at.size])
        further = predicted(self.work.widths) * times.layers[-1][at.size]
        whole = layers + at.ends[:, 1] * (times.head[at.size] + further)
        least = np.where(at.many > 0, layers, np.inf).min(axis=0)
        return at.micros * least, at.micros * whole.max(axis=0) / SURELY

    def _messages_of(self, at: Field, cut: Cut, shards: Array | None) -> Array:
        """(gather, scatter) × kind of layer × point: seconds of one message of one layer."""
        each, quickest = self._layer_messages(cut)
        return quickest[:, :, at.degree] if shards is None else each[:, :, shards]

    def _layer_messages(self, cut: Cut) -> tuple[Array, Array]:
        """Of a layer of each kind (not its experts): seconds of its gather and scatter over every degree of fsdp, and
        over whatever part of so many data ranks is quickest."""
        if cut in self._messages:
            return self._messages[cut]
        sizes = self._layer_bytes(cut, "none").dense
        degrees = sorted(set(self.fields.of(cut).degree.tolist())) if not self.cluster.is_cpu else []
        parts = sorted({n for degree in degrees for n in self.space.shards(degree)})
        each = np.zeros((2, len(sizes), int(self.fields.of(cut).degree.max()) + 1))
        quickest = np.zeros_like(each)
        if parts:
            group = group_of(_column(parts) * cut.cp, cut.tp, self.cluster.near)
            for way, (op, bytes_of) in enumerate(
                (("all_gather", self.work.weight_bytes), ("reduce_scatter", self.work.gradient_bytes))
            ):
                for kind, size in enumerate(sizes.tolist()):
                    each[way, kind, parts] = self.speeds.collective_s(op, size * bytes_of, group)
        for degree in degrees:
            part = list(self.space.shards(degree))
            quickest[:, :, degree] = each[:, :, part].min(axis=2) if part else 0.0
        self._messages[cut] = each, quickest
        return each, quickest

    def _replicas_s(self, at: Field, cut: Cut, shards: Array, micro_batch_s: Array) -> Array:
        """What of the sums over replicas the backward of a micro-batch cannot hide."""
        if not self.speeds.overlaps:
            return np.zeros(len(at))
        dense = _by_kind(at.counts, self._layer_bytes(cut, "none").dense[:, None])
        dense = np.where(at.many > 0, dense, np.inf).min(axis=0)
        replicas = at.degree // shards
        group = group_of(replicas, shards * cut.cp * cut.tp, self.cluster.near)
        size = dense * self.work.gradient_bytes / (shards * cut.cp)
        seconds = self.speeds.collective_s("all_reduce", size, group)
        return np.where(replicas > 1, np.maximum(0, seconds - micro_batch_s), 0.0)

    def _states(self, at: Field, cut: Cut, layer: LayerBytes, *, sharded: bool) -> Array:
        """Parameters whose state a rank of each coordinate keeps; ``sharded``: shared by all that could."""
        dense = _by_kind(at.counts, layer.dense[:, None]) + self._outer(at, cut)
        experts = _by_kind(at.counts, layer.experts[:, None])
        if not sharded:
            return dense + experts
        same = np.maximum(1, at.world // at.pp // (cut.ep * cut.etp))
        return dense / np.maximum(1, at.degree * cut.cp) + experts / same

    def _outer(self, at: Field, cut: Cut) -> Array:
        """Parameters of the embedding, or of the head, where a coordinate has one."""
        table = held_outer(self.work.widths, cut.tp, embeds=True, predicts=False)[0]
        return table * at.ends.max(axis=1)

    def sizes(
        self, at: Field, cut: Cut, recompute: str, stages: Iterable[str]
    ) -> tuple[Array, dict[str, Array]]:
        """Bytes of the fullest rank of each point: as replicas, and as shards by stage, as if every rank that could
        share a state did; infinite where it cannot be cut so."""
        work = self.work
        layer = self._layer_bytes(cut, recompute)
        whole, states = (self._states(at, cut, layer, sharded=several) for several in (False, True))
        busy = self._busy(at, cut, layer)
        gradients = np.where(at.micros > at.live, 1, 0)  # else they appear as activations go
        kept = work.master_bytes * (1 + work.optimizer_states)
        alone = (at.pp == 1) & (cut.tp * cut.cp * cut.ep * cut.etp == 1) & (at.degree > 1)
        of_whole = busy + (kept + work.master_bytes * gradients + work.gradient_bytes * alone) * whole
        mine = busy + kept * states
        summed = {"zero1": work.gradient_bytes * whole}
        none = at.splits == 0
        found = {}
        for zero in stages:
            beside = self._gathered(at, cut, layer, whole, kept=zero != "zero3")
            each = mine + gradients * summed.get(zero, work.master_bytes * states) + beside
            none_so = none | at.split if zero == "zero3" else none
            found[zero] = np.where(none_so, np.inf, self._fullest(at, cut, each))
        return self._fullest(at, cut, of_whole), found

    def _fullest(self, at: Field, cut: Cut, each: Array) -> Array:
        groups = (cut.tp > 1) + (cut.cp > 1) + (cut.ep > 1) + (at.pp > 1)
        base = self.speeds.base_bytes + (0 if self.cluster.is_cpu else groups * COMMUNICATOR_BYTES)
        return SURELY * (SLACK * each.max(axis=0) + base)

    def _busy(self, at: Field, cut: Cut, layer: LayerBytes) -> Array:
        """Of each coordinate: activations in flight, the layer at work, and what a pipeline sends."""
        work = self.work
        tokens = at.mbs * (work.sequence_length / cut.cp)
        there = at.many > 0
        working = ((at.counts > 0) * layer.working[:, None]).max(axis=1)
        stream = work.widths.hidden_size * work.weight_bytes / cut.tp
        outputs = (at.live * (at.vpp - at.ends[:, 1]) + 1) * (at.pp > 1)
        return tokens * (
            at.live * _by_kind(at.counts, layer.kept[:, None]) + there * (working + outputs * stream)
        )

    def _gathered(self, at: Field, cut: Cut, layer: LayerBytes, whole: Array, *, kept: bool) -> Array:
        """Of each coordinate: whole weights beside the shards."""
        shared = (np.maximum(1, at.world // at.pp // (cut.ep * cut.etp)) > 1)[
            None
        ]  # else fsdp gathers no expert
        unshared = ~shared * _by_kind(at.counts, layer.experts[:, None])
        if kept:
            return self.work.weight_bytes * (whole - unshared)
        unit = ((at.counts > 0) * (layer.dense[:, None] + shared * layer.experts[:, None])).max(axis=1)
        ahead = np.minimum(2, at.counts.sum(axis=1))
        live = np.where(at.split, whole - unshared, self._outer(at, cut) + ahead * unit)
        return self.work.weight_bytes * live

    def _layer_bytes(self, cut: Cut, recompute: str) -> LayerBytes:
        length, precision = self.work.sequence_length, self.work.precision
        held = [held_layer(kind, cut.tp, cut.ep, cut.etp) for kind, _ in kinds(self.work.widths)]
        mine = [cut_kind(kind, cut.tp, cut.ep, cut.etp) for kind, _ in kinds(self.work.widths)]
        apart = cut.ep * cut.etp > 1
        how = length, cut.tp, recompute, cut.etp
        return LayerBytes(
            dense=np.array([one.dense if apart else one.total for one in held], dtype=float),
            experts=np.array([apart * one.experts for one in held], dtype=float),
            kept=np.array([layer_activation_bytes(kind, precision, *how) for kind in mine]),
            working=np.array([working_bytes(kind, precision, *how) for kind in mine]),
        )


def _by_kind(counts: Array, each: Array) -> Array:
    """Sum over kinds of layers: (coordinates, kinds, points) × (kinds, points)."""
    return sum(counts[:, kind] * each[kind] for kind in range(counts.shape[1]))


def _column(values: Iterable[int]) -> Array:
    return np.array(list(values), dtype=np.int64)
