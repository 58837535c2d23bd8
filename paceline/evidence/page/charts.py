"""Line charts as inline SVG, drawn here: no library, no request, readable in print and in the dark.

Each chart is drawn twice, for wide and for narrow screens: text inside a scaled SVG would shrink with it. The
values under the pointer come from a JSON block beside it (``hover.js``); arrow keys do the same.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from paceline.evidence.page.html import Html, tag
from paceline.evidence.page.numbers import figures, grouped, nice_ticks, tick_texts

POINTS = 400  # more than a screen can show of one line
WIDE, NARROW = (960, 300), (372, 250)
LEFT, RIGHT, TOP, BOTTOM = 52, 14, 12, 26


@dataclass(frozen=True)
class Series:
    """``style``: ``line``, ``faint`` (raw, behind a smoothed line) or ``dots``; ``ink``: a colour class."""

    name: str
    xs: Sequence[float]
    ys: Sequence[float]
    style: str = "line"
    ink: str = "ink-a"


@dataclass(frozen=True)
class Level:
    """A horizontal reference; ``low`` to ``high`` is a band around it, ``short`` is written on the line."""

    name: str
    value: float
    short: str = ""
    low: float | None = None
    high: float | None = None
    ink: str = "ink-quiet"


@dataclass(frozen=True)
class Chart:
    """A chart over steps."""

    label: str
    series: Sequence[Series]
    levels: Sequence[Level] = ()
    marks: Sequence[tuple[float, str]] = ()
    y_range: tuple[float, float] | None = None
    x_name: str = "step"
    y_name: str = ""
    show: Callable[[float], str] = field(default=figures)

    def render(self) -> Html:
        """Legend, both drawings and their values. A chart without a point says so."""
        if not any(math.isfinite(y) for s in self.series for y in s.ys):
            return tag("p", "nothing was recorded for this chart", cls="quiet")
        return tag(
            "div",
            self._legend(),
            self._draw(*WIDE, cls="wide"),
            self._draw(*NARROW, cls="narrow"),
            self._values(),
            tag("div", cls="tip", role="status", hidden=""),
            cls="chart",
        )

    def _legend(self) -> Html:
        drawn = [(s.name, f"key-{s.style} {s.ink}") for s in self.series]
        drawn += [(level.name, f"key-level {level.ink}") for level in self.levels]
        keys = (tag("li", tag("i", cls=cls), name) for name, cls in drawn if name)
        return tag("ul", *keys, cls="legend")

    def _bounds(self) -> tuple[float, float, float, float]:
        xs = [x for s in self.series for x in s.xs]
        x0, x1 = min(xs), max(xs)
        if self.y_range is not None:
            y0, y1 = self.y_range
        else:
            ys = [y for s in self.series for y in s.ys if math.isfinite(y)]
            ys += [level.value for level in self.levels]
            y0, y1 = min(ys), max(ys)
            y0, y1 = y0 - 0.06 * (y1 - y0), y1 + 0.04 * (y1 - y0)
        if x1 <= x0:
            x0, x1 = x0 - 1, x1 + 1
        if y1 <= y0:
            y0, y1 = y0 - (abs(y0) or 1) * 0.1, y1 + (abs(y1) or 1) * 0.1
        return x0, x1, y0, y1

    def _draw(self, width: int, height: int, cls: str) -> Html:
        x0, x1, y0, y1 = self._bounds()

        def px(x: float) -> float:
            return round(LEFT + (x - x0) / (x1 - x0) * (width - LEFT - RIGHT), 1)

        def py(y: float) -> float:
            inside = min(max(y, y0), y1)  # what a fixed range cuts off stays at the edge, visibly flat
            return round(height - BOTTOM - (inside - y0) / (y1 - y0) * (height - TOP - BOTTOM), 1)

        parts = [*self._grid(width, height, px, py), *self._levels(width, px, py)]
        for x, label in self.marks:
            parts.append(tag("line", x1=px(x), x2=px(x), y1=TOP, y2=height - BOTTOM, cls="mark"))
            late = px(x) > (LEFT + width - RIGHT) / 2  # a label beside a late mark would leave the picture
            at, anchor = (px(x) - 4, "end") if late else (px(x) + 4, "start")
            parts.append(tag("text", label, x=at, y=TOP + 9, cls="mark-text", text_anchor=anchor))
        parts += [self._series(s, px, py) for s in self.series]
        parts.append(tag("line", x1=0, x2=0, y1=TOP, y2=height - BOTTOM, cls="cross", visibility="hidden"))
        return tag(
            "svg",
            *parts,
            viewBox=f"0 0 {width} {height}",
            cls=cls,
            role="img",
            aria_label=self.label,
            tabindex=0,
            data_x0=x0,
            data_x1=x1,
            data_left=LEFT,
            data_right=width - RIGHT,
        )

    def _grid(
        self, width: int, height: int, px: Callable[[float], float], py: Callable[[float], float]
    ) -> list[Html]:
        x0, x1, y0, y1 = self._bounds()
        parts = []
        ticks = nice_ticks(y0, y1, 5)
        for y, text in zip(ticks, tick_texts(ticks), strict=True):
            parts.append(tag("line", x1=LEFT, x2=width - RIGHT, y1=py(y), y2=py(y), cls="grid"))
            parts.append(tag("text", text, x=LEFT - 7, y=py(y) + 4, cls="tick-y"))
        for x in nice_ticks(x0, x1, 8 if width > 600 else 4, whole=True):
            parts.append(tag("text", grouped(x), x=px(x), y=height - BOTTOM + 18, cls="tick-x"))
        parts.append(tag("text", self.x_name, x=LEFT - 7, y=height - BOTTOM + 18, cls="tick-y"))
        if self.y_name:
            parts.append(tag("text", self.y_name, x=LEFT + 4, y=TOP + 4, cls="axis-y"))
        return parts

    def _levels(self, width: int, px: Callable[[float], float], py: Callable[[float], float]) -> list[Html]:
        parts = []
        for level in self.levels:
            if level.low is not None and level.high is not None:
                top, bottom = py(level.high), py(level.low)
                parts.append(
                    tag(
                        "rect",
                        x=LEFT,
                        y=top,
                        width=width - LEFT - RIGHT,
                        height=max(1.0, round(bottom - top, 1)),
                        cls=f"band {level.ink}",
                    )
                )
            y = py(level.value)
            parts.append(tag("line", x1=LEFT, x2=width - RIGHT, y1=y, y2=y, cls=f"level {level.ink}"))
            parts.append(tag("text", level.short, x=width - RIGHT, y=y - 5, cls="level-text"))
        return parts

    def _series(self, s: Series, px: Callable[[float], float], py: Callable[[float], float]) -> Html:
        points = [(x, y) for x, y in thinned(s.xs, s.ys) if math.isfinite(y)]
        if s.style == "dots":
            return tag("g", *(tag("circle", cx=px(x), cy=py(y), r=4) for x, y in points), cls=f"dots {s.ink}")
        if len(points) == 1:
            return tag("circle", cx=px(points[0][0]), cy=py(points[0][1]), r=3, cls=f"dots {s.ink}")
        path = " ".join(f"{px(x)},{py(y)}" for x, y in points)
        return tag("polyline", points=path, cls=f"{s.style} {s.ink}")

    def _values(self) -> Html:
        """What the pointer shows: one grid of steps, each series' text at the steps that it has."""
        named = [s for s in self.series if s.name]
        texts = [{x: self.show(y) for x, y in thinned(s.xs, s.ys) if math.isfinite(y)} for s in named]
        grid = sorted({x for text in texts for x in text})
        content = {
            "x": grid,
            "name": self.x_name,
            "series": [
                {"name": s.name, "text": [text.get(x) for x in grid]}
                for s, text in zip(named, texts, strict=True)
            ],
        }
        encoded = json.dumps(content, ensure_ascii=False, separators=(",", ":"))
        # A script's text ends at the first "</": escaped, no name of a series can close it.
        return Html(f'<script type="application/json">{encoded.replace("<", chr(92) + "u003c")}</script>')


