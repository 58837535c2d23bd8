"""One rank's failure is every rank's, told once and in the same words."""

from __future__ import annotations

import pytest

from paceline.ledger.outcome import Exit
from paceline.recover.agree import Ranks
from tests.pool import RankPool


@pytest.mark.parametrize("fault", ["", "ß" * 100_000])
def test_the_lowest_failing_ranks_error_reaches_all(fault: str, ranks: RankPool) -> None:
    results = ranks(3).run("tests.recover.cases:together", fault=fault)
    errors = [error for error, _, _ in results]
    assert errors[0] == errors[1] == errors[2]
    assert errors[0]["message"].startswith("rank 1: ValueError: planted on 1")
    assert errors[0]["exit_code"] == Exit.FAULT
    assert [cause for _, cause, _ in results] == ["NoneType", "ValueError", "ValueError"]
    assert [values for _, _, values in results] == [[10, -1, 3], [11, 21, 3], [12, -1, 3]]


def test_one_rank_alone_raises_what_it_raised() -> None:
    alone = Ranks(None)
    with pytest.raises(ZeroDivisionError):
        alone.together(lambda: 1 // 0)
    assert alone.together(lambda: 5) == 5
    assert alone.total(7) == 7
