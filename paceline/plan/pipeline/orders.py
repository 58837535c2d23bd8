"""What each rank of a pipeline does, in which order, for every schedule that a layout can name.

The runtime is torch's (``torch.distributed.pipelining``); this is the same order as plain data, so that a plan
can be checked, timed and drawn where no torch is. ``tests/plan/pipeline/test_orders.py`` holds each schedule to
the order of the installed torch over a grid of sizes.

    gpipe         all forwards, then all backwards (Huang et al. 2019, arXiv:1811.06965)
    1f1b          one forward, one backward (Narayanan et al. 2019, PipeDream-flush)
    interleaved   1f1b over several stages a rank, round and round (Narayanan et al. 2021, arXiv:2104.04473)
    zero-bubble   the same with the backward split: inputs first, weights where a bubble would be (ZB1P; Qi et
                  al. 2023, arXiv:2401.10241)
    zbv           two stages a rank, down and back in a V, split backward (the same paper, section 6)
    dualpipev     the V with a forward and a backward run as one (DeepSeek-AI 2024, arXiv:2412.19437)

Title of the hard why: *a block that recomputes is not split*. torch asks for the gradients of each group of weights
in a call of its own, and a block that is computed again is so in every call: 52 and 88 forwards of a block where 8
were due (2 ranks, 4 micro-batches, zbv, ``recompute=full``). A compiled block gives both halves at once or none. So
under ``recompute`` and ``compile`` the whole backward runs where ``I`` stands, and ``W`` is nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from paceline.plan.pipeline.counts import Pipeline, per_round, refuses

KINDS = {"F": "forward", "B": "backward", "I": "backward of the inputs", "W": "backward of the weights"}
"""``B`` is the whole backward; a split one is ``I``, then ``W`` at leisure."""


@dataclass(frozen=True, order=True)
class Action:
    """One piece of work of one stage for one micro-batch; prints as ``2F0``, and parses.

    ``joined`` (printed ``2F0+``): it runs as one with the action after it, and what it has to send leaves
    after both.
    """

    stage: int
    kind: str
    micro_batch: int
    joined: bool = False

    def __str__(self) -> str:
        return f"{self.stage}{self.kind}{self.micro_batch}{'+' if self.joined else ''}"

    @classmethod
    def parse(cls, text: str) -> Action:
        """Inverse of ``str``. Raises ValueError."""
        found = re.fullmatch(r"(\d+)([FBIW])(\d+)(\+?)", text)
        if found is None:
            raise ValueError(
                f"{text!r} is not an action: stage, one of {''.join(KINDS)}, micro-batch, as in 2F0"
            )
        stage, kind, micro_batch, joined = found.groups()
        return cls(int(stage), kind, int(micro_batch), bool(joined))


Order = list[Action]


def orders(layout: Pipeline, micro_batches: int) -> list[Order]:
    """The order of every ``pp`` coordinate.

    Raises:
        ValueError: a number of micro-batches that the schedule does not take (``counts.refuses`` says which).
    """
    why = refuses(layout, micro_batches)
    if why is not None:
        raise ValueError(why)
    make = _MAKERS[layout.schedule]
    found = [make(layout, rank, micro_batches) for rank in range(layout.pp)]
    return found if splits(layout) else [_unsplit(order) for order in found]


SPLIT = ("zero-bubble", "zbv", "dualpipev")


def splits(layout: Pipeline) -> bool:
    """Whether backwards are run in two halves."""
    return layout.schedule in SPLIT and layout.recompute == "none" and layout.compile == "off"


def _unsplit(order: Order) -> Order:
    return [replace(a, kind="B") if a.kind == "I" else a for a in order if a.kind != "W"]


def _gpipe(layout: Pipeline, rank: int, micro_batches: int) -> Order:
    forwards = [Action(rank, "F", m) for m in range(micro_batches)]
    return forwards + [Action(rank, "B", m) for m in range(micro_batches)]


def _one_forward_one_backward(layout: Pipeline, rank: int, micro_batches: int) -> Order:
    forwards = [Action(rank, "F", m) for m in range(micro_batches)]
    backwards = [Action(rank, "B", m) for m in range(micro_batches)]
    return _alternate(forwards, backwards, ahead=layout.pp - 1 - rank)


def _interleaved(layout: Pipeline, rank: int, micro_batches: int) -> Order:
    forwards, backwards = _rounds(layout, rank, micro_batches, "B")
    return _alternate(forwards, backwards, ahead=_ahead(layout, rank, micro_batches, hop=2))


def _zero_bubble(layout: Pipeline, rank: int, micro_batches: int) -> Order:
    """Weights run ``rank`` micro-batches behind inputs: as long as the rank would else wait at the end."""
    forwards, inputs = _rounds(layout, rank, micro_batches, "I")
    order: Order = []
    done = 0
    for action in _alternate(forwards, inputs, ahead=_ahead(layout, rank, micro_batches, hop=1)):
        order.append(action)
        if action.kind == "I":
            done += 1
            if done > rank:
                order.append(_weights_of(inputs[done - 1 - rank]))
    return order + [_weights_of(action) for action in inputs[max(0, done - rank) :]]


def _alternate(forwards: Sequence[Action], backwards: Sequence[Action], ahead: int) -> Order:
    """``ahead`` forwards, then one forward and one backward in turn, then the backwards that are left."""
    order = list(forwards[:ahead])
    rest = forwards[ahead:]
    for forward, backward in zip(rest, backwards, strict=False):
        order += (forward, backward)
    return order + list(backwards[len(rest) :])


def _ahead(layout: Pipeline, rank: int, micro_batches: int, hop: int) -> int:
    """Forwards before the first backward: up to the last stage, and ``hop`` for each rank behind this one."""
    wanted = (layout.vpp - 1) * per_round(layout, micro_batches) + hop * (layout.pp - 1 - rank)
    return min(wanted, layout.vpp * micro_batches)


def _rounds(layout: Pipeline, rank: int, micro_batches: int, backward: str) -> tuple[Order, Order]:
    """Forwards and backwards of a rank that goes round its stages, ``per_round`` micro-batches at a time."""
    size = per_round(layout, micro_batches)
    mine = [lap * layout.pp + rank for lap in range(layout.vpp)]
    forwards: Order = []
    backwards: Order = []
    for first in range(0, micro_batches, size):
        batch = range(first, first + size)
        forwards += [Action(stage, "F", m) for stage in mine for m in batch]
        backwards += [Action(stage, backward, m) for stage in reversed(mine) for m in batch]
    return forwards, backwards


def _weights_of(action: Action) -> Action:
    return Action(action.stage, "W", action.micro_batch)


class _V:
    """Writes the order of a rank whose two stages lie on the way ``down`` and on the way ``back``.

    ``F I W`` with ``d`` or ``b`` count their own micro-batches, so an order is written as words.
    """

    def __init__(self, layout: Pipeline, rank: int) -> None:
        self.stage = {"d": rank, "b": layout.stages - 1 - rank}
        self.done: dict[str, int] = dict.fromkeys(("Fd", "Fb", "Id", "Ib", "Wd", "Wb"), 0)
        self.order: Order = []
        self.owed: list[Action] = []  # weights whose inputs are done

    def write(self, words: str, times: int = 1) -> None:
        """``write("Fb Ib Wb", 3)``: the three in turn, three times. ``Bd`` is a whole backward."""
        for word in words.split() * times:
            kind, way = word[0], word[1]
            count = self.done["I" + way] if kind == "B" else self.done[word[:2]]
            self.order.append(Action(self.stage[way], kind, count, joined=word.endswith("+")))
            for step in ("I", "W") if kind == "B" else (kind,):
                self.done[step + way] += 1

    def write_inputs(self, way: str) -> None:
        """A backward of the inputs; its weights are owed."""
        self.write("I" + way)
        self.owed.append(_weights_of(self.order[-1]))

    def pay(self, count: int = 1) -> None:
        """The weights that have been owed longest, as far as any are."""
        self.order += self.owed[:count]
        del self.owed[:count]


def _zbv(layout: Pipeline, rank: int, micro_batches: int) -> Order:
    """Written for at least ``2·pp − 1`` micro-batches; those that do not exist are left out."""
    total, behind = max(2 * layout.pp - 1, micro_batches), layout.pp - rank
    v = _V(layout, rank)
    v.write("Fd", 2 * behind - 1)
    v.write("Fb Fd", rank)
    v.write("Fb Ib Wb", behind)
    while v.done["Fb"] < total:
        if v.done["Fd"] < total:
            v.write("Fd")
        v.write("Id Wd Fb Ib Wb")
    v.write("Id Ib", rank)
    v.write("Id Wd", behind)
    v.write("Wb", v.done["Ib"] - v.done["Wb"])
    v.write("Wd", v.done["Id"] - v.done["Wd"])
    return [action for action in v.order if action.micro_batch < micro_batches]


def _dualpipev(layout: Pipeline, rank: int, micro_batches: int) -> Order:
    """Fill, steady state of joined forwards and backwards, drain; the drain's second half splits the backward."""
    after, last = layout.pp - 1 - rank, rank == layout.pp - 1
    v = _V(layout, rank)
    v.write("Fd", 2 * after)
    v.write("Fd Fb", rank + 1)
    for _ in range(after):
        v.write_inputs("b")
        v.pay()
        v.write("Fb")
    for step in range(micro_batches - 2 * layout.pp + rank + 1):
        v.write("Fd Bb" if last and step == 0 else "Fd+ Bb")
        v.write("Fb+ Bd")
    v.write("Bb Fb+ Bd", after)
    for step in range(rank + 1):
        for half, way in enumerate("bd"):
            if 2 * step + half > rank:
                v.write_inputs(way)
            else:
                v.write("B" + way)
    for _ in range(after):
        v.pay()
        v.write_inputs("d")
    v.pay(rank + 1)
    return v.order


_MAKERS: dict[str, Callable[[Pipeline, int, int], Order]] = {
    "gpipe": _gpipe,
    "1f1b": _one_forward_one_backward,
    "interleaved": _interleaved,
    "zero-bubble": _zero_bubble,
    "zbv": _zbv,
    "dualpipev": _dualpipev,
}
SCHEDULES = tuple(_MAKERS)


def text(order: Iterable[Action]) -> str:
    """``0F0 0F1 0B0 …``; splits and parses back."""
    return " ".join(map(str, order))
