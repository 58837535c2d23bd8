"""Rows of the fault log about what a step divides by, clips by and reports: GA LAST TW CLIP CP PACK.

Each test has the row's number in its name, the row's trigger, and neighbours of it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from paceline.compute.data.batches import BatchPlan, data_limit, total_steps
from paceline.compute.data.order import Order
from paceline.compute.data.packing import PackedSet
from paceline.compute.data.prepare import prepare
from paceline.compute.data.prepared import Prepared
from paceline.compute.data.spec import DataSpec
from tests.faults.open_rows_cases import Batch, agree, differences, given, train
from tests.faults.open_rows_run_cases import last_window
from tests.pool import RankPool
from tests.tiny import LENGTH, VOCAB, ragged_batches, tiny_job, tiny_widths

CASES = "tests.faults.open_rows_cases:"
EXPERTS = {
    "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "router_aux_loss_coef": 0.05,
}  # fmt: skip
SLIDING = {"sliding_window": 5, "layer_types": ("sliding_attention", "full_attention") * 2}


def valid_in(row_counts: list[int]) -> Batch:
    """A batch whose rows have so many valid targets, the first ones."""
    batch = ragged_batches(1, documents=False, rows=len(row_counts), seed=3)[0]
    stream = torch.randint(0, VOCAB, (len(row_counts), LENGTH), generator=torch.Generator().manual_seed(4))
    late = torch.arange(LENGTH)[None] >= torch.tensor(row_counts)[:, None]
    return {"tokens": batch["tokens"], "targets": stream.masked_fill(late, -100)}


def test_b002_b065_four_accumulated_micro_batches_have_the_norm_of_the_whole_batch(ranks: RankPool) -> None:
    """Ragged lengths, norms as logged; sharding meets accumulation in every ZeRO stage."""
    arguments = given()
    agree(ranks, ["dp=2", "fsdp=2", "fsdp=2:zero2", "fsdp=2:zero1"], mbs=1, **arguments)
    one = train(None, layout="single", mbs=8, **arguments)
    four = train(None, layout="single", mbs=2, **arguments)
    assert differences(four, one) == {}
    assert [row["grad_norm"] for row in four["rows"]] == pytest.approx(one["norms"], rel=1e-12)


def test_b004_accumulation_in_a_pipeline_scales_once(ranks: RankPool) -> None:
    """Twelve micro-batches, which are four times three, where shards of the weights accumulate as well."""
    arguments = given(rows=12, documents=True)
    agree(ranks, ["pp=2", "pp=2:interleaved", "pp=2:zero-bubble"], mbs=1, **arguments)
    agree(ranks, ["pp=2,fsdp=2:zero1", "pp=2:zbv,fsdp=2:zero2"], mbs=1, **arguments)


@pytest.mark.parametrize(("precision", "steps", "limit"), [("fp64", 50, 1e-12), ("fp32", 10, 3e-6)])
def test_b005_32_steps_of_one_row_are_one_of_32(precision: str, steps: int, limit: float) -> None:
    """One layer, since depth is not what the row is about.

    In fp32 AdamW makes a part of a step out of the rounding of a gradient that is nearly zero: one weight in 20,000.
    """
    arguments = given(steps=steps, rows=32, num_hidden_layers=1) | {"precision": precision}
    one = train(None, layout="single", mbs=32, **arguments)
    many = train(None, layout="single", mbs=1, **arguments)
    for name, tensor in one["weights"].items():
        assert float((many["weights"][name] - tensor).norm()) < limit * float(tensor.norm()), name
        assert float((one["start"][name] - tensor).norm()) > 1e-3 * float(tensor.norm()), name


@pytest.fixture
def constant(tmp_path: Path) -> str:
    """Twenty rows, all of the same token."""
    for name, rows in (("train", 20), ("eval", 2)):
        np.save(tmp_path / f"{name}.npy", np.full(rows * LENGTH + 1, 7))
    files = [str(tmp_path / f"{name}.npy") for name in ("train", "eval")]
    spec = DataSpec.of(*files, tokenizer=None, vocab_size=VOCAB)
    return str(prepare(spec, tmp_path / "cache").folder)


def test_b034_a_short_last_window_is_divided_by_what_is_in_it(ranks: RankPool, constant: str) -> None:
    """Five batches of four, two a step: the third step has one, and the norm of the others."""
    job = tiny_job(train__steps=None, train__epochs=1.0)
    arguments = {"folder": constant, "job": job, "widths": tiny_widths()}
    first, second, last = last_window(None, layout="single", mbs=4, **arguments)
    assert (first[2], second[2], last[2]) == (8 * LENGTH, 8 * LENGTH, 4 * LENGTH)
    assert second[:2] == pytest.approx(first[:2], rel=1e-12)
    assert last[:2] == pytest.approx(first[:2], rel=1e-12)
    layouts = {"dp=2": 2, "fsdp=2": 1, "pp=2": 2, "tp=2": 4}
    runs = [{**arguments, "layout": layout, "mbs": mbs} for layout, mbs in layouts.items()]
    for rank in ranks(2).run("tests.faults.open_rows_run_cases:last_windows", timeout_s=100, runs=runs):
        for found in rank:
            assert [v for step in found for v in step] == pytest.approx([*first, *second, *last], rel=1e-9)


def test_b036_a_window_longer_than_an_epoch_goes_on_into_the_next(tmp_path: Path) -> None:
    """Three batches an epoch, eight a step, eight epochs: three steps, in which every row is used eight times."""
    for name, rows in (("train", 24), ("eval", 2)):
        np.save(tmp_path / f"{name}.npy", np.arange(rows * LENGTH + 1) % VOCAB)
    files = [str(tmp_path / f"{name}.npy") for name in ("train", "eval")]
    spec = DataSpec.of(*files, tokenizer=None, vocab_size=VOCAB)
    packed = PackedSet(Prepared.open(prepare(spec, tmp_path / "cache").folder), "train", LENGTH)
    job = tiny_job(train__steps=None, train__epochs=8.0, train__global_batch_size=64)
    assert packed.rows == 24
    assert total_steps(job, packed) == 3
    plan = BatchPlan(packed, Order(7, 24), 64, micro_batch_size=8, limit=data_limit(job, packed))
    windows = [plan.micro_batches(step) for step in range(3)]
    assert [len(window) for window in windows] == [8, 8, 8]
    used = np.concatenate([batch.rows for window in windows for batch in window])
    assert np.bincount(used).tolist() == [8] * 24


@pytest.mark.drill(45)
def test_b006_a_rank_weighs_by_its_valid_tokens(ranks: RankPool) -> None:
    """15 and 1; and a rank without any. 16 and 16 of another batch, so that no divisor is the same twice."""
    arguments = given() | {"batches": [valid_in([15, 1]), valid_in([0, 3]), valid_in([16, 16])]}
    agree(ranks, ["dp=2", "fsdp=2", "fsdp=2:zero1", "pp=2"], mbs=1, **arguments)


def test_b008_masked_prompts_do_not_bias_by_position(ranks: RankPool) -> None:
    """First half masked, second half masked, and one valid token at the very end."""
    arguments = given(3)
    for batch, keep in zip(arguments["batches"], (slice(8, None), slice(0, 8), slice(15, None)), strict=True):
        kept = torch.randint(0, VOCAB, batch["targets"].shape, generator=torch.Generator().manual_seed(5))
        batch["targets"] = torch.full_like(kept, -100)
        batch["targets"][:, keep] = kept[:, keep]
    agree(ranks, ["cp=2", "cp=2:ulysses", "tp=2", "pp=2"], mbs=2, **arguments)


def clipped_hard(**changes: Any) -> dict[str, Any]:
    return given(**changes) | {"job": tiny_job(optimizer__max_grad_norm=0.1)}


def whole_norm(gradients: dict[str, torch.Tensor]) -> float:
    return float(torch.stack([g.square().sum() for g in gradients.values()]).sum().sqrt())


def test_b016_whole_and_cut_weights_are_clipped_by_one_norm(ranks: RankPool) -> None:
    """max_norm 0.1: norms and biases are whole on every tp rank, a tied matrix is on two stages; each counts once."""
    arguments = clipped_hard(tie_word_embeddings=True, attention_bias=True, qk_norm=True)
    one = agree(ranks, ["tp=2", "pp=2", "pp=2:zbv", "cp=2"], mbs=2, **arguments)
    assert min(one["norms"]) > 0.5
    assert whole_norm(one["first"]) == pytest.approx(0.1, rel=1e-9)
    agree(ranks, ["tp=2,pp=2", "tp=4", "fsdp=2,tp=2"], mbs=2, **arguments)


def test_b018_experts_are_clipped_by_the_norm_of_all(ranks: RankPool) -> None:
    """max_norm 0.1; the same factor on ranks that hold other experts, and on none of them two factors."""
    arguments = clipped_hard(**EXPERTS, n_shared_experts=1)
    one = agree(ranks, ["fsdp=2,ep=2", "dp=2,ep=2", "tp=2,ep=2"], mbs=2, **arguments)
    assert min(one["norms"]) > 0.5
    assert whole_norm(one["first"]) == pytest.approx(0.1, rel=1e-9)
    agree(ranks, ["pp=2,fsdp=2,ep=2", "tp=2,fsdp=2,ep=2,etp=2"], mbs=2, **arguments)


def test_b056_a_balance_loss_is_not_weakened_by_cp(ranks: RankPool) -> None:
    """The router's gradient is that of one device, and would be another one without the term."""
    arguments = given(3, **{**EXPERTS, "router_aux_loss_coef": 0.5})
    one = agree(ranks, ["cp=2", "cp=2:ulysses", "cp=2,ep=2"], mbs=4, **arguments)
    without = train(None, layout="single", mbs=8, **given(3, **{**EXPERTS, "router_aux_loss_coef": 0.0}))
    gate = "layers.2.mlp.gate.weight"  # even fractions at first, so the term has a gradient from the second step on
    change = one["weights"][gate] - one["start"][gate]
    assert float((one["weights"][gate] - without["weights"][gate]).norm() / change.norm()) > 0.01


