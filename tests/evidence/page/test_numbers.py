"""Numbers as people write them."""

from __future__ import annotations

import math

import pytest

from paceline.evidence.page import numbers as n


def plain(text: str) -> str:
    return text.replace(n.THIN, " ")


@pytest.mark.parametrize(
    ("made", "shown"),
    [
        (n.grouped(19980.4), "19 980"),
        (n.grouped(None), "–"),
        (n.figures(4.9123, 4), "4.912"),
        (n.figures(0.40812), "0.408"),
        (n.figures(61806.2), "61 806"),
        (n.figures(0), "0"),
        (n.figures(3.1e-7), "3.10e-07"),
        (n.figures(math.nan), "–"),
        (n.percent(0.912), "91.2 %"),
        (n.percent(None), "–"),
        (n.seconds(0), "0 s"),
        (n.seconds(0.00083), "830 µs"),
        (n.seconds(0.0124), "12.4 ms"),
        (n.seconds(0.41), "0.410 s"),
        (n.seconds(84), "1:24"),
        (n.seconds(math.inf), "–"),
        (n.clock(11232), "3:07:12"),
        (n.clock(90061), "1 d 1:01:01"),
        (n.count(5_300_000), "5.30 M"),
        (n.count(8192), "8 192"),
        (n.count(10_900), "10.9 k"),
        (n.size(60_100_000), "60.1 MB"),
        (n.size(12), "12 B"),
    ],
)
def test_formats(made: str, shown: str) -> None:
    assert plain(made) == shown


def test_ticks_are_round_and_inside() -> None:
    assert n.nice_ticks(4.7, 9.2) == [5, 6, 7, 8, 9]
    assert n.nice_ticks(0, 90000)[1] == 20000
    assert n.nice_ticks(1, 24, 8)[0] == 2.5
    assert n.nice_ticks(1, 24, 8, whole=True) == list(range(2, 25, 2))
    assert n.nice_ticks(1, 2, 8, whole=True) == [1, 2]
    assert n.nice_ticks(1, 1) == [1]
    assert n.tick_texts([5.0, 6.0, 7.0]) == ["5", "6", "7"]
    assert n.tick_texts([2.0, 2.5, 3.0]) == ["2.0", "2.5", "3.0"]
    assert n.tick_texts([0.25, 0.5, 0.75]) == ["0.25", "0.50", "0.75"]
    assert plain(n.tick_texts([0.0, 20000.0])[1]) == "20 000"
