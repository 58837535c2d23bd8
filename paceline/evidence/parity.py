"""Whether ranks trained what one device trained: their figures against a limit, as rows and a verdict.

A rank's report is what ``recipes/prove.py`` returns; no tensor comes here. Every replica of every element is judged:
a parameter is equal when each rank that holds a part of it is within the limit, and all parts together cover it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from paceline.plan.layout import Layout
from paceline.recover.slices import overlap

LIMIT = 1e-9
OWN_TIMES, OWN_PLUS = 2.0, 1e-5
"""In the job's own precision: at most this many times one device's own error, and so much more."""

Report = Mapping[str, Any]
"""One rank's ``losses``, ``norms``, ``held_out``, ``finite`` and ``kinds``; see ``recipes/prove.run_case``."""


@dataclass(frozen=True)
class Found:
    """The worst error of one tensor, of one kind, over the ranks; ``rank`` has it, ``block`` is its row."""

    name: str
    kind: str
    error: float
    limit: float
    rank: int
    block: Mapping[str, Any] = field(repr=False)

    @property
    def differs(self) -> bool:
        return not self.error <= self.limit


@dataclass(frozen=True)
class Row:
    """One line of the table.

    Attributes:
        what: ``loss``, ``gradients, 57 parameters`` …
        error: the worst, relative. worst: the tensor that has it, or empty. limit: what it is held to.
        differ, of: how many tensors differ, of how many.
        leg: ``fp64``, or the job's precision. step: of a number, the first in which it is wrong; 0 = in none.
        ranks: of a number, those on which it is wrong in any step.
    """

    what: str
    error: float
    limit: float
    worst: str = ""
    differ: int = 0
    of: int = 0
    leg: str = "fp64"
    step: int = 0
    ranks: tuple[int, ...] = ()

    @property
    def equal(self) -> bool:
        return self.differ == 0

    def to_dict(self) -> dict[str, Any]:
        """Plain values; an error that is no number is null."""
        return {
            k: v if not isinstance(v, float) or math.isfinite(v) else None for k, v in asdict(self).items()
        } | {"equal": self.equal}


@dataclass(frozen=True)
class Judged:
    """A leg of a proof: its rows, and every tensor that differs in the order of cause."""

    rows: tuple[Row, ...]
    differing: tuple[Found, ...]
    reports: Sequence[Report] = field(repr=False, default=())

    @property
    def equal(self) -> bool:
        return all(row.equal for row in self.rows)


def judge(reference: Mapping[str, Any], reports: Sequence[Report], layout: Layout) -> Judged:
    """The float64 leg.

    Args:
        reference: the index that one device wrote (``losses``, ``norms``, ``held_out``, ``most``, ``shapes``).
        reports: by rank.
    """
    steps = len(reference["losses"])
    names = list(reference["shapes"]["gradient-1"])
    gradients = [f for n in range(1, steps + 1) for f in _tensors(reference, reports, f"gradient-{n}", names)]
    weights = [
        f
        for n in range(steps + 1)
        for f in _tensors(reference, reports, f"weights-{n}", list(reference["shapes"][f"weights-{n}"]))
    ]
    moments = list(_tensors(reference, reports, "state", list(reference["shapes"]["state"])))
    rows = (
        _numbers("loss", reference["losses"], [r["losses"] for r in reports]),
        _row(f"gradients, {len(names)} parameters", _first_wrong(gradients)),
        _numbers("gradient norm (clipping)", reference["norms"], [r["norms"] for r in reports]),
        _row("optimizer state", moments),
        _row(_weights_text(weights, steps), _first_wrong(weights)),
        _numbers("held-out loss", [reference["held_out"]], [[r["held_out"]] for r in reports]),
    )
    return Judged(rows, tuple(_in_order_of_cause([*gradients, *weights], names, moments)), reports)


def _weights_text(weights: Sequence[Found], steps: int) -> str:
    """``parameters after 3 steps``; where some differ, after how many they do first."""
    wrong = [int(f.kind.rpartition("-")[2]) for f in weights if f.differs]
    after = min(wrong, default=steps)
    return f"parameters after {after} step{'' if after == 1 else 's'}" if after else "parameters at the start"


def judge_own(
    reference: Mapping[str, Any],
    alone: Sequence[Report],
    reports: Sequence[Report],
    precision: str,
    rounding: float = 0.0,
) -> Judged:
    """The leg in the job's own precision: errors against the float64 truth, held to one device's own.

    Args:
        alone: the report of one device in this precision. reports: of the layout's ranks.
        rounding: what the layout's messages round beside (``evidence/rounding.py``).
    """
    names = list(reference["shapes"]["gradient-1"])
    found: list[Found] = []
    for number in range(1, len(reference["losses"]) + 1):
        kind = f"gradient-{number}"
        own = {f.name: f.error for f in _tensors(reference, alone, kind, names)}
        limits = {name: _own_limit(error, rounding) for name, error in own.items()}
        found += _tensors(reference, reports, kind, names, limits)
    rows = (
        _numbers_own(f"loss in {precision}", reference["losses"], alone, reports, precision, rounding),
        _row(f"gradients in {precision}", _first_wrong(found), precision),
    )
    return Judged(rows, tuple(_in_order_of_cause(found, names, ())), reports)


def _own_limit(own: float, rounding: float) -> float:
    return OWN_TIMES * own + OWN_PLUS + rounding if math.isfinite(own) else 0.0


