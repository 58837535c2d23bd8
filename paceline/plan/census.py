"""What became of the layouts of each family: the search's tally, family by family, with sums that add up to it.

A family is the axes that a layout cuts by, the stage of its fsdp and the schedule of its pipeline (``weigh.family``).
A sifted space is counted while it is sifted, by columns; how many of a family divide, and how many of them the rule
book refuses, is counted from the space when somebody asks, since the search needs only their sum.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from paceline.plan.enumerate import Cut, Depth, Space, splits_backward
from paceline.plan.layout import Layout
from paceline.plan.pipeline.counts import takes
from paceline.plan.tally import Tally
from paceline.plan.weigh import family

Array = Any
LATE = ("deadline", "cost")


@dataclass
class Census:
    """Tallies by family: ``counted`` whole, and ``sifted`` without what is counted from ``spaces``.

    Attributes:
        waiting: (model, share of the batch, kind, layouts whose data ranks are all of one kind, other layouts): numbers
            that the search notes, and that get their family's name when somebody asks.
    """

    counted: dict[str, Tally] = field(default_factory=dict)
    sifted: dict[str, Counter[str]] = field(default_factory=dict)
    waiting: list[tuple[Layout, str, str, int, int]] = field(default_factory=list)
    spaces: list[Space] = field(default_factory=list)

    def __iadd__(self, other: Census) -> Census:
        for name, tally in other.counted.items():
            self.counted[name] = self.counted.get(name, Tally()) + tally
        for name, found in other.sifted.items():
            self.sifted.setdefault(name, Counter()).update(found)
        self.waiting += other.waiting
        self.spaces += other.spaces
        return self

    def add(self, name: str, kind: str, number: int) -> None:
        if number:
            self.sifted.setdefault(name, Counter())[kind] += number

    def note(self, model: Layout, share: str, kind: str, alone: int, replicated: int) -> None:
        """Layouts of a model with a share of the batch (``fsdp:zero2``, or none), and those with dp beside it."""
        if alone or replicated:
            self.waiting.append((model, share, kind, alone, replicated))

    def split(self, model: Layout, degree: Array, splits: Array, kind: str, zero: str = "") -> None:
        """Points of a field: as replicas, or with ``zero`` all ways to cut their data ranks into shards."""
        many = len(degree)
        if not many:
            return
        several = int((degree > 1).sum())
        if zero:  # of the degrees of fsdp above 1 one takes all data ranks, the others leave replicas
            self.note(model, f"fsdp:{zero}", kind, several, int(splits.sum()) - several)
        else:
            self.note(model, "", kind, many - several, several)

    def _name_waiting(self) -> None:
        for model, share, kind, alone, replicated in self.waiting:
            rest = family(model)
            self.add(named(share, rest), kind, alone)
            self.add(named(_with_dp(share), rest), kind, replicated)
        self.waiting.clear()

    def families(self) -> dict[str, Tally]:
        """Tallies that add up to the search's, family by family."""
        found = dict(self.counted)
        self._name_waiting()
        whole: dict[str, Counter[str]] = {}
        for space in self.spaces:
            for name, counts in by_family(space).items():
                whole.setdefault(name, Counter()).update(counts)
        for name, counts in whole.items():
            sifted = self.sifted.get(name, Counter())
            tally = Tally(**counts, **sifted)
            pruned = tally.divide - tally.refused - tally.over_memory - tally.scored
            found[name] = found.get(name, Tally()) + replace(tally, too_slow=pruned)
        return found


def few_of(space: Space, names: set[str], world: int, most: int = 6) -> dict[str, list[Layout]]:
    """Up to ``most`` layouts of each family over ``world`` ranks, the least cut first: for families that the search
    left alone as a whole."""
    found: dict[str, list[Layout]] = {name: [] for name in names}
    for cut in space.cuts:
        for depth in space.depths:
            rest = family(space.model(cut, depth))
            mine = [
                (share, zero, found[name])
                for share in (False, True)
                for zero in ("", *space.stages)
                if len(found.get(name := _share_of(share, zero, rest), FULL)) < most
            ]
            if mine:
                _add_few(space, cut, depth, world, mine)
    return found


FULL = (None,) * 99


def _share_of(replicated: bool, zero: str, rest: str) -> str:
    share = f"fsdp:{zero}" if zero else ""
    return named(_with_dp(share) if replicated else share, rest)


