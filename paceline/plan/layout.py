"""The layout: which rank holds which part. One frozen value that prints and parses (interface §4).

A layout is everything that may change speed and memory and nothing that may change the mathematics. All axes
and options of the grammar parse and print; what this version cannot run is refused later, by ``rules.py``.

Rank order, ``tp`` fastest: ``rank = (((pp·DP + dp)·FSDP + fsdp)·CP + cp)·TP + tp``. It is not a setting.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

from paceline.ledger.outcome import Exit, Refused
from paceline.ledger.plural import many
from paceline.plan import grammar
from paceline.plan.grammar import AUTO, AXES, KIND_FIELD, KINDS, OPTIONS

RANK_AXES = ("pp", "dp", "fsdp", "cp", "tp")
"""The axes that make ranks, slowest first."""

V_SCHEDULES = ("zbv", "dualpipev")
"""Schedules whose second half of the stages runs back over the ranks, in a V."""


@dataclass(frozen=True)
class Layout:
    """Degrees and options. A degree of 1 is the same as absent; ``AUTO`` (0) is the devices that are left.

    Attributes:
        dp: replicas. fsdp: shards, ``zero`` says of what. tp, pp, cp: cuts of layer, depth and sequence.
        ep, etp: experts, and the cut inside one; they add no ranks.
        mbs: micro-batch, sequences per data rank; None = not given, the planner's.
        vpp: stages per rank.
        auto: the whole layout is the planner's.
    """

    dp: int = 1
    fsdp: int = 1
    zero: str = "zero3"
    tp: int = 1
    pp: int = 1
    schedule: str = "1f1b"
    cp: int = 1
    cp_kind: str = "allgather"
    ep: int = 1
    etp: int = 1
    mbs: int | None = None
    vpp: int = 0
    recompute: str = "none"
    offload: str = "none"
    compile: str = "off"
    auto: bool = False

    def __post_init__(self) -> None:
        # Degree 1 is the same as absent, so what only describes an absent axis falls back to its default.
        for axis, field in KIND_FIELD.items():
            if getattr(self, axis) == 1:
                object.__setattr__(self, field, KINDS[axis][0])
        if self.vpp == 0:
            object.__setattr__(self, "vpp", self.default_vpp)

    @classmethod
    def parse(cls, text: str, where: str = "") -> Layout:
        """Read a layout string; ``where`` (``job.toml:14``, ``--layout``) is repeated in an error.

        Raises:
            Refused: exit 2; ``use`` holds the layout that was probably meant.
        """
        return cls(**grammar.read(text, where))

    def __str__(self) -> str:
        return self._text

    @cached_property
    def _text(self) -> str:
        return ",".join(self._items(full=False))

    @property
    def full(self) -> str:
        """Every choice made, defaults included; parses to the same layout."""
        return ",".join(self._items(full=True))

    @property
    def slug(self) -> str:
        """The layout as part of a file name: ``fsdp=4:zero2,pp=2:zbv`` → ``fsdp4.zero2-pp2.zbv``."""
        parts = []
        for item in self._items(full=False):
            name, _, value = item.partition("=")
            joint = "." if OPTIONS.get(name) else ""
            parts.append(f"{name}{joint}{value.replace(':', '.')}")
        return "-".join(parts)

    def _items(self, *, full: bool) -> list[str]:
        items = []
        for axis in AXES:
            degree = getattr(self, axis)
            if degree == 1:
                continue
            kind = getattr(self, KIND_FIELD[axis]) if axis in KIND_FIELD else ""
            colon = f":{kind}" if kind and (full or kind != KINDS[axis][0]) else ""
            items.append(f"{axis}={'auto' if degree == AUTO else degree}{colon}")
        if not items:
            items.append("auto" if self.auto else "single")
        if self.mbs is not None:
            items.append(f"mbs={self.mbs}")
        if self.vpp != self.default_vpp or (full and self.pp != 1):
            items.append(f"vpp={self.vpp}")
        for name, words in OPTIONS.items():
            if words and (full or getattr(self, name) != words[0]):
                items.append(f"{name}={getattr(self, name)}")
        return items

    @property
    def default_vpp(self) -> int:
        """Stages per rank that the schedule implies: two where it interleaves or runs in a V, else one."""
        several = self.schedule in ("interleaved", "zero-bubble", *V_SCHEDULES)
        return 2 if self.pp != 1 and several else 1

    @cached_property
    def open(self) -> bool:
        """Whether something is still the planner's: ``auto``, or a degree written ``auto``."""
        known = self.dp and self.fsdp and self.tp and self.pp and self.cp and self.ep and self.etp
        return self.auto or not known

    @cached_property
    def world_size(self) -> int:
        """Ranks: dp · fsdp · tp · pp · cp. An open layout has none yet (ValueError)."""
        if self.open:
            raise ValueError(f"the layout {self} is open: resolve it first")
        return self.dp * self.fsdp * self.tp * self.pp * self.cp

    @cached_property
    def cut(self) -> Layout:
        """The layout whatever its micro-batch."""
        return self if self.mbs is None else self.replace(mbs=None)

    @property
    def sharded(self) -> bool:
        """Whether fsdp cuts what a rank keeps."""
        return self.fsdp > 1

    @property
    def data_degree(self) -> int:
        """Over how many ranks the global batch is spread: dp · fsdp."""
        return self.dp * self.fsdp

    def degree(self, axis: str) -> int:
        """The degree of one axis by name."""
        if axis not in AXES:
            raise KeyError(axis)
        return int(getattr(self, axis))

    def replace(self, **changes: Any) -> Layout:
        """A layout with some fields changed; a changed schedule takes its own ``vpp`` unless one is given."""
        if {"pp", "schedule"} & changes.keys() and self.vpp == self.default_vpp:
            changes.setdefault("vpp", 0)
        unknown = changes.keys() - FIELDS
        if unknown:
            raise TypeError(f"a layout has no {', '.join(sorted(unknown))}")
        # A search makes many: without the constructor, which sets a frozen field four times as slowly.
        other = object.__new__(Layout)
        mine = self.__dict__
        other.__dict__.update({name: mine[name] for name in FIELDS} | changes)
        other.__post_init__()
        return other

    def resolve(self, devices: int) -> Layout:
        """The layout with its one ``auto`` degree filled with the devices that are left.

        Raises:
            Refused: exit 10 when the other degrees do not divide the devices.
        """
        unknown = [axis for axis in AXES if getattr(self, axis) == AUTO]
        if not unknown:
            return self
        axis = unknown[0]
        if axis in ("ep", "etp"):
            raise Refused(
                f"{axis}=auto is not possible",
                exit_code=Exit.RULE,
                key="layout.use",
                seen=str(self),
                rule=f"{axis} adds no ranks, so no devices are left over for it",
                use=f"--layout {self.replace(**{axis: 1})}",
            )
        taken = self.replace(**{axis: 1}).world_size
        if devices % taken or devices < taken:
            raise Refused(
                f"{axis}=auto leaves no whole number of devices",
                exit_code=Exit.RULE,
                key="layout.use",
                seen=f"{self}; {many(devices, 'device')}, the other axes take {taken}",
                rule="the other degrees multiply to a divisor of the devices",
                use="--layout auto",
            )
        return self.replace(**{axis: devices // taken})

    def coordinates(self, rank: int) -> dict[str, int]:
        """Where a rank stands on each axis; ``ep`` and ``etp`` are its place among the experts."""
        if not 0 <= rank < self.world_size:
            raise ValueError(f"rank {rank} is not in 0 … {self.world_size - 1}")
        place: dict[str, int] = {}
        rest = rank
        for axis in reversed(RANK_AXES):
            rest, place[axis] = divmod(rest, getattr(self, axis))
        inner = rank % (self.world_size // self.pp)
        place["etp"] = inner % self.etp
        place["ep"] = inner // self.etp % self.ep
        return {axis: place[axis] for axis in AXES}

    def rank_of(self, coordinates: Mapping[str, int]) -> int:
        """The rank at these coordinates (of dp fsdp tp pp cp; absent = 0): inverse of :meth:`coordinates`."""
        rank = 0
        for axis in RANK_AXES:
            degree, place = getattr(self, axis), coordinates.get(axis, 0)
            if not 0 <= place < degree:
                raise ValueError(f"{axis} coordinate {place} is not in 0 … {degree - 1}")
            rank = rank * degree + place
        return rank

    def groups(self, axis: str) -> list[list[int]]:
        """The ranks that differ on ``axis`` only, group by group, each in order of that axis."""
        if axis not in RANK_AXES:
            raise KeyError(axis)
        found: dict[int, list[int]] = {}
        for rank in range(self.world_size):
            first = self.rank_of(self.coordinates(rank) | {axis: 0})
            found.setdefault(first, []).append(rank)
        return list(found.values())

    def data_rank(self, rank: int) -> int:
        """Which share of the global batch a rank reads: ``dp · FSDP + fsdp``."""
        place = self.coordinates(rank)
        return place["dp"] * self.fsdp + place["fsdp"]

    def data_rows(self, global_batch: int) -> int:
        """Rows of one data rank in a step: the ceiling; the remainder is filled with zero-weight rows."""
        return -(-global_batch // self.data_degree)

    @property
    def stages(self) -> int:
        """Pipeline stages: ranks along ``pp`` times stages per rank."""
        return self.pp * self.vpp

    def stage_rank(self, stage: int) -> int:
        """The ``pp`` coordinate that owns a stage: round and round, or down and back on a V schedule."""
        lap, place = divmod(stage, self.pp)
        back = self.schedule in V_SCHEDULES and lap % 2 == 1
        return self.pp - 1 - place if back else place


FIELDS = tuple(one.name for one in fields(Layout))


def balanced(size: int, parts: int, index: int) -> range:
    """Part ``index`` of ``size`` items, contiguous; sizes differ by at most one, larger first."""
    whole, extra = divmod(size, parts)
    start = index * whole + min(index, extra)
    return range(start, start + whole + (index < extra))


def chunk(size: int, parts: int, index: int) -> range:
    """Part ``index`` as ``torch.chunk`` and FSDP2 cut dimension 0: ``ceil(size / parts)`` rows each.

    The last parts may be short or empty. Use :func:`balanced` for layers, this for rows of a parameter.
    """
    width = -(-size // parts)
    start = min(index * width, size)
    return range(start, min(start + width, size))
