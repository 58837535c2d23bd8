"""Labels of the picture of time and memory: none over another, and what is left out is counted."""

from __future__ import annotations

import re

import pytest

from paceline.evidence.page.scatter import CHARACTER, LINE, Point, Scatter

NAME = re.compile(r'<text class="name" x="([-0-9.]+)" y="([-0-9.]+)">([^<]+)</text>')
LEFT_OUT = re.compile(r">\+([0-9]+) names on hover")


def drawings(count: int, apart: float) -> list[str]:
    """Wide and narrow, of so many named layouts, the chosen one last in the list."""
    points = [
        Point(f"fsdp={n},tp=8", 9.0, 10.0 * apart**n, 11.0, 50.0 * apart**n, "tied", f"fsdp={n},tp=8")
        for n in range(count)
    ]
    points.append(Point("dp=8", 9.0, 10.0, 11.0, 50.0, "chosen", "dp=8,chosen"))
    text = str(Scatter("picture", points, "s", "GiB", 79.2, "79.2 GiB", 70.0).render())
    found = re.findall(r"<svg[^>]*viewBox=\"0 0 \d{3} \d{3}\".*?</svg>", text, re.DOTALL)
    assert len(found) == 2
    return found


@pytest.mark.parametrize("count", [0, 3, 12, 60])
@pytest.mark.parametrize("apart", [1.0, 1.001, 1.02])
def test_no_label_lies_on_another_and_those_left_out_are_counted(count: int, apart: float) -> None:
    for drawing in drawings(count, apart):
        boxes = [
            (float(x), float(y) + 5 - LINE, float(x) + CHARACTER * len(name), float(y) + 5)
            for x, y, name in NAME.findall(drawing)
        ]
        for at, a in enumerate(boxes):
            for b in boxes[at + 1 :]:
                assert a[2] <= b[0] or b[2] <= a[0] or a[3] <= b[1] or b[3] <= a[1]
        left_out = LEFT_OUT.search(drawing)
        assert len(boxes) + (int(left_out[1]) if left_out else 0) == count + 1
        assert ">dp=8,chosen<" in drawing, "the chosen is named before all others"