def _add_few(
    space: Space, cut: Cut, depth: Depth, world: int, wanted: list[tuple[bool, str, list[Layout]]]
) -> None:
    shares = [share for share in space.shares(cut, depth) if share.world == world][:2]
    for share in shares:
        for replicated, zero, found in wanted:
            fsdp = 1 if not zero else share.degree
            if replicated and zero:
                fsdp = max((n for n in space.shards(share.degree) if n < share.degree), default=1)
            dp = share.degree // fsdp
            if (dp > 1) != replicated or (fsdp > 1) != bool(zero):
                continue
            for recompute in (space.recomputes[0], space.recomputes[-1]):
                model = space.model(cut, depth, recompute)
                found.append(model.replace(dp=dp, fsdp=fsdp, zero=zero or "zero3", mbs=share.mbs))


def _with_dp(share: str) -> str:
    return f"dp,{share}" if share else "dp"


def named(share: str, rest: str) -> str:
    """The family of a share of the batch beside the axes that cut the model."""
    words = [word for word in (share, "" if rest == "single" else rest) if word]
    return ",".join(words) or "single"


def of_list(layouts: Iterable[tuple[Layout, str]]) -> Census:
    """Of layouts that were all priced, each with its kind of rejection; "" for a candidate."""
    found: dict[str, Counter[str]] = {}
    for layout, kind in layouts:
        counts = found.setdefault(family(layout), Counter())
        counts.update(divide=1, refused=kind == "rule", scored=kind != "rule")
        counts.update(unfit=kind == "memory", late=kind in LATE)
    return Census({name: Tally(**counts) for name, counts in found.items()})


def by_family(space: Space) -> dict[str, Counter[str]]:
    """Of each family how many ``divide``, and how many of them are ``refused``; without listing them."""
    cuts: Counter[tuple[int, int, str]] = Counter()
    for cut in space.cuts:
        cuts[cut.tp * cut.cp, cut.ep * cut.etp, family(space.model(cut, Depth()))] += 1
    depths = Counter((depth.pp, depth.schedule) for depth in space.depths)
    found: dict[str, Counter[str]] = {}
    for (pp, schedule), deep in depths.items():
        depth = Depth(pp, schedule, 2)
        pipeline = family(space.model(Cut(), depth))
        for taken in {ranks for ranks, _, _ in cuts}:
            shares = _shares(space, taken, depth)
            for (ranks, inner, cut_family), many in cuts.items() if shares else ():
                if ranks != taken:
                    continue
                rest = _beside(cut_family, pipeline)
                for (world, share), counts in shares.items():
                    if world // pp % inner == 0:
                        total = found.setdefault(named(share, rest), Counter())
                        for kind, number in counts.items():
                            total[kind] += number * deep * many * len(space.recomputes)
    return found


def _shares(space: Space, taken: int, depth: Depth) -> Mapping[tuple[int, str], Counter[str]]:
    """(world, how the data ranks divide the batch) → counts, beside a cut of so many ranks and a depth."""
    found: dict[tuple[int, str], Counter[str]] = {}
    model = Layout(pp=depth.pp, schedule=depth.schedule, vpp=depth.vpp)
    for share in space.shares_of(taken * depth.pp):
        runs = takes(model, share.micros)
        shards = len(space.shards(share.degree))
        whole = int(share.degree > 1)
        numbers = {"dp" if whole else "": (1, not runs)}
        for zero in space.stages:
            no = not runs or (zero == "zero3" and splits_backward(depth))
            numbers[f"fsdp:{zero}"] = min(whole, shards), no
            numbers[f"dp,fsdp:{zero}"] = shards - min(whole, shards), no
        for name, (number, refused) in numbers.items():
            if number:
                counts = found.setdefault((share.world, name), Counter())
                counts.update(divide=number, refused=number if refused else 0)
    return found


def _beside(cut_family: str, pipeline: str) -> str:
    """The family of a cut on a pipeline: axes in the order of ``weigh.FAMILY``, where pp follows tp."""
    if pipeline == "single":
        return cut_family
    words = [] if cut_family == "single" else cut_family.split(",")
    place = 1 if words and words[0] == "tp" else 0
    return ",".join([*words[:place], pipeline, *words[place:]])
