"""The drawing shows the order, fits the terminal, and is a well-formed picture."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import pytest

from paceline.plan.layout import Layout
from paceline.plan.pipeline.clock import Seconds, simulate
from paceline.plan.pipeline.draw import as_svg, as_text
from paceline.plan.pipeline.orders import SCHEDULES, orders

SVG = "{http://www.w3.org/2000/svg}"

ONE_F_ONE_B = """\
pp=3 · 3 micro-batches · bubble 40 % · 3 kept at once on the fullest rank
rank 0 F0 F1 F2 ............B0--- ...B1--- ...B2---
rank 1 ...F0 F1 ......B0--- F2 B1--- ...B2--- ......
rank 2 ......F0 B0--- F1 B1--- F2 B2--- ............
number = micro-batch · F forward · B backward · . bubble"""


def test_a_small_one_by_hand() -> None:
    layout = Layout(pp=3)
    text = as_text(layout, simulate(layout, 3))
    assert [line.rstrip() for line in text.splitlines()] == ONE_F_ONE_B.splitlines()


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_every_action_is_in_the_picture_and_in_the_text(schedule: str) -> None:
    layout = Layout(pp=2, schedule=schedule)
    timeline = simulate(layout, 4)
    rows = as_text(layout, timeline, width=1000).splitlines()[1:3]
    for row, order in zip(rows, orders(layout, 4), strict=True):
        words = [word.strip("-") for word in row.replace(".", " ").split()[2:]]
        lap = {stage: "" if layout.vpp == 1 else "ab"[stage // 2] for stage in range(layout.stages)}
        assert words == [f"{a.kind}{a.micro_batch}{lap[a.stage]}" for a in order]
    tree = ET.fromstring(as_svg(layout, timeline))
    groups = tree.findall(f"{SVG}g")
    assert len(groups) == sum(map(len, timeline.slots))
    assert all(group.findtext(f"{SVG}title") for group in groups)
    assert str(layout) in (tree.findtext(f"{SVG}title") or "")


def test_a_row_of_several_ranks_names_them_all() -> None:
    layout = Layout(dp=2, tp=2, pp=2)
    timeline = simulate(layout, 4)
    rows = as_text(layout, timeline, width=200).splitlines()[1:3]
    assert [row[:17].rstrip() for row in rows] == ["pp 0 (ranks 0–3)", "pp 1 (ranks 4–7)"]
    assert [layout.coordinates(rank)["pp"] for rank in (3, 4)] == [0, 1]
    tree = ET.fromstring(as_svg(layout, timeline))
    texts = [element.text for element in tree.findall(f"{SVG}text")]
    assert "pp 1 (ranks 4–7)" in texts


def test_a_long_schedule_is_cut_with_a_note() -> None:
    layout = Layout(pp=4, schedule="interleaved", vpp=2)
    for width in (60, 80, 120):
        lines = as_text(layout, simulate(layout, 16), width).splitlines()
        assert max(len(line) for line in lines[1:]) <= width
        assert lines[5].startswith("cut: ")
    assert "cut:" not in as_text(layout, simulate(layout, 16), 10_000)


def test_uneven_stages_are_drawn_in_proportion() -> None:
    layout = Layout(pp=2)
    timeline = simulate(layout, 2, [Seconds(1, 1, 1), Seconds(3.3, 3.3, 3.3)], transfer_s=0.25)
    rows = as_text(layout, timeline, 400).splitlines()[1:3]
    assert len(rows[0]) == len(rows[1])
    assert "F1------- " in rows[1]