def _tensors(
    reference: Mapping[str, Any],
    reports: Sequence[Report],
    kind: str,
    names: Sequence[str],
    limits: Mapping[str, float] | None = None,
) -> Iterator[Found]:
    """Each tensor of the reference, and each that only the ranks have, by its worst block."""
    blocks: dict[str, list[tuple[int, Mapping[str, Any]]]] = {name: [] for name in names}
    for rank, report in enumerate(reports):
        for block in report["kinds"].get(kind, ()):
            blocks.setdefault(block["name"], []).append((rank, block))
    for name, held in blocks.items():
        limit = LIMIT if limits is None else limits.get(name, LIMIT)
        shape = reference["shapes"][kind].get(name)
        if shape is not None and not covers(shape, [block for _, block in held]):
            missing = {"missing": True, "held": len(held)}
            yield Found(name, kind, math.inf, limit, held[0][0] if held else -1, missing)
            continue
        rank, worst = max(held, key=lambda pair: _badness(pair[1]["error"]))
        yield Found(name, kind, float(worst["error"]), limit, rank, worst)


def covers(shape: Sequence[int], blocks: Sequence[Mapping[str, Any]]) -> bool:
    """Whether every element is in some block (replicas hold it several times)."""
    distinct = {(tuple(b["starts"]), tuple(b["shape"])) for b in blocks}
    size = math.prod(shape)
    if any(n == tuple(shape) for _, n in distinct):
        return True
    pieces = sorted(distinct)
    apart = all(overlap(a, n, b, m) is None for i, (a, n) in enumerate(pieces) for b, m in pieces[i + 1 :])
    if apart:
        return sum(math.prod(n) for _, n in pieces) == size
    return _union(shape, pieces) == size


def _union(shape: Sequence[int], pieces: Sequence[tuple[Sequence[int], Sequence[int]]]) -> int:
    """Elements in at least one of blocks that overlap in part (kv heads repeated over ranks that share others)."""
    import numpy as np

    edges = [
        sorted({0, size, *(s[d] for s, _ in pieces), *(s[d] + n[d] for s, n in pieces)})
        for d, size in enumerate(shape)
    ]
    seen = np.zeros([len(row) - 1 for row in edges], dtype=bool)
    for starts, extent in pieces:
        seen[
            tuple(
                slice(row.index(a), row.index(a + n)) for row, a, n in zip(edges, starts, extent, strict=True)
            )
        ] = True
    sizes = np.ones([1] * len(shape))
    for d, row in enumerate(edges):
        sizes = sizes * np.diff(row).reshape([-1 if i == d else 1 for i in range(len(shape))])
    return int((seen * sizes).sum())


def _first_wrong(gradients: Sequence[Found]) -> Sequence[Found]:
    """All of them; where some differ, those of the first step in which any does: after it everything differs."""
    kind = next((f.kind for f in gradients if f.differs), None)
    return gradients if kind is None else [f for f in gradients if f.kind == kind]


def _badness(error: float) -> float:
    return math.inf if math.isnan(error) else error


def _row(what: str, found: Sequence[Found], leg: str = "fp64") -> Row:
    """The line of many tensors: the one farthest over its limit, or nearest below."""
    if not found:
        return Row(what, 0.0, LIMIT, leg=leg)
    worst = max(found, key=lambda f: _badness(f.error / f.limit if f.limit else f.error or 0.0))
    differing = {f.name for f in found if f.differs}
    names = {f.name for f in found}
    shown = worst.name.removeprefix("model/").removeprefix("optimizer/")
    return Row(what, worst.error, worst.limit, shown, len(differing), len(names), leg)


def relative(truth: float, value: float | None) -> float:
    """|truth - value| / |truth|; infinite where a value is none, or no number."""
    if value is None or not math.isfinite(value) or not math.isfinite(truth):
        return math.inf
    return abs(truth - value) / (abs(truth) or 1.0)


def _numbers(
    what: str, truth: Sequence[float | None], found: Sequence[Sequence[float | None]], limit: float = LIMIT
) -> Row:
    errors = [math.inf if len(row) != len(truth) else 0.0 for row in found]
    errors += [relative(t, v) for row in found for t, v in zip(truth, row, strict=False) if t is not None]
    error = max(errors, default=math.inf)
    wrong = [
        (step, rank)
        for rank, row in enumerate(found)
        for step, (t, v) in enumerate(zip(truth, row, strict=False), start=1)
        if t is not None and not relative(t, v) <= limit
    ]
    first = min((step for step, _ in wrong), default=0)
    ranks = tuple(sorted({rank for _, rank in wrong}))
    return Row(what, error, limit, differ=int(not error <= limit), of=1, step=first, ranks=ranks)


def _numbers_own(
    what: str,
    truth: Sequence[float],
    alone: Sequence[Report],
    reports: Sequence[Report],
    precision: str,
    rounding: float,
) -> Row:
    own = max(relative(t, v) for t, v in zip(truth, alone[0]["losses"], strict=True))
    row = _numbers(what, truth, [r["losses"] for r in reports], _own_limit(own, rounding))
    return Row(**{**asdict(row), "leg": precision})


def _in_order_of_cause(
    stepwise: Sequence[Found], names: Sequence[str], state: Sequence[Found]
) -> Iterator[Found]:
    """Step by step, and in a step gradients before the weights that they make; what weights begin with is before all.

    Inside a kind from the head back to the embedding, as the backward makes gradients, since a fault in the backward
    spoils everything that comes after it; a tensor that is not there at all comes before all others.
    """
    place = {name: at for at, name in enumerate(names)}
    yield from sorted((f for f in stepwise if f.differs), key=lambda f: _when(f, place))
    yield from (f for f in state if f.differs)


def _when(found: Found, place: Mapping[str, int]) -> tuple[int, bool, bool, int]:
    kind, _, step = found.kind.partition("-")
    at = place.get(found.name.removeprefix("model/"), len(place))
    return int(step), kind != "gradient", not found.block.get("missing"), -at
