"""Any layout sees the same global batch; unequal ranks are filled with weight zero; each row counts once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from paceline.compute.data.batches import (
    PADDING_ROW,
    Batch,
    BatchPlan,
    data_limit,
    eval_batches,
    refuse_before_start,
    total_steps,
)
from paceline.compute.data.order import Order
from paceline.compute.data.packing import IGNORE, PackedSet
from paceline.compute.data.prepared import Prepared
from paceline.ledger.outcome import Exit, Refused

Make = Callable[..., Prepared]
T = 4


def packed_of(
    tmp_path: Path, prepared_of: Make, rows: int, eval_rows: int = 2, packing: str = "concat"
) -> PackedSet:
    """Exactly so many rows of T tokens, every one different."""
    texts = {"train": rows, "eval": eval_rows}
    for name, count in texts.items():
        tokens = np.random.default_rng(count).integers(0, 101, count * T + 1)
        np.save(tmp_path / f"{name}.npy", tokens)
    paths = [str(tmp_path / f"{name}.npy") for name in texts]
    return PackedSet(prepared_of(*paths, tokenizer=None, vocab_size=101), "train", T, packing)


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> PackedSet:
    from paceline.compute.data.prepare import prepare
    from paceline.compute.data.spec import DataSpec

    folder = tmp_path_factory.mktemp("packed")

    def make(train: object, eval: object, **rest: object) -> Prepared:
        return prepare(DataSpec.of(train, eval, **rest), folder / "cache")

    return packed_of(folder, make, rows=23, eval_rows=22)


def by_slot(batches: list[list[Batch]]) -> tuple[list[int], list[list[int]]]:
    """Rows and targets of all ranks' micro-batches in the order of their positions."""
    found = [
        (int(position), int(row), targets.tolist())
        for rank in batches
        for batch in rank
        for position, row, targets in zip(
            batch.positions_in_order, batch.rows, batch.arrays["targets"], strict=True
        )
        if row != PADDING_ROW
    ]
    found.sort(key=lambda entry: entry[0])
    assert len({entry[0] for entry in found}) == len(found), "no position twice"
    return [row for _, row, _ in found], [targets for _, _, targets in found]


@given(
    batch=st.integers(1, 17),
    degree=st.integers(1, 6),
    micro=st.one_of(st.none(), st.integers(1, 5)),
    step=st.integers(0, 9),
    limit=st.one_of(st.none(), st.integers(1, 60)),
)
@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_layout_sees_the_same_global_batch(
    packed: PackedSet, batch: int, degree: int, micro: int | None, step: int, limit: int | None
) -> None:
    order = Order(7, packed.rows)
    alone = BatchPlan(packed, order, batch, micro_batch_size=batch, limit=limit)
    ranks = [BatchPlan(packed, order, batch, r, degree, micro, limit) for r in range(degree)]
    parts = [plan.micro_batches(step) for plan in ranks]
    shapes = {b.arrays["tokens"].shape for part in parts for b in part}
    assert shapes == {ranks[0].shape}, "every rank, every micro-batch: one shape"
    assert {len(part) for part in parts} == {ranks[0].micro_batches_per_step}, "equal counts, so nobody waits"
    assert by_slot(parts) == by_slot([alone.micro_batches(step)])
    assert by_slot(parts)[0] == alone.global_rows(step).tolist()
    valid = sum(b.valid_tokens for part in parts for b in part)
    assert valid == ranks[0].global_valid_tokens(step)
    padding = sum(b.padding_rows for part in parts for b in part)
    assert padding == ranks[0].padding_rows_per_step + batch - len(by_slot(parts)[0])
    for part in parts:
        for one in part:
            assert (one.arrays["targets"][one.rows == PADDING_ROW] == IGNORE).all()
    if micro is not None:
        assert ranks[0].shape[0] <= micro


def test_every_row_once_per_epoch_and_the_data_wraps(packed: PackedSet) -> None:
    """B137: a run of more steps than the data has goes on into the next epoch, in another order."""
    plan = BatchPlan(packed, Order(7, packed.rows), 5)
    seen = np.concatenate([plan.global_rows(step) for step in range(24)])
    epochs = seen[: 5 * 23].reshape(5, 23)
    assert all(sorted(epoch.tolist()) == list(range(23)) for epoch in epochs)
    assert len({tuple(epoch.tolist()) for epoch in epochs}) == 5


