"""Points on two logarithmic axes as inline SVG: what each layout takes in time and in memory.

Drawn twice, for wide and narrow screens, like the line charts. Each state has its own shape, since colour alone tells
nobody anything; a state's points are one path, so that thousands stay some tens of kilobytes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from paceline.evidence.page.html import Html, join, tag
from paceline.evidence.page.numbers import figures, nice_ticks

WIDE, NARROW = (960, 420), (372, 340)
LEFT, RIGHT, TOP, BOTTOM = 58, 18, 22, 46
CHARACTER, LINE = 7.2, 18.0  # pixels of a label's text
SHAPES = {
    "slower": ("slower", "ink-quiet"),
    "late": ("late or too dear", "ink-b"),
    "memory": ("does not fit", "ink-bad"),
    "tied": ("tied with the chosen", "ink-a"),
    "chosen": ("chosen", "ink-good"),
}
"""State → its word in the legend and its colour, in the order of drawing."""
_RANK = {state: at for at, state in enumerate(SHAPES)}


class Point(NamedTuple):
    """``name`` is shown on a point that has a ``label``, and as its tooltip."""

    name: str
    low: float
    x: float
    high: float
    y: float
    state: str
    label: str = ""


class _Box(NamedTuple):
    left: float
    top: float
    right: float
    bottom: float

    def meets(self, other: _Box) -> bool:
        return (
            self.left < other.right
            and other.left < self.right
            and self.top < other.bottom
            and other.top < self.bottom
        )

    def covers(self, dot: tuple[float, float]) -> bool:
        return self.left < dot[0] < self.right and self.top < dot[1] < self.bottom


@dataclass(frozen=True)
class Scatter:
    """``limit``: a horizontal line with its words; from ``sure`` up to it lies what may not fit."""

    label: str
    points: Sequence[Point]
    x_name: str
    y_name: str
    limit: float
    limit_name: str
    sure: float
    words: Mapping[str, str] = field(default_factory=dict)

    def render(self) -> Html:
        """Legend and both drawings; without a point, a sentence."""
        if not self.points:
            return tag("p", "no layout was priced one by one", cls="quiet")
        return tag(
            "div", self._legend(), self._draw(*WIDE, "wide"), self._draw(*NARROW, "narrow"), cls="plot"
        )

    def _legend(self) -> Html:
        there = {point.state for point in self.points}
        keys = []
        for state, (word, ink) in reversed(SHAPES.items()):
            if state in there:
                sign = tag("svg", _signs(state, [(8.0, 8.0)]), viewBox="0 0 16 16", cls=f"sign {ink}")
                keys.append(tag("li", sign, self.words.get(state, word)))
        return tag("ul", *keys, cls="legend")

    def _draw(self, width: int, height: int, cls: str) -> Html:
        plane = _Plane.around(self, width, height)
        parts = [*self._grid(plane), *self._limit(plane)]
        for state, (_, ink) in SHAPES.items():
            places = [(plane.x(p.x), plane.y(p.y)) for p in self.points if p.state == state]
            if places:
                parts.append(tag("g", _signs(state, places), cls=f"signs {state} {ink}"))
        parts += self._labelled(plane)
        return tag("svg", *parts, viewBox=f"0 0 {width} {height}", cls=cls, role="img", aria_label=self.label)

    def _grid(self, plane: _Plane) -> list[Html]:
        parts = []
        for value in log_ticks(plane.x0, plane.x1, 8 if plane.width > 600 else 4):
            x = plane.x(value)
            parts.append(tag("line", x1=x, x2=x, y1=TOP, y2=plane.bottom, cls="grid"))
            parts.append(tag("text", figures(value), x=x, y=plane.bottom + 18, cls="tick-x"))
        for value in log_ticks(plane.y0, plane.y1, 6):
            y = plane.y(value)
            parts.append(tag("line", x1=LEFT, x2=plane.right, y1=y, y2=y, cls="grid"))
            parts.append(tag("text", figures(value), x=LEFT - 8, y=y + 4, cls="tick-y"))
        middle = (LEFT + plane.right) / 2
        parts.append(tag("text", self.x_name, x=middle, y=plane.bottom + 38, cls="tick-x"))
        parts.append(tag("text", self.y_name, x=2, y=TOP - 9, cls="axis-y"))
        return parts

    def _limit(self, plane: _Plane) -> list[Html]:
        if not plane.y0 <= self.limit <= plane.y1:
            return []
        y, below = plane.y(self.limit), plane.y(max(self.sure, plane.y0))
        band = tag("rect", x=LEFT, y=y, width=plane.right - LEFT, height=round(below - y, 1), cls="may-not")
        line = tag("line", x1=LEFT, x2=plane.right, y1=y, y2=y, cls="limit")
        return [band, line, tag("text", self.limit_name, x=plane.right, y=y - 6, cls="level-text")]

    def _labelled(self, plane: _Plane) -> list[Html]:
        """The labelled points on top, each with its interval, a tooltip, and its label where there is room."""
        parts, taken = [], [_limit_box(self, plane)]
        # What matters most gets its label first, and is drawn last: where points lie close, the others go without.
        named = sorted((p for p in self.points if p.label), key=lambda p: -_RANK[p.state])
        unnamed = 0
        dots = [(plane.x(p.x), plane.y(p.y)) for p in self.points]
        taken += [_around(plane.x(p.x), plane.y(p.y), 6) for p in named]
        for p in named:
            x, y = plane.x(p.x), plane.y(p.y)
            ink = SHAPES[p.state][1]
            title = tag("title", f"{p.name}: {figures(p.x)} s ({figures(p.low)}–{figures(p.high)})")
            reach = tag("line", x1=plane.x(p.low), x2=plane.x(p.high), y1=y, y2=y, cls="reach")
            place = _place(p.label, (x, y), plane, taken, dots)
            text = None
            unnamed += place is None
            if place is not None:
                taken.append(place)
                text = tag("text", p.label, x=round(place.left, 1), y=round(place.bottom - 5, 1), cls="name")
            top = tag("g", _signs(p.state, [(x, y)]), cls=f"signs {p.state}")
            parts.append(tag("g", title, reach, top, text, cls=ink))
        return [*self._unnamed(unnamed, plane), *reversed(parts)]

    def _unnamed(self, count: int, plane: _Plane) -> list[Html]:
        """How many labels found no room: their points have tooltips, and what is left out is said."""
        if not count:
            return []
        return [tag("text", f"+{count} names on hover", x=plane.right, y=TOP - 9, cls="level-text")]


@dataclass(frozen=True)
class _Plane:
    """From values to pixels, both axes logarithmic; what lies outside is drawn on the edge."""

    width: int
    height: int
    x0: float
    x1: float
    y0: float
    y1: float

    @classmethod
    def around(cls, scatter: Scatter, width: int, height: int) -> _Plane:
        named = [p for p in scatter.points if p.label]
        xs = [p.x for p in scatter.points] + [end for p in named for end in (p.low, p.high)]
        ys = [p.y for p in scatter.points]
        if min(ys) / 8 <= scatter.limit <= max(ys) * 8:
            ys.append(scatter.limit)
        (x0, x1), (y0, y1) = _widened(min(xs), max(xs)), _widened(min(ys), max(ys))
        return cls(width, height, x0, x1, y0, y1)

    @property
    def right(self) -> int:
        return self.width - RIGHT

    @property
    def bottom(self) -> int:
        return self.height - BOTTOM

    def holds(self, box: _Box) -> bool:
        across = box.left >= LEFT and box.right <= self.right
        return across and box.top >= TOP and box.bottom <= self.bottom

    def x(self, value: float) -> float:
        return round(LEFT + _part(value, self.x0, self.x1) * (self.right - LEFT), 1)

    def y(self, value: float) -> float:
        return round(self.bottom - _part(value, self.y0, self.y1) * (self.bottom - TOP), 1)


def _part(value: float, low: float, high: float) -> float:
    return min(1.0, max(0.0, math.log(value / low) / math.log(high / low)))


def _widened(low: float, high: float) -> tuple[float, float]:
    """A little room on both sides; one value alone gets a factor of 1.5 each way."""
    more = 1.5 if high <= low * 1.02 else (high / low) ** 0.06
    return low / more, high * more


def log_ticks(low: float, high: float, about: int) -> list[float]:
    """Round values between two positive ones, about equally far apart on a logarithmic axis."""
    if high / low < 4:
        return nice_ticks(low, high, about)
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for steps in ((1, 2, 5), (1, 3), (1,)):
        found = [step * 10.0**k for k in decades for step in steps]
        inside = [value for value in found if low <= value <= high]
        if len(inside) <= about + 1:
            return inside
    return inside[:: -(-len(inside) // about)]


def _signs(state: str, places: Iterable[tuple[float, float]]) -> Html:
    """One path of all places; equal pixels once."""
    seen = dict.fromkeys((round(x, 1), round(y, 1)) for x, y in places)
    return tag("path", d=join([f"M{x:g} {y:g}{_STROKES[state]}" for x, y in seen]))


_STROKES = {
    "slower": "h0",  # a dot: a line of no length with a round end
    "late": "m-4 3h8l-4-7z",
    "memory": "m-3-3l6 6m0-6l-6 6",
    "tied": "m-4 0a4 4 0 1 0 8 0a4 4 0 1 0-8 0",
    "chosen": "m0-7l7 7l-7 7l-7-7z",
}


def _around(x: float, y: float, reach: float) -> _Box:
    return _Box(x - reach, y - reach, x + reach, y + reach)


def _limit_box(scatter: Scatter, plane: _Plane) -> _Box:
    """Where the limit's own words stand."""
    if not plane.y0 <= scatter.limit <= plane.y1:
        return _Box(0, 0, 0, 0)
    y = plane.y(scatter.limit)
    return _Box(plane.right - CHARACTER * len(scatter.limit_name), y - 18, plane.right, y + 2)


def _place(
    text: str,
    at: tuple[float, float],
    plane: _Plane,
    taken: Sequence[_Box],
    dots: Sequence[tuple[float, float]],
) -> _Box | None:
    """The place near a point that covers the fewest dots; None where all are taken."""
    free = [box for box in _places(text, *at) if plane.holds(box) and not any(map(box.meets, taken))]
    return min(free, key=lambda box: sum(map(box.covers, dots)), default=None)


def _places(text: str, x: float, y: float) -> Iterator[_Box]:
    """The nearest first."""
    wide = CHARACTER * len(text)
    for far in (10, 22, 36, 52):
        for left, top in (
            (x + far, y - LINE / 2),
            (x - wide / 2, y - far - LINE),
            (x - wide / 2, y + far - 4),
            (x - far - wide, y - LINE / 2),
            (x + far, y - far - LINE / 2),
            (x + far, y + far - LINE / 2),
            (x - far - wide, y - far - LINE / 2),
        ):
            yield _Box(left, top, left + wide, top + LINE)
