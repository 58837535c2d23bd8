"""Few layers and few micro-batches, run; many, worked out: exactly, since a step is linear in both.

A layer in the middle of a stage allocates and sends what its neighbours do, and the third micro-batch what the
second did. So the step of the whole model follows from two depths and, where there are many, two numbers of
micro-batches. Memory is not linear as such, being a maximum, but at each *moment* it is: in the forward and
backward of the layers at either end of a stage, in the head, in the optimizer. Each is extended, then the largest
taken. Between the ends a layer's moments lie on a straight line, so none of them can hold more than both ends.

Depths are cut by whole rounds over the stages, so that every stage loses as many layers and keeps its place.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace

from paceline.job.presets import ModelWidths
from paceline.plan.layout import Layout
from paceline.plan.pipeline.counts import refuses
from paceline.recipes.dry.memory import Kind
from paceline.recipes.dry.step import EDGE, Question, Trace
from paceline.recipes.stages import stages_of


@dataclass(frozen=True)
class Ladder:
    """Two rungs to run, and how many such steps further the end is; one rung when it is run itself."""

    rungs: tuple[int, ...]
    further: int = 0


@dataclass(frozen=True)
class Design:
    """What to run for a question: depths and numbers of micro-batches; every combination is one run."""

    depths: Ladder
    counts: Ladder
    edge: int

    def runs(self) -> list[tuple[int, int]]:
        """(layers, micro-batches), the cheapest first."""
        return [(layers, count) for layers in self.depths.rungs for count in self.counts.rungs]

    def work(self, run: tuple[int, int]) -> int:
        """What a run costs, in layers times micro-batches, with three more layers for all that is outside."""
        return (run[0] + 3) * run[1]


def design(asked: Question) -> Design:
    """The least that must be run."""
    edge = edge_of(asked.widths)
    return Design(_depths(asked, edge), _counts(asked.layout, asked.count), edge)


def whole(asked: Question) -> Design:
    """Everything, with nothing to extend."""
    layers = Ladder((asked.widths.num_hidden_layers,))
    return Design(layers, Ladder((asked.count,)), edge_of(asked.widths))


def edge_of(widths: ModelWidths) -> int:
    """Layers at either end of a stage that may differ from those between."""
    first = widths.first_k_dense_replace if widths.num_experts else 0
    return max(EDGE, first + 1, period(widths))


def period(widths: ModelWidths) -> int:
    """After how many layers the kinds of layers repeat."""
    kinds = widths.layer_types or ()
    for p in range(1, len(kinds)):
        if all(a == b for a, b in zip(kinds, kinds[p:], strict=False)):
            return p
    return max(1, len(kinds))


def with_depth(widths: ModelWidths, layers: int) -> ModelWidths:
    """The same model with its first layers only."""
    kinds = None if widths.layer_types is None else widths.layer_types[:layers]
    return replace(widths, num_hidden_layers=layers, layer_types=kinds)


def _depths(asked: Question, edge: int) -> Ladder:
    whole = asked.widths.num_hidden_layers
    unit = asked.layout.stages * period(asked.widths)
    here = _layers_here(asked, whole)
    for rounds in range(whole // unit, 1, -1):
        small = whole - rounds * unit
        large = small + unit
        if small < 1:
            continue
        shift = [n - rounds * period(asked.widths) for n in here]
        fits = _layers_here(asked, small) == shift and min(shift) >= 2 * edge
        if fits and _layers_here(asked, large) == [n + period(asked.widths) for n in shift]:
            return Ladder((small, large), rounds)
    return Ladder((whole,))


def _layers_here(asked: Question, layers: int) -> list[int]:
    if layers < asked.layout.stages:
        return [0]
    length = asked.job.data.sequence_length
    stages = stages_of(asked.layout, asked.rank, with_depth(asked.widths, layers), length)
    return [len(stage.part.layers) for stage in stages]


def _counts(layout: Layout, count: int) -> Ladder:
    """Without a pipeline the second micro-batch is like all later ones. A pipeline has to be full first, and as many
    sends under way as are ever left so (``update/pipeline/stages.py``: there and back, one a rank)."""
    unit = 1 if layout.pp == 1 else layout.pp
    least = 2 if layout.pp == 1 else 2 * (layout.stages + layout.pp)
    rounds = (count - least) // unit
    if rounds < 2:
        return Ladder((count,))
    small = count - rounds * unit
    if layout.pp > 1 and (refuses(layout, small) or refuses(layout, small + unit)):
        return Ladder((count,))
    return Ladder((small, small + unit), rounds)


def extend(plan: Design, traces: Mapping[tuple[int, int], Trace]) -> Trace:
    """The trace of the whole step from those of ``plan.runs()``."""
    grid = [[traces[layers, count] for count in plan.counts.rungs] for layers in plan.depths.rungs]

    def both(of: Callable[[Trace], int]) -> int:
        by_depth = [_line([of(trace) for trace in row], plan.counts.further) for row in grid]
        return _line(by_depth, plan.depths.further)

    calls = {key: [0, 0] for row in grid for trace in row for key in trace.calls}
    for key, sums in calls.items():
        for at in (0, 1):
            sums[at] = both(lambda trace, key=key, at=at: trace.calls.get(key, (0, 0))[at])  # type: ignore[misc]
    moments = _moments([trace for row in grid for trace in row])
    memory = {
        moment: {
            kind: both(lambda trace, m=moment, k=kind: trace.memory[m][k])  # type: ignore[misc]
            for kind in Kind
        }
        for moment in moments
    }
    return Trace(
        calls=calls,
        memory=memory,
        parameters=both(lambda trace: trace.parameters),
        layers=both(lambda trace: trace.layers),
        dealt=both(lambda trace: trace.dealt),
        seconds=sum(trace.seconds for row in grid for trace in row),
    )


def _moments(traces: Sequence[Trace]) -> list[Hashable]:
    """Those that every depth has: "layers between" only the deeper ones do."""
    return [m for m in traces[0].memory if all(m in trace.memory for trace in traces)]


def _line(values: Sequence[int], further: int) -> int:
    """Through one value or two, to ``further`` steps beyond the first."""
    return values[0] if len(values) == 1 else values[0] + (values[1] - values[0]) * further
