"""Charts lose no spike, do not lag, and cannot be broken out of."""

from __future__ import annotations

import json
import math
import re

from hypothesis import given
from hypothesis import strategies as st

from paceline.evidence.page.charts import POINTS, Chart, Level, Series, smoothed, thinned


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=3000))
def test_thinning_keeps_ends_and_extremes(ys: list[float]) -> None:
    xs = list(range(len(ys)))
    kept = thinned(xs, ys)
    assert len(kept) <= POINTS + 2
    values = [y for _, y in kept]
    assert max(values) == max(ys)
    assert min(values) == min(ys)
    assert [x for x, _ in kept] == sorted({x for x, _ in kept})
    assert kept[-1] == (xs[-1], ys[-1])


@given(st.floats(-5, 5), st.floats(-5, 5), st.integers(1, 80), st.integers(1, 40))
def test_a_straight_line_is_its_own_mean_to_the_ends(slope: float, start: float, n: int, span: int) -> None:
    ys = [start + slope * i for i in range(n)]
    assert all(math.isclose(a, b, abs_tol=1e-6) for a, b in zip(smoothed(ys, span), ys, strict=True))


def test_gaps_are_passed_over() -> None:
    assert smoothed([1.0, math.nan, 3.0], 3)[1] == 2.0
    assert all(math.isnan(y) for y in smoothed([math.nan] * 3, 3))


def test_a_chart_without_a_point_says_so() -> None:
    assert "nothing was recorded" in Chart("x", [Series("a", [], [])]).render()
    assert "nothing was recorded" in Chart("x", [Series("a", [1], [math.nan])]).render()


def test_one_point_and_equal_points_are_drawn() -> None:
    for ys in ([2.0], [2.0, 2.0], [0.0, 0.0]):
        html = Chart("x", [Series("a", range(len(ys)), ys)], levels=[Level("l", 2.0)]).render()
        assert html.count("<svg") == 2
        assert "nan" not in html
        assert "inf" not in html


def test_the_values_under_the_pointer_are_the_points() -> None:
    name = "</script><b>"
    html = Chart(
        "x", [Series(name, [1, 2, 4], [1.5, math.nan, 2.5]), Series("b", [4, 8], [7, 9], "dots")]
    ).render()
    block = re.search(r'<script type="application/json">(.*?)</script>', html)
    assert block is not None
    content = json.loads(block[1])
    assert content["x"] == [1, 4, 8]
    assert [s["text"] for s in content["series"]] == [["1.50", "2.50", None], [None, "7.00", "9.00"]]
    assert content["series"][0]["name"] == name
    assert "<b>" not in html


def test_what_a_fixed_range_cuts_off_stays_at_the_edge() -> None:
    html = Chart("x", [Series("a", [0, 1], [0.0, 100.0])], y_range=(0.0, 10.0)).render()
    heights = [float(p.split(",")[1]) for p in re.search(r'points="([^"]*)"', html)[1].split()]  # type: ignore[index]
    assert min(heights) == 12.0
