"""What a rank of a proof runs: a few steps of each case, compared with what one device got.

A case is a model on a layout in a precision. The case of one device writes its tensors (``write``); every other
compares each rank's own blocks with them (``against``), so that every replica is looked at, and nothing but figures
leaves a rank. One launch runs many cases, since starting ranks costs more than a case.

*Fresh memory is poisoned*: while a case runs, torch fills what ``empty`` returns with NaN (integers with their
largest value), so that a value that nobody wrote shows instead of being zero by luck.
"""

from __future__ import annotations

import gc
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from paceline.compute.data.prepared import Prepared
from paceline.compute.data.touched import Touch
from paceline.deliver.device import Device, open_device
from paceline.deliver.wire.record import CallRecorder
from paceline.deliver.wire.slot import Slot
from paceline.deliver.wire.world import World, open_world
from paceline.job import Job
from paceline.ledger.outcome import Preempted
from paceline.plan.layout import Layout
from paceline.recipes import routes
from paceline.recipes.against import Reference
from paceline.recipes.case import Case
from paceline.recipes.place import Emit, Place, Stop
from paceline.recipes.trial import Part, Trial, widths_from

FLOORS = {"fp64": 1e-4, "job": 1e-2}


def run(payload: dict[str, Any], place: Place, emit: Emit, stop: Stop) -> dict[str, Any]:
    """Every case of ``payload["cases"]`` in turn; each rank emits one row of kind ``case`` for each.

    Raises:
        Preempted: somebody asked to stop.
    """
    cases = [Case.read(values) for values in payload["cases"]]
    device = open_device(payload["device"], place.local_rank, threads=place.threads, deterministic=False)
    recorder = CallRecorder(None, None if place.slot is None else Slot(place.slot, place.rank))
    world = open_world(place, device.kind, recorder, place.timeout_s) if place.world_size > 1 else None
    try:
        for case in cases:
            emit(
                {"kind": "case", "name": case.name, "rank": place.rank, **run_case(case, world, device, stop)}
            )
            if world is not None:
                world.wait_for_the_last()  # a rank that dies in the next case leaves nobody within this one
        return {"cases": len(cases)}
    finally:
        if world is not None:
            world.close()


def run_case(case: Case, world: World | None, device: Device, stop: Stop = lambda: None) -> dict[str, Any]:
    """One case on one rank.

    Returns:
        ``losses``, ``norms`` by step, ``held_out``; ``finite``; and of a case that compares: ``kinds``, kind of tensor
        (``weights-0`` before the first step, ``gradient-1``, ``weights-1`` after it … ``state``) → rows of
        :meth:`Reference.compare`.
    """
    with poisoned():
        rank = 0 if world is None else world.rank
        trial = Trial.make(
            Job(**case.job),
            widths_from(case.widths),
            case.precision,
            Layout.parse(case.layout),
            rank,
            world,
            device,
            Prepared.open(case.prepared),
            Touch.read(case.touch),
        )
        if case.leg == "job" and case.write:
            routes.record(trial)
        elif case.leg == "job":
            routes.replay(trial, Path(case.against), len(case.rates))
        report = _steps(case, trial, stop)
        if case.leg == "job" and case.write:
            routes.write(trial, Path(case.write), len(case.rates))
        del trial
        gc.collect()  # process groups and graphs hold one another
    return report


def _steps(case: Case, trial: Trial, stop: Stop) -> dict[str, Any]:
    keep = _Keep(case)
    losses, norms = [], []
    exact = case.leg == "fp64"
    if exact:
        keep.take("weights-0", list(trial.weights()))
    for number, rate in enumerate(case.rates, start=1):
        if trial.agreed(stop() is not None):
            raise Preempted(f"the proof was stopped by {stop() or 'another rank'}")
        taken: list[Part] = []
        loss, norm = trial.step(number, rate, lambda into=taken: into.extend(_copies(trial)))  # type: ignore[misc]
        losses.append(loss)
        norms.append(norm)
        keep.take(f"gradient-{number}", taken)
        if not math.isfinite(loss + norm):  # nothing after this means anything
            return {"losses": losses, "norms": norms, "held_out": None, "finite": False, "kinds": keep.kinds}
        if exact:
            keep.take(f"weights-{number}", list(trial.weights()))
    if exact:
        keep.take("state", list(trial.moments()))
    held_out = trial.held_out(case.held_out) if case.held_out else None
    found = {"losses": losses, "norms": norms, "held_out": held_out, "finite": True}
    keep.finish(found)
    return {**found, "kinds": keep.kinds}


class _Keep:
    """Where tensors go: into a new reference, or against one."""

    def __init__(self, case: Case) -> None:
        self.kinds: dict[str, list[dict[str, Any]]] = {}
        self._write = Path(case.write) if case.write else None
        self._against = Reference(Path(case.against)) if case.against else None
        self._floor = FLOORS[case.leg]
        self._most: dict[str, dict[str, float]] = {}
        self._shapes: dict[str, dict[str, list[int]]] = {}

    def take(self, kind: str, parts: list[Part]) -> None:
        if self._write is not None:
            self._most[kind] = Reference.write_kind(self._write, kind, parts)
            self._shapes[kind] = {part.name: list(part.shape) for part in parts}
        if self._against is not None:
            self.kinds[kind] = list(self._against.compare(kind, parts, self._floor))

    def finish(self, found: Mapping[str, Any]) -> None:
        if self._write is not None:
            Reference.write_index(self._write, {**found, "most": self._most, "shapes": self._shapes})


def _copies(trial: Trial) -> Iterator[Part]:
    for part in trial.gradients():
        yield Part(part.name, part.shape, part.starts, part.block.detach().clone())


@contextmanager
def poisoned() -> Iterator[None]:
    """Fresh memory holds NaN, where torch can do so: CPU and CUDA tensors of any ``empty``."""
    before = torch.are_deterministic_algorithms_enabled()
    warned = torch.is_deterministic_algorithms_warn_only_enabled()
    memory: Any = torch.utils.deterministic
    filled = memory.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True, warn_only=True)
    memory.fill_uninitialized_memory = True
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before, warn_only=warned)
        memory.fill_uninitialized_memory = filled