def test_b057_cp_logs_the_values_of_one_device(ranks: RankPool) -> None:
    """Loss, norm, tokens and rows of every logged row, and the held-out loss with its tokens."""
    arguments = given(documents=True)
    one = train(None, layout="single", mbs=8, **arguments)
    for size, layouts in (
        (2, ["cp=2", "cp=2:ulysses"]),
        (4, ["cp=4", "cp=2,dp=2", "cp=2,tp=2", "cp=2,pp=2"]),
    ):
        runs = [{**arguments, "layout": layout, "mbs": 2, "gather": False} for layout in layouts]
        for found in ranks(size).run(f"{CASES}several", timeout_s=110, runs=runs)[0]:
            assert found["eval"] == pytest.approx(one["eval"], rel=1e-9)
            for row, wanted in zip(found["rows"], one["rows"], strict=True):
                for key in ("loss", "grad_norm", "tokens", "samples"):
                    assert row[key] == pytest.approx(wanted[key], rel=1e-9), key


def packed_and_separate(lengths: list[list[int]]) -> tuple[Batch, Batch]:
    """Rows of several documents, and the same documents in rows of their own, filled up with weight zero."""
    gen = torch.Generator().manual_seed(6)
    tokens, targets = (torch.randint(0, VOCAB, (len(lengths), LENGTH), generator=gen) for _ in range(2))
    segments, positions = torch.zeros_like(tokens), torch.zeros_like(tokens)
    alone: list[tuple[torch.Tensor, torch.Tensor]] = []
    for row, parts in enumerate(lengths):
        start = 0
        for number, length in enumerate(parts):
            at = slice(start, start + length)
            segments[row, at], positions[row, at] = number, torch.arange(length)
            own = torch.zeros(LENGTH, dtype=torch.int64), torch.full((LENGTH,), -100)
            own[0][:length], own[1][:length] = tokens[row, at], targets[row, at]
            alone.append(own)
            start += length
    packed = {"tokens": tokens, "targets": targets, "segments": segments, "positions": positions}
    return packed, {n: torch.stack([d[i] for d in alone]) for i, n in enumerate(("tokens", "targets"))}


@pytest.mark.parametrize("changes", [{}, SLIDING], ids=["full", "sliding"])
def test_b058_a_pack_has_the_loss_and_gradient_of_its_documents(
    ranks: RankPool, changes: dict[str, Any]
) -> None:
    """Two rows of two and three documents; windows that reach over their borders; sequences that ranks share."""
    packed, separate = packed_and_separate([[7, 9], [4, 3, 9]])
    arguments = given(**changes)
    apart = train(None, layout="single", mbs=5, **arguments | {"batches": [separate]})
    arguments["batches"] = [packed]
    together = train(None, layout="single", mbs=2, **arguments)
    for row in (together, apart):
        row["rows"][0].pop("samples")
    assert differences(together, apart) == {}
    blind = {name: value for name, value in packed.items() if name in separate}
    assert differences(train(None, layout="single", mbs=2, **arguments | {"batches": [blind]}), apart) != {}
    agree(ranks, ["cp=2", "cp=2:ulysses", "tp=2", "pp=2"], mbs=1, **arguments)
