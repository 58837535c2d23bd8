"""The real step of one rank on a fake cluster, watched: what it holds, what it sends. All that the dry run knows of
how a run is put together is in this file.

Title of the hard why: *modules are wrapped first, and become fake when they get memory*. FSDP2 cannot swap
parameters that are fake already, and a fake tensor cannot be cut on the meta device; so the model is built, cut and
wrapped on meta outside the fake mode, and the mode is entered where the parameters would be filled.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from paceline.compute.models.decoder import Decoder
from paceline.deliver import cp
from paceline.deliver.device import Device
from paceline.deliver.held import Held
from paceline.deliver.mesh import build_mesh
from paceline.deliver.wire.fake import open_fake_world
from paceline.deliver.wire.record import Account, CallRecorder
from paceline.job import Job
from paceline.job.presets import ModelWidths
from paceline.ledger.spans import CallRow, Ledger
from paceline.plan.layout import Layout
from paceline.recipes.assemble import Assembly, allocate, assemble
from paceline.recipes.dry.memory import Kind, MemoryLog, Moment
from paceline.recipes.dry.values import Values
from paceline.update.every_step import Counts

CPU = Device("cpu", 0, "gloo")
_AFTER = "after"
OUTSIDE = ("start", _AFTER)
"""Moments that are not of the step."""
EDGE = 2  # layers at either end of a stage whose moments are told apart


@dataclass(frozen=True)
class Question:
    """One step of one rank.

    Attributes:
        precision: decided. rows, count: sequences of a micro-batch of this data rank, micro-batches of the step.
        documents: rows hold several, kept apart.
        edge: layers at either end of a stage whose memory is told apart.
    """

    job: Job
    widths: ModelWidths
    layout: Layout
    rank: int
    precision: str
    rows: int
    count: int
    documents: bool = False
    edge: int = EDGE


@dataclass
class Trace:
    """What the step did.

    Attributes:
        calls: (axis, op) → [calls, bytes].
        memory: moment → bytes by kind, where it held most. A moment is a phase and a place in the stage.
        parameters: of this rank. layers: of it, all stages. dealt: times that tokens were dealt to experts evenly.
    """

    calls: dict[tuple[str, str], list[int]] = field(default_factory=dict)
    memory: dict[Moment, dict[Kind, int]] = field(default_factory=dict)
    parameters: int = 0
    layers: int = 0
    dealt: int = 0
    seconds: float = 0.0

    def peak(self) -> tuple[Moment, dict[Kind, int]]:
        """The moment that holds most."""
        return max(self.memory.items(), key=lambda item: sum(item[1].values()))


def fake_step(asked: Question) -> Trace:
    """One optimizer step, not the first, so that optimizer state is there from its beginning."""
    began = time.perf_counter()
    trace = Trace()
    books = _Books(trace)
    layout = replace(
        asked.layout, compile="off"
    )  # a compiled block sends the same; what it fuses is not known here
    world = (
        open_fake_world(asked.rank, layout.world_size, CallRecorder(books)) if layout.world_size > 1 else None
    )
    try:
        mesh = build_mesh(layout, asked.rank, world)
        memory, values = MemoryLog(), Values()
        with ExitStack() as modes:

            def materialise(
                models: Sequence[Decoder], held: dict[str, Held], device: Device, seed: int
            ) -> None:
                modes.enter_context(FakeTensorMode(allow_non_fake_inputs=True))
                modes.enter_context(memory)
                modes.enter_context(values)
                allocate(models, device)

            built = assemble(asked.job, asked.widths, asked.precision, mesh, CPU, materialise)
            policy = built.policy(asked.job, mesh, CPU, Ledger(None))

            def step() -> None:
                policy.step(_batches(asked), Counts(1.0, 1.0, 1.0), 1e-3)

            if layout.pp > 1:
                step()  # a pipeline's runtime is made, and its ranks agree, in the first one
            books.open = True
            watch_step(built, memory, step, asked.edge)
            books.open = False
            trace.memory = {m: held for m, held in memory.peaks().items() if m not in OUTSIDE}
        trace.parameters = sum(_local(p).numel() for p in built.parameters)
        trace.layers = sum(len(model.layers) for model in built.models)
        trace.dealt = values.dealt
    finally:
        if world is not None:
            world.close()
    trace.seconds = time.perf_counter() - began
    return trace


def watch_step(built: Assembly, memory: MemoryLog, step: Callable[[], None], edge: int = EDGE) -> None:
    """Run ``step`` of ``built``, which ``memory`` has seen being made, with its moments and kinds told apart."""
    memory.is_kind(built.parameters, Kind.WEIGHTS)
    memory.is_kind((b for m in built.models for b in m.buffers()), Kind.OTHER)
    _make_optimizer_state(built)
    memory.is_kind(_optimizer_state(built), Kind.OPTIMIZER)
    memory.at("before")
    with _hooks(built, memory, edge):
        step()
    memory.is_kind(
        built.parameters, Kind.WEIGHTS
    )  # FSDP2 gives uneven shards new memory in the first forward
    memory.left_over()
    memory.at(_AFTER)


def _make_optimizer_state(built: Assembly) -> None:
    """One update by gradients of nothing: it makes the state that a run makes in its first step."""
    for parameter in built.parameters:
        parameter.grad = torch.zeros_like(parameter)
    built.optimizer.step()
    built.optimizer.zero_grad(set_to_none=True)


def _optimizer_state(built: Assembly) -> Iterator[Tensor]:
    for state in built.optimizer.state.values():
        for value in state.values():
            if isinstance(value, Tensor):
                yield value


@contextmanager
def _hooks(built: Assembly, memory: MemoryLog, edge: int) -> Iterator[None]:
    handles: list[Any] = []

    def optimizer_starts(*_: Any) -> None:
        memory.is_kind((p.grad for p in built.parameters), Kind.GRADIENTS)
        memory.at("optimizer")

    handles.append(built.optimizer.register_step_pre_hook(optimizer_starts))
    for number, model in enumerate(built.models):
        handles += _watch_model(model, memory, f" of stage {number}" if len(built.models) > 1 else "", edge)
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _watch_model(model: Decoder, memory: MemoryLog, stage: str, edge: int) -> list[Any]:
    """Moments of one stage: each layer's forward and backward by its place, and what lies outside the layers."""

    def begins(*_: Any) -> None:
        memory.forwarding = True
        memory.at(f"embedding{stage}")

    def ends(module: nn.Module, inputs: Any, out: Any) -> None:
        memory.is_kind([t for t in inputs if isinstance(t, Tensor) and not t.is_floating_point()], Kind.OTHER)

    handles = [model.register_forward_pre_hook(begins), model.register_forward_hook(ends)]
    layers = list(model.layers.values())
    for place, layer in enumerate(layers):
        where = f"{_place(place, len(layers), edge)}{stage}"
        last = place == len(layers) - 1
        handles += _watch_layer(layer, memory, where, f"head and loss{stage}" if last else "")
    return handles


