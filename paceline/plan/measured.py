"""What this machine was measured to reach: the file that ``recipes/measure.py`` writes and plan reads.

The file is plain JSON in the cache folder, one a machine. It is never required: without it the planner
takes the catalogue with a wide interval and says so. A file of another machine or another schema is not
used.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

SCHEMA = 4  # 1 did not say how busy the machine was; 2 took slow samples on a busy one; 3 timed blocks in fp32 only
QUIET = 0.85
"""Share of the cores that a measurement must have got to count as taken on a quiet machine."""


def machine_key(cpu_model: str, cores: int, memory_bytes: int) -> str:
    """The name of a machine's measurement: CPU model, cores, and memory rounded to GiB."""
    import hashlib

    text = f"{cpu_model.strip()}|{cores}|{round(memory_bytes / 2**30)}"
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def measurement_path(cache: Path, key: str) -> Path:
    """Where the measurement of a machine lies below the cache folder."""
    return cache / "measured" / f"{key}.json"


def hash_of(rows: Mapping[str, Any]) -> str:
    """Of the figures of a measurement, whatever their order in the file."""
    import json
    from hashlib import blake2b

    kept = said({name: value for name, value in rows.items() if name not in ("hash", "paceline")})
    return blake2b(json.dumps(kept, sort_keys=True).encode(), digest_size=8).hexdigest()


def said(value: Any) -> Any:
    """Without what is None, which TOML cannot say and a reader takes for absent."""
    if isinstance(value, Mapping):
        return {name: said(one) for name, one in value.items() if one is not None}
    return [said(one) for one in value] if isinstance(value, list | tuple) else value


@dataclass(frozen=True)
class Measured:
    """A measurement file. Every row says with how many threads and simultaneous processes it was taken.

    Attributes:
        matmul: precision, size, threads, processes, flops_per_s (of one process).
        stream: threads, processes, bytes_per_s (of one process; reads and writes).
        optimizer: threads, processes, parameters_per_s (of one process; fused AdamW).
        blocks: a real decoder: its widths, precision, sequence_length, mbs, threads, processes, and the
        seconds
            of forward and backward of one block (``layer_s``) and of what is outside the blocks
            (``outer_s``).
        collectives: op, ranks, bytes (of the full message), seconds.
        dispatch_s: seconds that one block's operators cost when its tensors are tiny.
        process_bytes: resident bytes of a rank before it has a model.
        corrections: what runs say of these figures (:mod:`paceline.plan.speed.corrected`), by precision.
        cpu_share: of the cores' time, what the measurement got; below :data:`QUIET` other work was in the way.
    """

    key: str = ""
    at: str = ""
    torch: str = ""
    matmul: Sequence[Mapping[str, Any]] = field(default_factory=list)
    stream: Sequence[Mapping[str, Any]] = field(default_factory=list)
    optimizer: Sequence[Mapping[str, Any]] = field(default_factory=list)
    blocks: Sequence[Mapping[str, Any]] = field(default_factory=list)
    collectives: Sequence[Mapping[str, Any]] = field(default_factory=list)
    corrections: Sequence[Mapping[str, Any]] = field(default_factory=list)
    dispatch_s: float = 0.0
    process_bytes: int = 0
    cpu_share: float = 1.0

    @property
    def busy(self) -> bool:
        """Whether other programs held the cores while this was taken: rates are then too low, and MFU a fiction."""
        return self.cpu_share < QUIET

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Measured | None:
        """None for another schema or something that is no measurement."""
        if data.get("schema") != SCHEMA or not data.get("matmul"):
            return None
        names = (
            "key",
            "at",
            "torch",
            "matmul",
            "stream",
            "optimizer",
            "blocks",
            "collectives",
            "corrections",
        )
        kept = {name: data[name] for name in names if name in data}
        return cls(
            **kept,
            dispatch_s=float(data.get("dispatch_s", 0.0)),
            process_bytes=int(data.get("process_bytes", 0)),
            cpu_share=float(data.get("cpu_share", 1.0)),
        )

    def to_dict(self) -> dict[str, Any]:
        """As in a file, and in the ``[measured]`` table of a cluster file."""
        return {"schema": SCHEMA, **{one.name: getattr(self, one.name) for one in fields(self)}}

    @classmethod
    def read(cls, path: Path, key: str = "") -> Measured | None:
        """The measurement in a file; None when there is none, it is torn, or it is another machine's."""
        import json

        try:
            data = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        found = cls.from_dict(data) if isinstance(data, dict) else None
        return found if found is not None and (not key or found.key == key) else None

    def matmul_flops(self, precision: str, size: float, threads: int, processes: int) -> float | None:
        """FLOP/s of one process for products of about ``size``; None when this precision was not measured."""
        rows = [row for row in self.matmul if row["precision"] == precision]
        rows = nearest(rows, threads, processes)
        return interpolate([(row["size"], row["flops_per_s"]) for row in rows], size) if rows else None

    def rate(
        self, rows: Sequence[Mapping[str, Any]], name: str, threads: int, processes: int
    ) -> float | None:
        """One figure of ``stream`` or ``optimizer`` under these threads and processes."""
        near = nearest(rows, threads, processes)
        return float(near[0][name]) if near else None

    def collective_s(self, op: str, ranks: int, size_bytes: float) -> float | None:
        """Seconds of one collective, log-log between the measured sizes; None when never measured."""
        counts = sorted({row["ranks"] for row in self.collectives if row["op"] == op})
        if not counts or ranks < 2:
            return None
        near = min(counts, key=lambda n: abs(math.log(n / ranks)))
        points = [
            (r["bytes"], r["seconds"]) for r in self.collectives if r["op"] == op and r["ranks"] == near
        ]
        return interpolate(points, size_bytes, extend=True) * (ranks / near)


