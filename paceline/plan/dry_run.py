"""What a dry run answers: one rank's memory and messages of one step, as values and as text.

The step itself is run by ``recipes/dry_run.py``, the torch half; this file reads what it wrote.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from paceline.ledger.outcome import Exit, Refused
from paceline.ledger.plural import many
from paceline.plan.layout import Layout

EVIDENCE = "fake cluster"
"""The kind of evidence: the real step of a rank, on tensors without values and peers that are made up."""

MOST_RANKS = 16_384
KINDS: Mapping[str, str] = {
    "weights": "this rank's part of the parameters",
    "gradients": "of those parameters",
    "optimizer": "its state",
    "activations": "allocated by forwards, and kept for their backwards",
    "working weights": "gathered or cast for use",
    "temporaries": "of backward and update, messages among them",
    "other": "batch, buffers, tables",
}


@dataclass(frozen=True)
class Message:
    """All calls of one operation on one axis in a step of this rank."""

    axis: str
    op: str
    calls: int
    bytes: int


@dataclass(frozen=True)
class DryRun:
    """One step of one rank.

    Attributes:
        at: the rank's coordinates. parameters, layers: that it holds.
        memory: bytes by kind where the step holds most; ``moment`` says where that is, ``moments`` the bytes at the
            others.
        messages: by axis and operation, the most bytes first. Bytes are of the whole message of a call: the larger
            of what the rank hands in and what it gets.
        ran: what was run to know it: ``layers`` and ``micro_batches`` of the runs. The rest is extended linearly.
        assumed: what was not run or not known.
        planner: the planner's figures for its fullest rank, in bytes, to compare: ``allocated``, ``device`` (with what
            the allocator keeps, contexts and communicators), and ``room`` of a rank.
    """

    layout: str
    rank: int
    at: Mapping[str, int]
    precision: str
    micro_batches: int
    rows: int
    parameters: int
    layers: int
    memory: Mapping[str, int]
    moment: str
    moments: Mapping[str, int]
    messages: Sequence[Message]
    ran: Mapping[str, Sequence[int]]
    assumed: Sequence[str]
    seconds: float
    planner: Mapping[str, float] = field(default_factory=dict)

    @property
    def peak_bytes(self) -> int:
        """The most that the rank holds at once."""
        return sum(self.memory.values())

    @property
    def sent_bytes(self) -> int:
        """Of all messages of the step."""
        return sum(message.bytes for message in self.messages)

    def to_dict(self) -> dict[str, Any]:
        """As JSON (``paceline plan --dry-run --json``)."""
        totals = {"peak_bytes": self.peak_bytes, "message_bytes": self.sent_bytes}
        return {**asdict(self), **totals, "kind_of_evidence": EVIDENCE}

    @classmethod
    def from_dict(cls, found: Mapping[str, Any]) -> DryRun:
        """What :meth:`to_dict` wrote."""
        known = {name: found[name] for name in cls.__dataclass_fields__}
        return cls(**{**known, "messages": [Message(**row) for row in found["messages"]]})


def check_question(layout: Layout, rank: int) -> None:
    """Refuse what no dry run can answer.

    Raises:
        Refused: 2 for an open layout, a rank that it does not have, or more ranks than are made up.
    """
    if layout.open:
        raise Refused(
            f"{layout} is open: a dry run is of one layout",
            exit_code=Exit.USAGE,
            key="--layout",
            seen=f"--layout {layout}",
            rule="each degree is a number; `paceline plan JOB` names the best layout",
            use=f"--layout {layout.replace(auto=False) if layout.auto else 'fsdp=8'}",
        )
    world = layout.world_size
    if world > MOST_RANKS:
        raise Refused(
            f"{many(world, 'rank')} are more than a fake cluster has",
            exit_code=Exit.USAGE,
            key="--layout",
            seen=f"--layout {layout}",
            rule=f"a dry run makes up to {MOST_RANKS} ranks up",
            use=f"--layout {_fewer(layout)}",
        )
    if not 0 <= rank < world:
        raise Refused(
            f"{layout} has no rank {rank}",
            exit_code=Exit.USAGE,
            key="--rank",
            seen=f"--rank {rank}",
            rule="ranks are numbered from 0",
            allowed=f"0 … {world - 1}" if world > 1 else "0",
            use=f"--rank {world - 1 if rank >= world else 0}",
        )


def _fewer(layout: Layout) -> Layout:
    """Halved on dp, then fsdp, until there are few enough."""
    while layout.world_size > MOST_RANKS:
        axis = max(("dp", "fsdp", "pp", "tp", "cp"), key=layout.degree)
        layout = layout.replace(**{axis: layout.degree(axis) // 2})
    return layout


def text(found: DryRun) -> str:
    """The answer on one screen."""
    layout = Layout.parse(found.layout)
    place = ", ".join(f"{axis} {at}" for axis, at in found.at.items() if layout.degree(axis) > 1)
    held = f"{many(found.layers, 'layer')}, {_count(found.parameters)} parameters"
    micro = f"{found.micro_batches} micro-batch{'es' if found.micro_batches != 1 else ''} of {found.rows}"
    lines = [
        f"dry run  {found.layout} · rank {found.rank}{f' ({place})' if place else ''} · {found.precision}",
        f"holds    {held} · {micro} a step",
        "",
        f"memory   {size(found.peak_bytes)} at most, in {found.moment}",
    ]
    for kind, says in KINDS.items():
        if found.memory.get(kind):
            lines.append(f"  {kind:<16}{size(found.memory[kind]):>11}   {says}")
    if found.planner:
        lines.append(f"planner  {_planner(found.planner)}")
    lines += ["", f"messages {size(found.sent_bytes)} a step"]
    if found.messages:
        lines.append(f"  {'AXIS':<8}{'OP':<16}{'CALLS':>8}{'BYTES':>20}{'':>13}")
    for row in found.messages:
        lines.append(f"  {row.axis:<8}{row.op:<16}{row.calls:>8}{row.bytes:>20,}{f'({size(row.bytes)})':>13}")
    lines += ["", f"ran      {_ran(found)}"]
    lines += [f"assumed  {found.assumed[0]}"] if found.assumed else []
    lines += [f"         {one}" for one in found.assumed[1:]]
    lines.append(f"evidence {EVIDENCE}: the real step on tensors without values; nothing was sent or timed")
    return "\n".join(lines)


def _planner(known: Mapping[str, float]) -> str:
    fits = "fits" if known["device"] <= known["room"] else "does not fit"
    whole = f"{size(known['device'])} with allocator slack and what a process holds beside"
    return f"{size(known['allocated'])} on the fullest rank, {whole}: {fits} {size(known['room'])}"


def _ran(found: DryRun) -> str:
    layers, micros = found.ran["layers"], found.ran["micro_batches"]
    parts = []
    if len(layers) > 1:
        parts.append(f"the model with {layers[0]} and {many(layers[1], 'layer')}, extended linearly")
    if len(micros) > 1:
        parts.append(f"{micros[0]} and {many(micros[1], 'micro-batch')}, extended linearly")
    return f"{'; '.join(parts) or 'the whole step'} · {found.seconds:.1f} s"


def size(nbytes: float) -> str:
    """``1.23 GiB``."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(nbytes) < 1024:
            return f"{nbytes:.0f} {unit}" if unit == "B" or nbytes >= 1000 else f"{nbytes:.3g} {unit}"
        nbytes /= 1024
    return f"{nbytes:.3g} TiB"


def _count(number: int) -> str:
    for unit, one in (("B", 10**9), ("M", 10**6), ("k", 10**3)):
        if number >= one:
            return f"{number / one:.3g} {unit}"
    return str(number)
