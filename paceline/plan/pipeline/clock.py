"""How long an order takes, where its ranks stand still, and how much they keep: a simulation with given seconds.

A rank does its actions one after another, each as soon as what it needs has arrived. A transfer between ranks takes
``transfer_s`` and delays only who waits for it; the sender goes on, and its next transfer starts when its link is
free. What is left out: contention with other messages, and work of the step outside the pipeline.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from paceline.plan.pipeline.check import gives, needs
from paceline.plan.pipeline.counts import Pipeline
from paceline.plan.pipeline.orders import Action, Order, orders


@dataclass(frozen=True)
class Seconds:
    """What one micro-batch takes in a stage. A whole backward takes ``inputs`` and ``weights`` together."""

    forward: float = 1.0
    inputs: float = 1.0
    weights: float = 1.0

    def of(self, kind: str) -> float:
        """Of an action's kind."""
        return {"F": self.forward, "I": self.inputs, "W": self.weights}.get(kind, self.inputs + self.weights)


class Slot(NamedTuple):
    """An action with when it runs, seconds from the start of the step."""

    action: Action
    start_s: float
    end_s: float


@dataclass(frozen=True)
class Timeline:
    """A step of a pipeline, rank by rank.

    Attributes:
        slots: by rank, in time order.
        live: by rank, the most (stage, micro-batch) pairs whose activations are kept at once: from the forward to
            the end of the backward, that of the weights where it is split.
        stages_per_rank: how many of them one micro-batch makes on a rank.
    """

    slots: tuple[tuple[Slot, ...], ...]
    live: tuple[int, ...]
    stages_per_rank: int

    @property
    def makespan_s(self) -> float:
        """From the first start to the last end."""
        return max(slot.end_s for row in self.slots for slot in row)

    @property
    def idle_s(self) -> tuple[float, ...]:
        """By rank, what it does not work of the makespan."""
        return tuple(self.makespan_s - sum(s.end_s - s.start_s for s in row) for row in self.slots)

    @property
    def bubble(self) -> float:
        """The idle part of all ranks' time, 0 to 1."""
        return sum(self.idle_s) / (len(self.slots) * self.makespan_s)

    @property
    def peak_micro_batches(self) -> float:
        """Live micro-batches of the fullest rank, in units of all of its stages."""
        return max(self.live) / self.stages_per_rank


def simulate(
    layout: Pipeline,
    micro_batches: int,
    seconds: Sequence[Seconds] | None = None,
    transfer_s: float | Transfer = 0.0,
) -> Timeline:
    """One step of a layout's schedule.

    Args:
        seconds: of each stage; None: one unit each for forward, inputs and weights.
        transfer_s: of one micro-batch's stream between two ranks; or a function of the two (sender, receiver).

    Raises:
        ValueError: a number of micro-batches that the schedule does not take.
    """
    found = orders(layout, micro_batches)
    slots = _run(found, layout, seconds or [Seconds()] * layout.stages, transfer_s)
    return Timeline(tuple(map(tuple, slots)), tuple(map(_most_live, found)), layout.vpp)


def _run(
    found: Sequence[Order], layout: Pipeline, seconds: Sequence[Seconds], transfer_s: float | Transfer
) -> list[list[Slot]]:
    of = [layout.stage_rank(stage) for stage in range(layout.stages)]
    waits = [[_wait(action, rank, of, seconds) for action in order] for rank, order in enumerate(found)]
    slots: list[list[Slot]] = [[] for _ in found]
    made = _Made(transfer_s if callable(transfer_s) else _always(transfer_s))
    moved = True
    while moved:
        moved = False
        for rank, order in enumerate(waits):
            row = slots[rank]
            at = len(row)
            moved = made.go_on(order, row, rank) > at or moved
    if any(len(row) < len(order) for row, order in zip(slots, found, strict=True)):
        raise ValueError("the order waits for ever: check.problems says where")
    return slots


Transfer = Callable[[int, int], float]
"""Seconds of one micro-batch's stream, by sending and receiving rank."""

Key = tuple[int, str, int]
"""Stage, what it gives, micro-batch."""


def _always(seconds: float) -> Transfer:
    return lambda rank, to: seconds


class _Wait(NamedTuple):
    """An action with what it needs (``here``: of the same rank), gives and takes; ``to``: who it is sent to."""

    action: Action
    need: Key | None
    here: bool
    key: Key
    to: int | None
    seconds: float
    joined: bool


def _wait(action: Action, rank: int, of: Sequence[int], seconds: Sequence[Seconds]) -> _Wait:
    need, kind = needs(action, len(of)), gives(action)
    to = action.stage + (1 if kind == "F" else -1)
    return _Wait(
        action=action,
        need=None if need is None else (*need, action.micro_batch),
        here=need is not None and of[need[0]] == rank,
        key=(action.stage, kind, action.micro_batch),
        to=of[to] if kind and 0 <= to < len(of) and of[to] != rank else None,
        seconds=seconds[action.stage].of(action.kind),
        joined=action.joined,
    )


class _Made:
    """When outputs and gradients are there: for the rank that made them, and for others."""

    def __init__(self, transfer_s: Transfer) -> None:
        self.transfer_s = transfer_s
        self.here: dict[Key, float] = {}
        self.arrived: dict[Key, float] = {}
        self.free_s: dict[int, float] = {}  # when the link of a rank has sent what it had

    def go_on(self, order: Sequence[_Wait], row: list[Slot], rank: int) -> int:
        """Run a rank until it needs what nobody has made; how many of its actions are done."""
        end = row[-1].end_s if row else 0.0
        for at in range(len(row), len(order)):
            one = order[at]
            start = end
            if one.need is not None:
                ready = (self.here if one.here else self.arrived).get(one.need)
                if ready is None:
                    break
                start = max(ready, end)
            end = start + one.seconds
            row.append(Slot(one.action, start, end))
            self.here[one.key] = end
            if not one.joined:
                self._send(one, rank, end)
            if at and order[at - 1].joined:  # a joined action's output leaves with the one behind it
                self._send(order[at - 1], rank, end)
        return len(row)

    def _send(self, one: _Wait, rank: int, at_s: float) -> None:
        """To the next stage, behind what the rank's link still sends; nothing to a stage of the same rank."""
        if one.to is not None:
            arrived = max(at_s, self.free_s.get(rank, 0.0)) + self.transfer_s(rank, one.to)
            self.free_s[rank] = self.arrived[one.key] = arrived


def _most_live(order: Order) -> int:
    live = most = 0
    for action in order:
        live += action.kind == "F"
        most = max(most, live)
        live -= action.kind in "BW"
    return most