def nearest(rows: Iterable[Mapping[str, Any]], threads: int, processes: int) -> list[Mapping[str, Any]]:
    """The rows taken under the nearest (threads, processes); processes count double."""
    found = list(rows)
    if not found:
        return []
    distances = [_far(row["processes"], processes, row["threads"], threads) for row in found]
    least = min(distances) + 1e-9
    return [row for row, distance in zip(found, distances, strict=True) if distance <= least]


@cache
def _far(processes: int, wanted_processes: int, threads: int, wanted_threads: int) -> float:
    """A plan asks this thousands of times of the few combinations that were measured."""
    return 2 * abs(math.log(processes / wanted_processes)) + abs(math.log(threads / wanted_threads))


def interpolate(points: Sequence[tuple[float, float]], x: float, *, extend: bool = False) -> float:
    """Log-log interpolation. Beyond the ends: the end's value, or with ``extend`` proportional above the last
    point (a larger message takes proportionally longer) and the first value below the first."""
    line = sorted((float(a), float(b)) for a, b in points)
    if x <= line[0][0]:
        return line[0][1]
    if x >= line[-1][0]:
        return line[-1][1] * (x / line[-1][0] if extend else 1.0)
    for (x0, y0), (x1, y1) in pairwise(line):
        if x <= x1:
            part = math.log(x / x0) / math.log(x1 / x0)
            return math.exp(math.log(y0) + part * (math.log(y1) - math.log(y0)))
    raise AssertionError("unreachable")


def fastest_precision(measured: Measured | None, *, cuda: bool = False) -> str:
    """``train.precision = auto``: bf16 where a decoder is faster in it than in fp32, else fp32.

    Not only its products: attention and what is between may be slower in bf16. Where no decoder was timed in both, the
    products decide. Not measured: bf16 on CUDA, fp32 on a CPU (without bf16 instructions bf16 is up to 84 times slower
    there).
    """
    if cuda:
        return "bf16"
    ratios = _bf16_over_fp32(measured.blocks if measured else [])
    if ratios:
        return "bf16" if sum(map(math.log, ratios)) < 0 else "fp32"
    rates: dict[str, float] = {}
    for row in measured.matmul if measured else []:
        best = rates.get(row["precision"], 0.0)
        rates[row["precision"]] = max(best, row["flops_per_s"])
    return "bf16" if rates.get("bf16", 0.0) > rates.get("fp32", math.inf) else "fp32"


def _bf16_over_fp32(blocks: Sequence[Mapping[str, Any]]) -> list[float]:
    """Time of a two-layer decoder in bf16 over that in fp32, of every shape that was timed in both."""
    times: dict[str, dict[tuple[Any, ...], float]] = {"fp32": {}, "bf16": {}}
    for row in blocks:
        kind = tuple(sorted((k, str(v)) for k, v in row.get("kind", {}).items()))
        shape = (kind, row["sequence_length"], row["mbs"], row["threads"], row["processes"])
        if row["precision"] in times:
            times[row["precision"]][shape] = 2 * row["layer_s"] + row["outer_s"]
    return [times["bf16"][shape] / times["fp32"][shape] for shape in times["bf16"] if shape in times["fp32"]]


def worlds(cores: int) -> list[tuple[int, int, bool]]:
    """(ranks, threads of each, whether to time compute) of the runs that make up a measurement.

    With more ranks than cores only the collectives are new: the compute of waiting ranks follows.
    """
    counts = sorted({1, 2, 4, *([cores] if cores in (8, 16, 32) else [])})
    return [(n, max(1, cores // n), n <= max(1, cores)) for n in counts]


def merged(before: Mapping[str, Any], found: Mapping[str, Any]) -> dict[str, Any]:
    """The lists of a measurement file with the rows of one run added; the same conditions are replaced."""
    threads, processes = found["threads"], found["processes"]
    content: dict[str, Any] = {}
    for name in ("matmul", "stream", "optimizer", "blocks", "collectives"):
        new = list(found.get(name, []))
        old = [row for row in before.get(name, []) if not _replaced(row, name, new, threads, processes)]
        content[name] = old + new
    content["dispatch_s"] = found.get("dispatch_s") or before.get("dispatch_s", 0.0)
    content["cpu_share"] = min(float(found.get("cpu_share", 1.0)), float(before.get("cpu_share", 1.0)))
    content["process_bytes"] = max(int(found.get("process_bytes", 0)), int(before.get("process_bytes", 0)))
    return content


def _replaced(
    row: Mapping[str, Any], name: str, new: Sequence[Mapping[str, Any]], threads: int, processes: int
) -> bool:
    if (row["threads"], row["processes"]) != (threads, processes) or not new:
        return False
    if name != "blocks":
        return True
    # A block that was timed for one model stays when another model is timed.
    figures = ("layer_s", "outer_s")
    shape = {key: value for key, value in row.items() if key not in figures}
    return any(all(other.get(key) == value for key, value in shape.items()) for other in new)
