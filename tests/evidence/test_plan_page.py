"""``plan.html``: the picture, families whose counts add up, the tied set, what changes the choice, the inputs."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest

from paceline.evidence.page.scatter import CHARACTER, NARROW, WIDE, Point, Scatter, log_ticks
from paceline.evidence.plan_page import write_plan_page
from paceline.plan.decision import decision, inputs
from tests.plan.answers import LLAMA, ask, job


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    plan = ask(job(LLAMA), "8xH100-SXM-80GB")
    path = write_plan_page(decision(plan, points=True), tmp_path_factory.mktemp("page") / "plan.html")
    return path.read_text(encoding="utf-8")


def test_it_has_every_part_of_the_record(page: str) -> None:
    for anchor in ("answer", "picture", "plan", "tied", "families", "sensitivity", "inputs"):
        assert f'<section id="{anchor}">' in page
        assert f'href="#{anchor}"' in page
    assert "<code>wbr" not in page


def test_the_sum_under_the_families_is_right(page: str) -> None:
    told = re.search(r"Together ([^<]*)\.</p>", page)
    assert told is not None
    whole, parts = told[1].split(" layouts = ")
    number = lambda text: int("".join(re.findall(r"\d", text)))  # noqa: E731
    assert number(whole) == sum(number(part) for part in parts.split(" + "))
    assert number(whole) == ask(job(LLAMA), "8xH100-SXM-80GB").tally.divide


def test_the_inputs_name_what_the_figures_rest_on() -> None:
    here, there = inputs(ask()), inputs(ask(job(LLAMA), "8xH100-SXM-80GB"))
    assert here["measurement"]["at"] == "2026-11-30T00:00:00Z"
    assert re.fullmatch("[0-9a-f]{16}", here["measurement"]["hash"])
    assert there["measurement"] is None
    assert there["calibration"]["rates"] == "as published"
    assert here["catalogue"]["hash"] == there["catalogue"]["hash"]
    assert here["job_hash"] != there["job_hash"]


def test_the_picture_has_every_state_once_and_the_limit() -> None:
    drawn = decision(ask(job(LLAMA), "8xH100-SXM-80GB"), points=True)["picture"]
    states = [row[5] for row in drawn["points"]]
    assert states.count("chosen") == 1
    assert {"tied", "memory"} <= set(states)
    assert all(row[4] > drawn["fits_gib"] * 0.999 for row in drawn["points"] if row[5] == "memory")
    assert all(row[4] <= drawn["fits_gib"] * 1.001 for row in drawn["points"] if row[5] in ("chosen", "tied"))


def scatter(points: list[Point]) -> Scatter:
    return Scatter("a picture", points, "s", "GiB", 79.0, "79 GiB there are", 71.0)


def some(n: int) -> list[Point]:
    draw = random.Random(n)
    points = []
    for i in range(n):
        x = draw.lognormvariate(0, 1)
        state = draw.choice(("slower", "memory", "tied", "late"))
        points.append(
            Point(
                f"layout {i}", x / 1.4, x, x * 1.4, draw.lognormvariate(3, 1), state, str(i) if i < 8 else ""
            )
        )
    return points


@pytest.mark.parametrize("n", [1, 2, 40, 3000])
def test_it_works_for_one_and_for_thousands(n: int) -> None:
    html = scatter(some(n)).render()
    assert len(html) < 60_000 + 90 * n
    for x, y in re.findall(r"M([\d.]+) ([\d.]+)", html):
        assert 0 <= float(x) <= WIDE[0]
        assert 0 <= float(y) <= WIDE[1]


def test_labels_lie_apart_and_inside() -> None:
    crowd = [Point(f"l{i}", 0.9, 1 + i / 1000, 1.1, 50 + i / 100, "tied", str(i)) for i in range(6)]
    html = scatter([*crowd, *some(60)[8:]]).render()
    for part, (width, _) in zip(html.split('viewBox="0 0 ')[-2:], (WIDE, NARROW), strict=True):
        boxes = [(float(x), float(y), text) for text, x, y in _labels(part)]
        assert len(boxes) >= 4
        for i, (x, y, text) in enumerate(boxes):
            assert 0 <= x <= width - CHARACTER * len(text)
            assert all(abs(y - b) >= 13 or abs(x - a) >= CHARACTER for a, b, _ in boxes[:i])


def _labels(part: str) -> list[tuple[str, str, str]]:
    found = re.findall(r'<text class="name" x="([\d.]+)" y="([\d.]+)">([^<]*)<', part)
    return [(text, x, y) for x, y, text in found]


def test_an_empty_picture_says_so() -> None:
    assert "no layout" in scatter([]).render()


@pytest.mark.parametrize(("low", "high"), [(1.0, 1.5), (0.01, 900.0), (3.0, 60.0)])
def test_ticks_lie_inside_and_are_few(low: float, high: float) -> None:
    ticks = log_ticks(low, high, 6)
    assert 2 <= len(ticks) <= 9
    assert all(low * 0.999 <= tick <= high * 1.001 for tick in ticks)


def test_names_cannot_inject(tmp_path: Path) -> None:
    bad = "<script>alert(1)</script>"
    drawn = {
        "points": [[bad, 1.0, 2.0, 3.0, 4.0, "chosen"]],
        "limit_gib": 8.0,
        "fits_gib": 7.0,
        "of": "a rank",
    }
    path = write_plan_page({"picture": drawn, "candidates": [{"layout": bad}]}, tmp_path / "p.html")
    assert bad not in path.read_text(encoding="utf-8")