def test_an_epoch_ends_inside_a_batch_with_rows_of_weight_zero(packed: PackedSet) -> None:
    job = job_of(epochs=2.0, global_batch_size=8)
    limit = data_limit(job, packed)
    plan = BatchPlan(packed, Order(7, packed.rows), 8, limit=limit)
    assert total_steps(job, packed) == 6
    seen = np.concatenate([plan.global_rows(step) for step in range(6)])
    assert np.bincount(seen).tolist() == [2] * 23
    assert plan.global_rows(5).size == 46 - 40
    assert plan.global_rows(6).size == 0
    (last,) = plan.micro_batches(5)
    assert (last.padding_rows, last.valid_tokens) == (2, 6 * T)


def test_resumed_in_the_second_epoch_and_twice_in_one(packed: PackedSet) -> None:
    """B026, B027, B029: the position counts up across resumes; the order after one is the straight run's."""
    straight = BatchPlan(packed, Order(7, packed.rows), 3)
    ids = [straight.global_rows(step).tolist() for step in range(14)]
    for stops in ([9], [9, 11], [2, 8, 9, 10]):
        resumed: list[list[int]] = []
        for start, end in zip([0, *stops], [*stops, 14], strict=True):
            again = BatchPlan(packed, Order(7, packed.rows), 3, first_step=start, first_position=start * 3)
            resumed += [again.global_rows(step).tolist() for step in range(start, end)]
        assert resumed == ids


def test_resumed_with_another_batch_size_no_row_is_lost(packed: PackedSet) -> None:
    before = BatchPlan(packed, Order(7, packed.rows), 3)
    after = BatchPlan(packed, Order(7, packed.rows), 5, first_step=4, first_position=before.position_of(4))
    seen = [*(before.global_rows(s) for s in range(4)), *(after.global_rows(s) for s in range(4, 7))]
    assert np.concatenate(seen).tolist() == Order(7, packed.rows).rows_at(np.arange(27)).tolist()


def test_ten_samples_on_three_ranks_give_equal_steps(tmp_path: Path, prepared_of: Make) -> None:
    """B033, B032: unequal shares are filled, not left to one rank; nobody waits for it."""
    ten = packed_of(tmp_path, prepared_of, rows=10)
    job = job_of(epochs=1.0, global_batch_size=4)
    assert total_steps(job, ten) == 3
    plans = [BatchPlan(ten, Order(0, 10), 4, r, 3, 1, data_limit(job, ten)) for r in range(3)]
    counts = [[len(plan.micro_batches(step)) for step in range(3)] for plan in plans]
    assert counts[0] == counts[1] == counts[2]
    last = [sum(b.valid_tokens for b in plan.micro_batches(2)) for plan in plans]
    assert last == [T, T, 0]
    assert plans[0].global_valid_tokens(2) == 2 * T


def test_the_divisor_counts_valid_tokens_of_all_ranks(tmp_path: Path, prepared_of: Make) -> None:
    """B006: rank 0 has 15 valid targets, rank 1 one; each weighs by its tokens, not by its rank."""
    np.save(tmp_path / "t.npy", np.arange(17))
    np.save(tmp_path / "e.npy", np.arange(5))
    packed = PackedSet(
        prepared_of(str(tmp_path / "t.npy"), str(tmp_path / "e.npy"), tokenizer=None), "train", 15
    )
    assert packed.rows == 2
    plans = [BatchPlan(packed, Order(0, 2), 2, r, 2) for r in range(2)]
    assert sorted(plan.micro_batches(0)[0].valid_tokens for plan in plans) == [1, 15]
    assert {plan.global_valid_tokens(0) for plan in plans} == {16}


