"""Partial gradients are summed once: what some ranks lack counts as zero, what all lack stays absent (kind FRZ)."""

from __future__ import annotations

import pytest

from tests.pool import RankPool

CASE = "tests.deliver.sums_cases:partial_sums"


@pytest.mark.parametrize("bucket_bytes", [8, 1 << 20], ids=["one parameter a bucket", "one bucket"])
def test_sums_over_the_ranks_of_each_parameter(ranks: RankPool, bucket_bytes: int) -> None:
    found = ranks(4).run(CASE, bucket_bytes=bucket_bytes)
    # tp=2, dp=2: ranks 0 1 | 2 3 are the replicas; rank r's gradient is r + 1
    for rank, result in enumerate(found):
        assert result["whole"] == [10.0, 10.0], "a weight that tp does not cut: all four"
        assert result["cut"] == [[4.0], [6.0]][rank % 2], "a cut weight: the replicas of this part"
        assert result["some"] == [3.0, 3.0], "only ranks 0 and 1 have one"
        assert result["unused"] is None
        assert result["reduced in bf16"] == [10.0, 10.0]
