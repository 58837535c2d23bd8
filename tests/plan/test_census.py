"""Counts by family are those of every layout, and add up to the search's own."""

from __future__ import annotations

from collections import Counter

import pytest

from paceline.plan.census import Census, by_family
from paceline.plan.enumerate import scopes
from paceline.plan.families import families
from paceline.plan.layout import Layout
from paceline.plan.rules import first_broken
from paceline.plan.sift import sift
from paceline.plan.tally import Tally
from paceline.plan.ties import tied
from paceline.plan.weigh import family
from tests.plan.answers import LLAMA, ask, job
from tests.plan.test_search_exhaustive import TOP, asked


@pytest.mark.parametrize("seed", range(12))
def test_families_are_counted_as_listing_every_layout_would(seed: int) -> None:
    question = asked(seed)
    for space in scopes(question.cluster, question.facts.work, Layout(auto=True)):
        if space.total[0] > 12_000:
            continue
        listed: dict[str, Counter[str]] = {}
        for layout in space.layouts():
            broken = first_broken(layout, question.rule_facts) is not None
            listed.setdefault(family(layout), Counter()).update(divide=1, refused=broken)
        counted = by_family(space)
        assert {name: (c["divide"], c["refused"]) for name, c in counted.items()} == {
            name: (c["divide"], c["refused"]) for name, c in listed.items()
        }
        found = sift(question, space, TOP)
        tallies = found.census.families()
        assert all(tally.adds_up() and min(tally.to_dict().values()) >= 0 for tally in tallies.values())
        assert sum(tallies.values(), Tally()) == found.tally
        for _, layout in found.best:
            assert tallies[family(layout)].scored > 0


def test_asking_twice_counts_once() -> None:
    question = asked(1)
    space = scopes(question.cluster, question.facts.work, Layout(auto=True))[-1]
    census = sift(question, space, TOP).census
    assert census.families() == census.families()


def test_censuses_add_up() -> None:
    one, other = Census({"dp": Tally(divide=3, scored=3)}), Census({"dp": Tally(divide=2, refused=2)})
    one += other
    assert one.families() == {"dp": Tally(divide=5, scored=3, refused=2)}


@pytest.mark.parametrize("where", [None, "8xH100-SXM-80GB", "2x8xA100-SXM-40GB"])
def test_the_record_adds_up_to_the_search(where: str | None) -> None:
    plan = ask(job(LLAMA), where) if where else ask()
    found = families(plan)
    assert sum(one.layouts for one in found) == plan.tally.divide
    assert sum(one.listed for one in found) == len(plan.candidates)
    assert all(one.layouts == one.listed + sum(one.counts.values()) for one in found)
    together: Counter[str] = Counter()
    for one in found:
        together.update(one.counts)
    assert dict(together) == plan.counts()
    assert all(one.best is not None and family(one.best.layout) == one.name for one in found)
    for one in found:
        assert one.best is not None
        if one.best.kind == "memory":
            assert one.best.value > 0.9 * one.best.limit
            assert one.best.nearest.startswith("nearest: ")
        if one.best.kind == "rule":
            assert one.best.reason
            assert first_broken(Layout.parse(one.best.nearest), plan.question.rule_facts) is None  # type: ignore[union-attr]


def test_the_best_of_a_family_is_the_first_of_it_that_was_priced() -> None:
    plan = ask(job(LLAMA), "8xH100-SXM-80GB")
    by_name = {one.name: one for one in families(plan)}
    chosen = by_name[family(plan.layout)].best
    assert chosen is not None
    firsts: dict[str, Layout] = {}
    for candidate in plan.priced:
        firsts.setdefault(family(candidate.layout), candidate.layout)
    assert {name: str(by_name[name].best.layout) for name in firsts} == {  # type: ignore[union-attr]
        name: str(layout) for name, layout in firsts.items()
    }


def test_the_tied_set_is_what_the_table_calls_tied() -> None:
    plan = ask()
    found = {one["layout"]: one["p_faster"] for one in tied(plan)}
    told = [c for c in plan.candidates if c.verdict.startswith("tied")]
    assert told
    for candidate in told:
        assert f"({100 * found[str(candidate.layout)]:.0f} % to be faster)" in candidate.verdict
    assert all(0.1 <= p <= 1 for p in found.values())
    assert str(plan.layout) not in found
    assert tied(ask(job(layout__objective="memory"))) == []