def thinned(xs: Sequence[float], ys: Sequence[float], limit: int = POINTS) -> list[tuple[float, float]]:
    """At most about ``limit`` points: of each stretch the least and the greatest, so no spike is lost."""
    points = [(float(x), float(y)) for x, y in zip(xs, ys, strict=True)]
    if len(points) <= limit:
        return points
    width = math.ceil(2 * len(points) / limit)
    kept: list[tuple[float, float]] = []
    for start in range(0, len(points), width):
        stretch = [p for p in points[start : start + width] if math.isfinite(p[1])]
        if stretch:
            extremes = {min(stretch, key=lambda p: p[1]), max(stretch, key=lambda p: p[1])}
            kept += sorted(extremes)
    if kept and points[-1] != kept[-1]:
        kept.append(points[-1])
    return kept


def smoothed(ys: Sequence[float], span: int) -> list[float]:
    """Mean of about ``span`` values around each one: centred, so that the line does not trail behind.

    Towards the ends the window shrinks to stay centred; gaps are passed over.
    """
    sums, counts = [0.0], [0]
    for y in ys:
        known = math.isfinite(y)
        sums.append(sums[-1] + (y if known else 0.0))
        counts.append(counts[-1] + known)
    means = []
    for i in range(len(ys)):
        half = min(span // 2, i, len(ys) - 1 - i)
        n = counts[i + half + 1] - counts[i - half]
        means.append((sums[i + half + 1] - sums[i - half]) / n if n else math.nan)
    return means