def _watch_layer(layer: nn.Module, memory: MemoryLog, where: str, then: str) -> list[Any]:
    def begins(*_: Any) -> None:
        if torch._C._current_graph_task_id() == -1:  # else it is computed again, in its own backward
            memory.at(f"forward, {where}")

    def ends(module: nn.Module, inputs: Any, out: Tensor) -> None:
        if torch._C._current_graph_task_id() != -1:
            return
        if then:
            memory.at(then)
        if out.requires_grad:
            out.register_hook(back)

    def back(_: Tensor) -> None:
        memory.forwarding = False
        memory.at(f"backward, {where}")

    return [layer.register_forward_pre_hook(begins), layer.register_forward_hook(ends)]


def _place(place: int, layers: int, edge: int) -> str:
    if place < edge:
        return f"layer {place + 1}"
    behind = layers - 1 - place
    return f"layer {behind + 1} from the end" if behind < edge else "layers between"


def _batches(asked: Question) -> list[dict[str, Tensor]]:
    length, layout = asked.job.data.sequence_length, asked.layout
    names = ("tokens", "targets", *(("segments", "positions") if asked.documents else ()))
    found = []
    for _ in range(asked.count):
        batch = {
            name: torch.zeros(asked.rows, length, dtype=torch.int64 if name[0] == "t" else torch.int32)
            for name in names
        }
        if layout.cp > 1:
            batch = cp.take(batch, layout.cp, layout.coordinates(asked.rank)["cp"])
        found.append(batch)
    return found


def _local(parameter: Tensor) -> Tensor:
    local: Tensor = getattr(parameter, "_local_tensor", parameter)
    return local


class _Books:
    """What the wire's recorder needs of a ledger: calls are added up once the books are open."""

    def __init__(self, trace: Trace) -> None:
        self._trace, self.open = trace, False

    def span(self, phase: str, reason: str, /) -> Account:
        return _NO_SPAN

    def call(self, row: CallRow, /) -> None:
        if self.open:
            found = self._trace.calls.setdefault((row.axis, row.op), [0, 0])
            found[0] += 1
            found[1] += row.bytes


_NO_SPAN = ExitStack()