@pytest.mark.drill(43)
def test_fewer_rows_than_ranks_is_refused(tmp_path: Path, prepared_of: Make) -> None:
    """B138: three samples on four ranks."""
    three = packed_of(tmp_path, prepared_of, rows=3)
    with pytest.raises(Refused) as caught:
        BatchPlan(three, Order(0, 3), 8, 0, 4)
    assert caught.value.exit_code == Exit.DATA
    assert "dp=3" in caught.value.use
    with pytest.raises(Refused, match="fewer sequences"):
        refuse_before_start(job_of(), three.prepared, 4)
    assert refuse_before_start(job_of(), three.prepared, 3) == 1
    job = job_of()
    job.data.sequence_length = 50
    with pytest.raises(Refused, match="too small"):
        refuse_before_start(job, three.prepared, 1)
    assert BatchPlan(three, Order(0, 3), 8, 0, 3).global_rows(0).size == 8


@given(degree=st.integers(1, 6), micro=st.integers(1, 9), limit=st.one_of(st.none(), st.integers(1, 40)))
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_an_evaluation_reads_each_row_once_over_all_ranks(
    packed: PackedSet, degree: int, micro: int, limit: int | None
) -> None:
    parts = [list(eval_batches(packed, r, degree, micro, limit)) for r in range(degree)]
    assert len({len(part) for part in parts}) == 1
    assert len({b.arrays["tokens"].shape for part in parts for b in part}) == 1
    rows, _ = by_slot(parts)
    assert len(rows) == len(set(rows)) == min(packed.rows, limit or packed.rows)
    assert rows == sorted(rows)
    if limit is None:
        assert rows == list(range(packed.rows))


def test_22_samples_on_three_ranks_are_22(packed: PackedSet) -> None:
    """B091: no prediction twice because of the padding."""
    held_out = PackedSet(packed.prepared, "eval", T)
    assert held_out.rows == 22
    batches = [b for r in range(3) for b in eval_batches(held_out, r, 3, 8)]
    assert sum(int((b.rows != PADDING_ROW).sum()) for b in batches) == 22
    assert sum(b.valid_tokens for b in batches) == 22 * T


def test_a_metric_over_padded_ranks_is_exact(tmp_path: Path, prepared_of: Make) -> None:
    """B092: sums and counts of real rows are added, so padding cannot move a mean."""
    nine = packed_of(tmp_path, prepared_of, rows=9)
    value = np.arange(9.0)
    batches = [b for r in range(2) for b in eval_batches(nine, r, 2, 5)]
    real = np.concatenate([b.rows[b.rows != PADDING_ROW] for b in batches])
    assert value[real].sum() / real.size == 4.0


def test_segments_and_positions_come_along(tmp_path: Path, prepared_of: Make) -> None:
    masked = packed_of(tmp_path, prepared_of, rows=7, packing="masked")
    (batch,) = BatchPlan(masked, Order(0, 7), 3, micro_batch_size=4).micro_batches(0)
    assert batch.arrays["segments"].shape == batch.arrays["positions"].shape == (3, T)
    row = masked.row(int(batch.rows[1]))
    np.testing.assert_array_equal(batch.arrays["positions"][1], row.positions)


def test_sizes_below_one_are_refused(packed: PackedSet) -> None:
    for batch, rank, degree, micro in ((0, 0, 1, 1), (4, 0, 1, 0), (4, 2, 2, 1)):
        with pytest.raises(Refused) as caught:
            BatchPlan(packed, Order(0, packed.rows), batch, rank, degree, micro)
        assert caught.value.exit_code == Exit.USAGE


def job_of(**train: object) -> Any:
    values = {"steps": None, "epochs": None, "tokens": None, "global_batch_size": 4, **train}
    return SimpleNamespace(
        train=SimpleNamespace(**values), data=SimpleNamespace(sequence_length=T, packing="concat")
    )


@pytest.mark.parametrize(
    ("train", "steps", "limit"),
    [
        ({"steps": 30}, 30, None),
        ({"tokens": 100}, 7, None),
        ({"tokens": 96}, 6, None),
        ({}, 6, 23),
        ({"epochs": 0.5}, 3, 12),
        ({"epochs": 8.0, "global_batch_size": 64}, 3, 184),
        ({"epochs": 1e-9}, 1, 1),
    ],
)
def test_how_long_a_run_is(
    packed: PackedSet, train: dict[str, object], steps: int, limit: int | None
) -> None:
    """B036: an epoch shorter than a batch: the batch goes on into the next epochs, and the count is right."""
    job = job_of(**train)
    assert total_steps(job, packed) == steps
    assert data_limit(job, packed) == limit
