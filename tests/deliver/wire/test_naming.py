"""Groups of members that have made unequal numbers of other groups still meet."""

from __future__ import annotations

from torch.distributed import distributed_c10d as c10d

from paceline.deliver.wire.naming import _HOOK, Names
from tests.pool import RankPool


def test_torch_still_has_the_hook() -> None:
    assert callable(getattr(c10d, _HOOK, None)), "torch names groups another way now: see naming.py"


def test_names_differ_by_ranks_and_by_count_of_the_same_ranks() -> None:
    names = Names()
    found = []
    for ranks in ((0, 1), (0, 1), (0, 2), (0, 1)):
        with names.next_of(ranks) as name:
            found.append(name)
    assert len(set(found)) == 4
    with Names().next_of((0, 2)) as name:
        assert name == found[2], "what other ranks have made does not matter"


def test_ranks_with_unequal_numbers_of_groups_meet(ranks: RankPool) -> None:
    assert ranks(3).run("tests.deliver.wire.cases:unequal_groups", timeout_s=30) == [3.0, 1.0, 3.0]
