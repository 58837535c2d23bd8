"""How long an order takes, where its ranks stand still, and how much they keep: a simulation with given seconds.

A rank does its actions one after another, each as soon as what it needs has arrived. A transfer between ranks takes
``transfer_s`` and delays only who waits for it; the sender goes on, and its next transfer starts when its link is
free. What is left out: contention with other messages, and work of the step outside the pipeline.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

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


@dataclass(frozen=True)
class Slot:
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
    transfer_s: float = 0.0,
) -> Timeline:
    """One step of a layout's schedule.

    Args:
        seconds: of each stage; None: one unit each for forward, inputs and weights.
        transfer_s: of one micro-batch's stream between two ranks.

    Raises:
        ValueError: a number of micro-batches that the schedule does not take.
    """
    found = orders(layout, micro_batches)
    slots = _run(found, layout, seconds or [Seconds()] * layout.stages, transfer_s)
    return Timeline(tuple(map(tuple, slots)), tuple(map(_most_live, found)), layout.vpp)


def _run(
    found: Sequence[Order], layout: Pipeline, seconds: Sequence[Seconds], transfer_s: float
) -> list[list[Slot]]:
    slots: list[list[Slot]] = [[] for _ in found]
    made = _Made(layout, transfer_s)
    moved = True
    while moved:
        moved = False
        for rank, order in enumerate(found):
            row = slots[rank]
            while len(row) < len(order):
                action = order[len(row)]
                ready = made.ready_s(action, rank)
                if ready is None:
                    break
                start = max(ready, row[-1].end_s if row else 0.0)
                row.append(Slot(action, start, start + seconds[action.stage].of(action.kind)))
                made.hand_on(row)
                moved = True
    if any(len(row) < len(order) for row, order in zip(slots, found, strict=True)):
        raise ValueError("the order waits for ever: check.problems says where")
    return slots


class _Made:
    """When outputs and gradients are there: for the rank that made them, and for others."""

    def __init__(self, layout: Pipeline, transfer_s: float) -> None:
        self.layout, self.transfer_s = layout, transfer_s
        self.here: dict[tuple[int, str, int], float] = {}
        self.arrived: dict[tuple[int, str, int], float] = {}
        self.free_s: dict[int, float] = {}  # when the link of a rank has sent what it had

    def hand_on(self, row: list[Slot]) -> None:
        """What the last action of a rank gives, and what a joined one before it held back."""
        last = row[-1]
        self.here[_key(last.action)] = last.end_s
        if not last.action.joined:
            self._send(last.action, last.end_s)
        if len(row) > 1 and row[-2].action.joined:
            self._send(row[-2].action, last.end_s)

    def _send(self, action: Action, at_s: float) -> None:
        """To the next stage, behind what the rank's link still sends; nothing to a stage of the same rank."""
        kind, rank = gives(action), self.layout.stage_rank(action.stage)
        to = action.stage + (1 if kind == "F" else -1)
        if not kind or not 0 <= to < self.layout.stages or self.layout.stage_rank(to) == rank:
            return
        arrived = max(at_s, self.free_s.get(rank, 0.0)) + self.transfer_s
        self.free_s[rank] = self.arrived[_key(action)] = arrived

    def ready_s(self, action: Action, rank: int) -> float | None:
        """When what the action needs has arrived; None while nobody has made it."""
        need = needs(action, self.layout.stages)
        if need is None:
            return 0.0
        key = (*need, action.micro_batch)
        if self.layout.stage_rank(need[0]) == rank:
            return self.here.get(key)
        return self.arrived.get(key)


def _key(action: Action) -> tuple[int, str, int]:
    return action.stage, gives(action), action.micro_batch


def _most_live(order: Order) -> int:
    live = most = 0
    for action in order:
        live += action.kind == "F"
        most = max(most, live)
        live -= action.kind in "BW"
    return most
