"""The end of a backward pass is shared out between the calls that DDP waits for in C++, and booked once."""

from __future__ import annotations

from itertools import pairwise

import pytest

from paceline.deliver.wire.futures import shares

Interval = tuple[float, float]


@pytest.mark.parametrize(
    ("ends", "taken", "expected"),
    [
        ([2.0, 5.0], [], [(1.0, 2.0), (2.0, 5.0)]),
        ([0.5, 5.0], [], [None, (1.0, 5.0)]),
        ([5.0, 2.0], [], [(1.0, 5.0), None]),
        # The callback that ends the bucket comes while DDP waits for its map already, or after that.
        ([5.0], [(4.0, 6.0)], [(1.0, 4.0)]),
        ([6.5], [(4.0, 6.0)], [(1.0, 4.0)]),
        ([9.0], [(2.0, 3.0)], [(3.0, 9.0)]),
        ([5.0, 7.0], [(4.0, 6.0)], [(1.0, 4.0), (6.0, 7.0)]),
        ([5.0, 5.5], [(1.0, 6.0)], [None, None]),
        # A wait of an earlier moment takes nothing.
        ([2.0], [(0.0, 0.5)], [(1.0, 2.0)]),
    ],
)
def test_no_second_is_shared_twice(
    ends: list[float], taken: list[Interval], expected: list[Interval | None]
) -> None:
    found = shares(1.0, ends, taken)
    assert found == expected
    inside = sorted([part for part in found if part is not None] + taken)
    assert all(a[1] <= b[0] for a, b in pairwise(inside))
