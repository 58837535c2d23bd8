"""The decision record on the page: picture of time and memory, tied set, families, and what changes the choice."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from paceline.evidence.facts import finite, is_number
from paceline.evidence.page.document import figure, kind, section
from paceline.evidence.page.html import Html, details, join, table, tag, words_of
from paceline.evidence.page.numbers import figures, grouped, percent
from paceline.evidence.page.scatter import Point, Scatter

FAMILIES_SHOWN, TIED_SHOWN = 15, 10
CROP_S, CROP_GIB = 6.0, 10.0
"""Times the fastest that fits, and times the limit: what lies beyond is left out of the picture, and counted."""
KINDS = (("slower", "slower"), ("memory", "memory"), ("rule", "rules"), ("deadline", "late"))


def picture_section(plan: Mapping[str, Any]) -> Html | None:
    """Step time against memory of everything that is known one by one."""
    drawn = plan.get("picture") or {}
    rows = [row for row in drawn.get("points") or [] if len(finite(row[1:5])) == 4 and row[2] > 0 < row[4]]
    if not rows:
        return None
    numbers = _numbers(plan)
    limit = float(drawn.get("limit_gib") or 0.0)
    kept = _cropped(rows, numbers, limit)
    points = [
        Point(name, low, mid, high, gib, state, _label(name, state, numbers))
        for name, low, mid, high, gib, state in kept
    ]
    scatter = Scatter(
        label=f"step time and memory of {len(points)} layouts",
        points=points,
        x_name="seconds a step",
        y_name=f"GiB of {drawn.get('of', 'the fullest rank')}",
        limit=limit,
        limit_name=f"{figures(limit)} GiB there are",
        sure=float(drawn.get("fits_gib") or limit),
        words={"tied": f"tied: {percent(drawn.get('tied_from'), 0)} and more to be the faster one"},
    )
    gone = len(rows) - len(kept)
    far = f" {grouped(gone)} far slower or larger ones lie outside the picture." if gone else ""
    caption = (
        f"{grouped(len(points))} layouts that were looked at one by one; both axes are logarithmic. Numbers are those "
        "of the table of candidates, whose bars hold nine in ten real values. In the shaded band memory is too likely "
        f"to run out.{far}"
    )
    return section("picture", "Time and memory", figure(scatter.render(), caption, "calculated"))


def _numbers(plan: Mapping[str, Any]) -> dict[str, int]:
    """Layout → its number in the table of candidates."""
    listed = [str(c.get("layout")) for c in plan.get("candidates") or [] if isinstance(c, Mapping)]
    return {layout: i for i, layout in enumerate(listed, start=1)}


def _label(layout: str, state: str, numbers: Mapping[str, int]) -> str:
    number = numbers.get(layout)
    if number is None:
        return ""
    return f"{number}  {layout}" if state == "chosen" and len(layout) < 40 else str(number)


def _cropped(rows: Sequence[Sequence[Any]], numbers: Mapping[str, int], limit: float) -> list[Sequence[Any]]:
    fits = [row for row in rows if row[5] != "memory"] or rows
    most_s = CROP_S * min(row[2] for row in fits)
    most_gib = CROP_GIB * max(limit, min(row[4] for row in rows))
    return [row for row in rows if row[0] in numbers or (row[2] <= most_s and row[4] <= most_gib)]


def tied_section(plan: Mapping[str, Any]) -> Html | None:
    """What the figures cannot tell from the chosen, with the probability of being the faster one."""
    found = [one for one in plan.get("tied") or [] if isinstance(one, Mapping)]
    if not found:
        return None
    word = "cheaper" if "p_cheaper" in found[0] else "faster"
    head = ("layout", f"P({word} than chosen)", "step s", "90 %", "GiB", "scope")

    def row(one: Mapping[str, Any]) -> tuple[object, ...]:
        low, mid, high = one["step_s"]
        reach = f"{figures(low)}–{figures(high)}"
        shown = words_of(one["layout"]), percent(one[f"p_{word}"], 0), figures(mid), reach
        return (*shown, figures(one["memory_gib"]), one["scope"])

    numbers = (1, 2, 3, 4)
    many = plan.get("tied_count") or len(found)
    rest = None
    if len(found) > TIED_SHOWN:
        words = f"{'All' if many == len(found) else 'The likeliest'} {grouped(len(found))}"
        rest = details(words, table(head, map(row, found), numbers=numbers))
    lead = (
        f"{grouped(many)} other {'cut' if many == 1 else 'cuts'} cannot be told from the chosen one. The errors that "
        "both share are cancelled; of what is tied, the simplest is taken."
    )
    shown = table(head, map(row, found[:TIED_SHOWN]), numbers=numbers)
    return section("tied", "Statistically tied", tag("div", shown, rest, cls="card"), lead=lead)


def families_section(plan: Mapping[str, Any]) -> Html | None:
    """Every family with what became of its layouts, its best member and the two numbers compared."""
    found = [one for one in plan.get("families") or [] if isinstance(one, Mapping)]
    if not found:
        return None
    some = [(key, word) for key, word in KINDS if any(one["rejected"].get(key) for one in found)]
    counts = ("layouts", "listed", *(word for _, word in some))
    head = ("family", *counts, "its best", "value", "limit", "nearest, or wins when")
    numbers = (*range(1, 1 + len(counts)), 2 + len(counts), 3 + len(counts))
    shown = table(head, [_family(one, some) for one in found[:FAMILIES_SHOWN]], numbers=numbers)
    rest = None
    if len(found) > FAMILIES_SHOWN:
        rows = [_family(one, some) for one in found]
        rest = details(f"All {grouped(len(found))} families", table(head, rows, numbers=numbers))
    lead = "A family is the axes that it cuts by, the stage of fsdp, and the schedule. What comes nearest is first."
    card = tag("div", shown, rest, tag("p", _sum(found, some), cls="caption"), cls="card")
    return section("families", "By family", card, lead=lead)


def _sum(found: Sequence[Mapping[str, Any]], some: Iterable[tuple[str, str]]) -> str:
    listed = sum(one["listed"] for one in found)
    parts = [f"{grouped(listed)} listed above"]
    parts += [f"{grouped(sum(one['rejected'].get(key, 0) for one in found))} {word}" for key, word in some]
    return f"Together {grouped(sum(one['layouts'] for one in found))} layouts = {' + '.join(parts)}."


def _family(one: Mapping[str, Any], some: Iterable[tuple[str, str]]) -> tuple[object, ...]:
    counts = [one["layouts"], one["listed"], *(one["rejected"].get(key, 0) for key, _ in some)]
    begins = _name(one["family"]), *map(grouped, counts)
    best = one.get("best")
    if not isinstance(best, Mapping):
        return (*begins, "–", "–", "–", "–")
    why = str(best.get("nearest") or "–")
    more = [
        tag("div", text, cls="quiet")
        for text in (best.get("reason"), one.get("relaxed"), one.get("note"))
        if text
    ]
    return (*begins, words_of(best["layout"]), *_compared(best), join([why, *more]))


def _name(family: str) -> str:
    return family.replace(",", " · ")


def _compared(best: Mapping[str, Any]) -> tuple[str, str]:
    value, limit = best.get("value"), best.get("limit")
    if not (is_number(value) and is_number(limit) and limit):
        return "–", "–"
    return f"{figures(value)} {str(best.get('unit') or '').partition(' ')[0]}", figures(limit)


def sensitivity_section(plan: Mapping[str, Any]) -> Html | None:
    """Which assumption, changed by how much, changes the choice."""
    rows = [row for row in plan.get("sensitivity") or [] if isinstance(row, Mapping)]
    if not rows:
        return None
    head = ("assumption", "taken as", "smaller: then", "larger: then")
    body = [
        (row["assumption"], f"{figures(row['value'])} {row['unit']}", _turn(row, "down"), _turn(row, "up"))
        for row in rows
    ]
    note = (
        "The factor nearest to 1 at which another layout is chosen, between 1/16 and 16, among the leading layouts "
        "priced anew; the search itself is not done again."
    )
    card = tag("div", table(head, body), tag("p", kind("calculated"), " ", note, cls="caption"), cls="card")
    return section("sensitivity", "What would change the choice", card)


def _turn(row: Mapping[str, Any], way: str) -> Html:
    turn = row.get(way)
    if not isinstance(turn, Mapping):
        return tag("span", "not down to 1/16" if way == "down" else "not up to 16 times", cls="quiet")
    layout, seconds = turn.get("layout"), turn.get("step_s")
    there = f"× {figures(turn['factor'])} ({figures(turn['value'])} {row['unit']})"
    if layout is None:
        return join([there, tag("div", "none of the leading layouts fits or is in time", cls="quiet")])
    return join([there, tag("div", words_of(layout), f" {figures(seconds)} s")])
