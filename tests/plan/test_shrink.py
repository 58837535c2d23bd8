"""A job in small: every divisibility that a layout meets is as it was, and what changed is said."""

from __future__ import annotations

from dataclasses import replace
from math import gcd

import pytest

from paceline.job.presets import find_preset, presets
from paceline.job.widths import widths_of
from paceline.plan.layout import Layout
from paceline.plan.rules import Facts, first_broken
from paceline.plan.shrink import Small, runs, shrink, shrink_batch, smaller, thinned

LLAMA = widths_of(find_preset("llama-3.1-8b").widths, 128256)
LAYOUTS = (
    "single", "dp=2", "fsdp=3", "fsdp=2,tp=2", "fsdp=4,tp=4,mbs=2", "tp=8", "pp=4", "fsdp=2,pp=2,tp=2",
    "cp=2:ulysses,tp=2", "fsdp=2,tp=2,cp=2", "pp=4:interleaved",
)  # fmt: skip


def small(layout: str, widths=LLAMA, length: int = 8192, batch: int = 64) -> Small:
    return shrink(widths, [Layout.parse("single"), Layout.parse(layout)], length, batch)


def test_smaller_keeps_what_divides_and_what_does_not() -> None:
    assert smaller(4096, 64, [3, 4]) == 64, "3 divides neither"
    assert smaller(4096, 63, [4]) == 64
    assert smaller(4097, 64, [4]) == 65, "4 does not divide 4097, and must not begin to"
    assert smaller(96, 1, [3, 8]) == 24
    assert smaller(5, 8, [2]) == 5, "what is small already stays"
    assert smaller(64, 2, [8]) == 8, "a degree up to the size stays up to it"


@pytest.mark.parametrize("layout", LAYOUTS)
def test_divisibility_is_kept(layout: str) -> None:
    found, x = small(layout), Layout.parse(layout)
    w = found.widths
    for name in ("hidden_size", "intermediate_size", "vocab_size"):
        for degree in (x.tp, x.fsdp, x.tp * x.fsdp):
            assert (getattr(w, name) % degree == 0) == (getattr(LLAMA, name) % degree == 0), (name, degree)
    assert w.num_attention_heads // w.num_key_value_heads == 4
    assert w.num_attention_heads % (x.tp * x.cp) == 0
    assert gcd(w.num_key_value_heads, x.tp) == gcd(8, x.tp)
    assert w.num_hidden_layers >= x.stages
    assert found.sequence_length % (2 * x.cp * x.tp) == 0
    assert found.global_batch >= 3 * x.data_degree
    facts = Facts(widths=w, global_batch=found.global_batch, cpu=True)
    broken, was = first_broken(x, facts), first_broken(x, Facts(widths=LLAMA, global_batch=64, cpu=True))
    assert (broken and broken[0].name) == (was and was[0].name), "shrinking changes no rule's answer"


def test_it_is_small_and_says_so() -> None:
    found = small("fsdp=2,tp=2")
    w = found.widths
    assert w.num_hidden_layers == 4
    assert w.hidden_size == 64
    assert w.vocab_size < 600
    assert "layers 4 of 32" in found.said
    assert "vocabulary" in found.said
    assert "ids folded" in found.said
    assert "sequence 64 of 8192" in found.said


def test_a_small_job_stays_as_it_is() -> None:
    tiny = replace(
        LLAMA, vocab_size=257, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=8,
    )  # fmt: skip
    found = shrink(tiny, [Layout.parse("dp=2")], 32, 6)
    assert (found.widths, found.sequence_length, found.global_batch, found.said) == (tiny, 32, 6, "")


def test_a_ragged_batch_stays_ragged() -> None:
    assert small("dp=4,mbs=2", batch=67).global_batch % 8 != 0
    assert small("dp=4,mbs=2", batch=64).global_batch % 8 == 0


def test_every_kind_of_layer_is_kept() -> None:
    kinds = ("sliding_attention",) * 5 + ("full_attention",)
    assert set(thinned(kinds * 4, 4)) == set(kinds)
    assert len(thinned(kinds * 4, 4)) == 4


@pytest.mark.parametrize("name", [p.name for p in presets().values() if not p.arrives])
def test_every_preset_gets_small(name: str) -> None:
    """Experts, shared experts, latent attention, windows: whatever is there stays there."""
    whole = widths_of(find_preset(name).widths, 8192)
    w = shrink(whole, [Layout.parse("fsdp=2")], 128, 32).widths
    assert w.num_hidden_layers <= whole.num_hidden_layers
    for part in ("num_experts", "num_experts_per_tok", "n_shared_experts", "kv_lora_rank", "q_lora_rank"):
        assert bool(getattr(w, part)) == bool(getattr(whole, part)), part
    assert widths_of(w.to_dict(), w.vocab_size) == w, "the widths fit each other"


@pytest.mark.parametrize(
    ("layout", "batch"),
    [
        ("dp=2,pp=2:interleaved,mbs=1", 23),
        ("pp=2:interleaved", 9),
        ("pp=4:dualpipev,mbs=1", 37),
        ("pp=3", 50),
    ],
)
def test_a_batch_in_small_is_still_one_that_the_schedule_takes(layout: str, batch: int) -> None:
    wanted = Layout.parse(layout)
    assert runs(wanted, batch)
    assert runs(wanted, shrink_batch(batch, [wanted]))


def test_a_batch_that_no_micro_batch_makes_possible_is_known() -> None:
    assert not runs(Layout.parse("pp=4"), 3)
    assert runs(Layout.parse("pp=4:gpipe"), 3)
    assert runs(Layout.parse("dp=8"), 3)
