"""What a failure needs: the smallest part of a layout that still fails."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from paceline.api.isolate import isolate, present
from paceline.plan.layout import Layout

WIDE = Layout.parse("dp=2,fsdp=2:zero2,tp=2,pp=2:zbv,mbs=1,recompute=full")


@pytest.mark.parametrize(
    ("fails", "needs"),
    [
        (lambda x: x.tp > 1, ("tp",)),
        (lambda x: x.dp > 1 and x.pp > 1, ("pp", "dp")),
        (lambda x: x.recompute == "full" and x.fsdp > 1, ("recompute", "fsdp")),
        (lambda x: x.zero == "zero2" and x.schedule == "zbv", ("pp", "fsdp", "zero", "schedule")),
        (lambda x: True, ()),
    ],
)
def test_what_is_left_is_what_it_needs(fails: Callable[[Layout], bool], needs: tuple[str, ...]) -> None:
    smallest, found = isolate(WIDE, fails)
    assert found == needs
    assert fails(smallest)


def test_few_reruns() -> None:
    tried: list[Layout] = []

    def fails(layout: Layout) -> bool:
        tried.append(layout)
        return layout.tp > 1

    isolate(WIDE, fails)
    assert len(tried) <= 8
    assert len(set(tried)) == len(tried)


def test_a_part_that_the_rule_book_wants_stays() -> None:
    """Taking dp out of dp=2,ep=2 leaves experts without ranks: such a rerun is refused, and counts as not failing."""
    layout = Layout.parse("dp=2,ep=2,mbs=1")
    smallest, needs = isolate(layout, lambda x: x.dp * x.tp % x.ep == 0 and x.ep > 1)
    assert (smallest, needs) == (layout, ("ep", "dp"))


def test_what_is_present() -> None:
    assert tuple(present(Layout.parse("single"))) == ()
    assert tuple(present(Layout.parse("fsdp=2,mbs=4"))) == ("fsdp",)
    assert tuple(present(Layout.parse("pp=2:interleaved,vpp=3"))) == ("pp", "schedule", "vpp")
