"""Rows of the fault log about models in parts: TIE LAY MB VOC HEAD. A row's number is in the name of its test."""

from __future__ import annotations

from typing import Any

import pytest

from paceline.job.presets import ModelWidths
from paceline.ledger.outcome import Exit, Refused
from paceline.plan.layout import Layout
from paceline.plan.rules import Facts, check
from tests.faults.open_rows_cases import agree, given
from tests.pool import RankError, RankPool
from tests.tiny import tiny_widths

CASES = "tests.faults.open_rows_cases:"
TIED = {"tie_word_embeddings": True}


def refused(layout: str, widths: ModelWidths, **facts: Any) -> Refused:
    """What the rule book says to ``layout``, before anything starts."""
    with pytest.raises(Refused) as caught:
        check(Layout.parse(layout), Facts(widths, cpu=True, **facts))
    assert caught.value.exit_code == Exit.RULE
    return caught.value


def accepted(layout: str, widths: ModelWidths, **facts: Any) -> None:
    check(Layout.parse(layout), Facts(widths, cpu=True, **facts))


def test_b010_tied_weights_on_first_and_last_stage_train_as_one(ranks: RankPool) -> None:
    """Ten steps; with a V both copies are on one rank; holders that differ in a bit fail as well."""
    arguments = given(10, rows=4, **TIED)
    agree(ranks, ["pp=2", "pp=2:zbv", "pp=2:interleaved"], mbs=1, **arguments)


def test_b010_tied_weights_under_every_axis(ranks: RankPool) -> None:
    """An odd vocabulary is cut, and its rows are tied across stages, shards and sequences."""
    arguments = given(**TIED, attention_bias=True)
    agree(ranks, ["tp=2", "cp=2"], mbs=2, **arguments)
    agree(ranks, ["pp=2,tp=2", "pp=2,fsdp=2", "pp=2,cp=2"], mbs=2, **arguments)


def test_b011_the_automatic_split_of_a_tied_model(ranks: RankPool) -> None:
    """Three stages, of which the middle one has no copy."""
    agree(ranks, ["pp=3", "pp=3:gpipe"], mbs=2, **given(**TIED))


def test_b038_layers_that_do_not_divide_are_all_there(ranks: RankPool) -> None:
    """Five layers on two stages, on four stages of two ranks, on four ranks; losses without gradients as well."""
    arguments = given(num_hidden_layers=5)
    agree(ranks, ["pp=2", "pp=2:interleaved", "pp=2:zbv"], mbs=2, **arguments)
    agree(ranks, ["pp=4"], mbs=2, **arguments)


def test_b040_fewer_micro_batches_than_stages() -> None:
    """Refused with the counts that run."""
    widths = tiny_widths()
    error = refused("pp=4,mbs=4", widths, global_batch=8)
    assert "2 micro-batches" in error.message
    assert error.allowed.startswith("4, 5, 6, 7")
    assert error.use == "--layout pp=4,mbs=2"
    assert "2 micro-batches" in refused("pp=4,mbs=1", widths, global_batch=2).message
    accepted("pp=4,mbs=2", widths, global_batch=8)


def test_b040_two_micro_batches_on_four_stages_run_or_end_at_once(ranks: RankPool) -> None:
    """gpipe takes them; 1f1b says so before anything is sent, although nobody asked the rule book."""
    agree(ranks, ["pp=4:gpipe"], mbs=4, **given())
    runs = [{**given(1), "layout": "pp=4", "mbs": 4}]
    with pytest.raises(RankError, match="pp=4:1f1b cannot run 2 micro-batches a step: it takes 4, 5, 6, 7"):
        ranks(4).run(f"{CASES}several", timeout_s=60, runs=runs)


def test_b041_200_steps_on_a_vocabulary_that_does_not_divide(ranks: RankPool) -> None:
    """101 rows over two ranks; one layer, since what the row is about is before and after the layers."""
    agree(ranks, ["tp=2"], mbs=2, **given(200, rows=3, num_hidden_layers=1), gather=False)


@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
def test_b044_every_option_of_the_loss_is_that_of_one_device(ranks: RankPool, tied: bool) -> None:
    """Soft-capped logits over a cut vocabulary; one with fewer rows on the last rank than on the others, or none."""
    capped = {"final_logit_softcapping": 3.0, "tie_word_embeddings": tied}
    agree(ranks, ["tp=2", "tp=2,recompute=full"], mbs=4, **given(**capped))
    agree(ranks, ["tp=4", "tp=2,pp=2"], mbs=2, **given(**capped))


def test_b045_more_tp_ranks_than_key_value_heads_repeat_them(ranks: RankPool) -> None:
    """kv_heads 2, tp 4; kv_heads 1, tp 2 and 4; with biases, whose gradients meet on the ranks that repeat."""
    agree(ranks, ["tp=4", "tp=2,cp=2:ulysses"], mbs=4, **given(attention_bias=True, qk_norm=True))
    agree(ranks, ["tp=4", "tp=2,fsdp=2"], mbs=4, **given(num_key_value_heads=1, attention_bias=True))
    accepted("tp=4", tiny_widths())


def test_b045_heads_that_cannot_be_shared_are_refused_with_degrees_that_can() -> None:
    """Before a process starts, in the words of the job."""
    six = tiny_widths(num_attention_heads=6, num_key_value_heads=3)
    for layout in ("tp=2", "tp=4", "tp=6,cp=4:ulysses"):
        if layout == "tp=6,cp=4:ulysses":
            error, allowed = refused(layout, six, sequence_length=192), "cp = 1"
        else:
            error, allowed = refused(layout, six, sequence_length=192), "tp = 1, 3, 6"
        assert error.allowed == allowed, layout
        accepted(error.use.removeprefix("--layout "), six, sequence_length=192)
    assert "6 attention heads, 3 key/value heads" in refused("tp=2", six).seen
    for layout in ("tp=3", "tp=6", "tp=3,cp=2:ulysses"):
        accepted(layout, six, sequence_length=192)


def test_b045_the_degrees_that_are_allowed_train(ranks: RankPool) -> None:
    """Six heads, three key/value heads, three ranks."""
    widths = {"num_attention_heads": 6, "num_key_value_heads": 3, "hidden_size": 48}
    arguments = given(2, **widths)
    for batch in arguments["batches"]:
        for name in batch:
            batch[name] = batch[name][:, :15].contiguous()
    agree(ranks, ["tp=3"], mbs=4, **arguments)
