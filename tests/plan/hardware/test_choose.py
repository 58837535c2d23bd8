"""Choosing among offers: brute force finds the same, and what is pruned could not have been it."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from paceline.plan.hardware.choose import TOLERATED, Choice, Entry, Tried
from paceline.plan.hardware.crossing import pays_from


def menu(seed: int) -> tuple[list[Entry], dict[str, Tried]]:
    """Random offers at 1, 2, 4, … hosts: real figures, and bounds somewhere below them."""
    pick = random.Random(seed)
    entries, real = [], {}
    for offer in range(pick.randint(2, 7)):
        hours, price = pick.uniform(5, 200), pick.uniform(10, 150)
        for hosts in (1, 2, 4, 8, 16):
            name = f"shape{offer}x{hosts}"
            took = hours / hosts ** pick.uniform(0.7, 1.0)
            usd = took * hosts * price
            word = pick.choice(["fits"] * 8 + ["late", "no fit"])
            tried = Tried(name, f"shape{offer}", hosts)
            below = pick.uniform(0.3, 1.0)
            entries.append(Entry(tried, took * below, usd * below))
            real[name] = replace(tried, hours=took, usd=usd, layout="dp=8", word=word)  # type: ignore[arg-type]
    return entries, real


@pytest.mark.parametrize("objective", ["time", "cost"])
@pytest.mark.parametrize("seed", range(40))
def test_the_choice_is_that_of_brute_force(seed: int, objective: str) -> None:
    entries, real = menu(seed)
    choice = Choice(entries, lambda entry: real[entry.tried.name])
    found = choice.best(objective, budgeted=False)
    fitting = [one for one in real.values() if one.word == "fits"]
    least = min(one.usd or 0.0 for one in fitting)
    allowed = [one for one in fitting if (one.usd or 0.0) <= least * TOLERATED]
    wanted = (
        min(allowed, key=lambda one: one.hours)
        if objective == "time"
        else min(fitting, key=lambda o: o.usd or 0)
    )
    assert found is not None
    assert found.name == wanted.name


def test_a_budget_lets_the_fastest_inside_it_cost_more() -> None:
    entries, real = menu(3)
    found = Choice(entries, lambda entry: real[entry.tried.name]).best("time", budgeted=True)
    fitting = [one for one in real.values() if one.word == "fits"]
    assert found is not None
    assert found.hours == min(one.hours for one in fitting)


def test_most_of_a_large_menu_is_not_searched_and_every_row_is_told() -> None:
    searched = told = 0
    for seed in range(20):
        entries, real = menu(seed)
        choice = Choice(entries, lambda entry, real=real: real[entry.tried.name])  # type: ignore[misc]
        found = choice.best("cost", budgeted=False)
        rows = choice.told(found, "cost")
        assert len(rows) == len(entries)
        assert rows[0].word == "chosen"
        for row in rows:
            if row.word == "pruned":  # its bound alone is above the chosen
                assert (row.usd or 0.0) >= (rows[0].usd or 0.0)
                assert row.more.startswith("≥ ")
        searched, told = searched + choice.searched, told + len(rows)
    assert searched < told / 2


def test_the_nearest_miss_is_the_least_limit_that_would_do() -> None:
    entries = [
        Entry(Tried("a", "a", 1, word="late"), least_hours=3.0, least_usd=1.0),
        Entry(Tried("b", "b", 1, word="late"), least_hours=4.0, least_usd=1.0),
        Entry(Tried("c", "c", 1, word="late"), least_hours=9.0, least_usd=1.0),
    ]
    asked = []

    def search(entry: Entry) -> Tried:
        asked.append(entry.tried.name)
        needs = {"a": 8.0, "b": 6.0}[entry.tried.name]
        return replace(entry.tried, layout="dp=8", needs=needs)

    nearest = Choice(entries, search).nearest("late")
    assert nearest is not None
    assert (nearest.name, nearest.needs) == ("b", 6.0)
    assert asked == ["a", "b"]  # c cannot be nearer than its bound


@pytest.mark.parametrize(
    ("initial", "running", "rented", "count"),
    [
        (1000, 10, 110, 10),
        (1001, 10, 110, 11),
        (50, 10, 110, 1),
        (1000, 110, 110, None),
        (1000, 200, 110, None),
    ],
)
def test_own_pays_from_that_many_experiments_on(
    initial: float, running: float, rented: float, count: int | None
) -> None:
    assert pays_from(initial, running, rented) == count
    if count is not None:
        assert initial / count + running <= rented
        assert count == 1 or initial / (count - 1) + running > rented
