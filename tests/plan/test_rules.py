"""Every rule of the book refuses something, with a repair that keeps the whole book."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.ledger.outcome import Exit, Refused
from paceline.plan.layout import Layout
from paceline.plan.rules import RULES, Facts, Rule, check, first_broken, repair
from tests.plan.test_layout import layouts
from tests.plan.test_model import LLAMA_8B, Shape

FACTS = Facts(widths=LLAMA_8B, global_batch=64, devices=16, hosts=2, sequence_length=2048)
SHARED = Facts(widths=LLAMA_8B, global_batch=3, cpu=True, sequence_length=96, compiler=False)
HOST = Facts(widths=LLAMA_8B, global_batch=64, devices=8, sequence_length=2048)
CPU = Facts(widths=LLAMA_8B, global_batch=64, devices=2, cpu=True, sequence_length=2048, compiler=False)
MOE = Facts(
    widths=Shape(num_experts=6, num_experts_per_tok=2, moe_intermediate_size=64),
    global_batch=8,
    devices=8,
    sequence_length=64,
)
THIN = replace(HOST, widths=replace(LLAMA_8B, vocab_size=1))
SHORT = Facts(widths=LLAMA_8B, global_batch=64, devices=8, sequence_length=36)

BROKEN = [  # layout, rule, exit, words of the message, the nearest, facts
    (
        "pp=4:zbv,fsdp=2:zero3",
        "split backward needs kept weights",
        10,
        "wrong gradients",
        "fsdp=2:zero2,pp=4:zbv",
        HOST,
    ),
    ("pp=2:zbv,vpp=4", "vpp belongs to its schedule", 10, "vpp=4 with zbv", "pp=2:zbv", HOST),
    ("pp=2,vpp=2", "vpp belongs to its schedule", 10, "vpp=2 with 1f1b", "pp=2", HOST),
    ("fsdp=2,vpp=3", "vpp belongs to its schedule", 10, "vpp=3 without pp", "fsdp=2", HOST),
    ("tp=3", "tp divides the heads", 10, "tp=3 cannot cut this model", "tp=2", HOST),
    ("tp=2", "a cut has a part for each rank", 10, "tp=2 cannot cut vocab_size = 1", "single", THIN),
    ("pp=64", "a stage has a layer", 10, "64 stages for 32 layers", "pp=8", HOST),
    ("cp=2:ring", "ring needs cuda", 10, "cp=2:ring on a CPU", "cp=2", CPU),
    (
        "tp=2,cp=3:ulysses",
        "ulysses shares heads",
        10,
        "cannot share 16 query heads",
        "tp=2,cp=2:ulysses",
        HOST,
    ),
    ("tp=2,cp=4", "ranks have equal tokens", 10, "tp=2,cp=4 cannot cut a row of 36", "tp=2,cp=3", SHORT),
    (
        "cp=2",
        "ranks have equal tokens",
        10,
        "cp=2 cannot cut a row of 2049",
        "single",
        replace(HOST, sequence_length=2049),
    ),
    ("fsdp=4,ep=2", "ep needs experts", 10, "ep=2 without experts", "fsdp=4", HOST),
    ("fsdp=4,ep=4", "ep divides the experts", 10, "ep=4 does not divide 6 experts", "fsdp=4,ep=2", MOE),
    ("fsdp=4,ep=3", "experts divide the ranks", 10, "does not divide 4 ranks", "fsdp=4,ep=2", MOE),
    ("cp=2:ring", "ring absent", 2, "cp=2:ring is not in this version", "cp=2", HOST),
    ("single,offload=all", "offload absent", 2, "offload=all is not in this version", "single", HOST),
    ("dp=2,compile=on", "compile needs a compiler", 10, "without a C++ compiler", "dp=2", CPU),
    ("fsdp=12", "a rank has a device", 10, "12 ranks for 8 devices", "fsdp=8", HOST),
    ("fsdp=4,tp=4", "a rank has a device", 10, "16 ranks for 8 devices", "fsdp=2,tp=4", HOST),
    ("fsdp=12", "hosts are filled", 10, "half filled", "fsdp=8", FACTS),
    (
        "fsdp=16",
        "raw data stays in its place",
        10,
        "it may not leave clinic-7",
        "fsdp=8",
        replace(FACTS, residency="clinic-7"),
    ),
    ("fsdp=6,tp=2", "hosts are filled", 10, "half filled", "fsdp=4,tp=2", FACTS),
    (
        "dp=8",
        "a data rank has a row",
        10,
        "8 data ranks for 4 sequences a step",
        "dp=4",
        replace(HOST, global_batch=4),
    ),
    ("fsdp=8,mbs=9", "mbs fits the rank's rows", 10, "mbs=9 is more than a rank's 8", "fsdp=8,mbs=8", HOST),
    (
        "pp=4,mbs=32",
        "a schedule takes its micro-batches",
        10,
        "pp=4:1f1b cannot run 2 micro-batches",
        "pp=4,mbs=16",
        HOST,
    ),
    (
        "pp=4,mbs=1",
        "a schedule takes its micro-batches",
        10,
        "cannot run 3 micro-batches",
        "pp=4:gpipe,mbs=1",
        replace(HOST, global_batch=3),
    ),
]


@pytest.mark.parametrize(("text", "name", "code", "message", "use", "facts"), BROKEN)
def test_each_rule_refuses_with_the_nearest(
    text: str, name: str, code: int, message: str, use: str, facts: Facts
) -> None:
    layout = Layout.parse(text)
    broken = first_broken(layout, facts)
    assert broken is not None
    assert broken[0].name == name
    with pytest.raises(Refused) as caught:
        check(layout, facts, where="--layout")
    assert first_broken(Layout.parse(use), facts) is None
    assert caught.value.exit_code == code
    assert message in caught.value.message
    assert caught.value.rule == broken[0].text
    assert caught.value.use == f"--layout {use}"
    assert caught.value.where == "--layout"


def test_every_rule_has_a_case() -> None:
    assert {rule.name for rule in RULES} == {name for _, name, *_ in BROKEN}


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_every_rule_says_what_is_allowed_without_failing(rule: Rule) -> None:
    for text, name, _, _, _, facts in BROKEN:
        if name == rule.name:
            assert isinstance(rule.allowed(Layout.parse(text), facts), str)


def test_allowed_degrees_are_named() -> None:
    def allowed(text: str, facts: Facts) -> str:
        with pytest.raises(Refused) as caught:
            check(Layout.parse(text), facts)
        return caught.value.allowed

    assert allowed("fsdp=4,ep=4", MOE) == "ep = 1, 2"
    assert allowed("cp=2", replace(HOST, sequence_length=2049)).startswith(
        "data.sequence_length in multiples of 4"
    )
    assert allowed("cp=8:ulysses,tp=8", HOST) == "cp = 1, 2, 4"
    assert "4, 5, 6" in allowed("pp=4,mbs=32", HOST)
    few_keys = replace(HOST, widths=Shape(num_attention_heads=12, num_key_value_heads=4))
    assert allowed("tp=6", few_keys) == "tp = 1, 2, 4, 12"  # 6 ranks share neither 4 keys nor their multiple


@pytest.mark.drill(51)
def test_the_error_of_tp_is_the_one_of_the_interface() -> None:
    with pytest.raises(Refused) as caught:
        check(Layout.parse("tp=3"), HOST)
    error = caught.value
    assert "32 attention heads, 8 key/value heads" in error.seen
    assert error.allowed == "tp = 1, 2, 4, 8, 16, 32"
    assert error.exit_code == Exit.RULE


def test_what_runs_is_accepted() -> None:
    for text in (
        "single",
        "dp=2",
        "fsdp=8:zero1,mbs=4",
        "dp=2,fsdp=4",
        "auto",
        "auto,mbs=2",
        "fsdp=auto",
        "fsdp=3",
        "tp=2,pp=2,fsdp=2:zero2",
        "tp=8",
        "pp=4:interleaved,vpp=4,mbs=1,recompute=selective",
        "fsdp=2:zero2,pp=4:zbv,mbs=1",
        "cp=4:ulysses",
        "dp=2,fsdp=2,tp=2,compile=on",
        "auto,recompute=full",
    ):
        check(Layout.parse(text), HOST)


INTERFACE = [  # interface §4, with facts that fit: the good ones, and the exit code of what is to come
    ("single", 0), ("dp=2", 0), ("fsdp=8:zero2,mbs=4", 0), ("dp=4,fsdp=8,tp=2", 0), ("fsdp=auto,tp=8", 0),
    ("tp=8,pp=4:interleaved,vpp=4,mbs=1,recompute=selective", 0),
    ("fsdp=8:zero2,pp=8:dualpipev,ep=8", 0), ("single,offload=optimizer,recompute=full", 2),
    ("auto,recompute=full", 0), ("tp=3", 10), ("pp=4:zbv,fsdp=2:zero3", 10), ("pp=2:zbv,vpp=4", 10),
]  # fmt: skip


@pytest.mark.parametrize(("text", "code"), INTERFACE)
def test_the_examples_of_the_interface(text: str, code: int) -> None:
    experts = {"num_experts": 64, "num_experts_per_tok": 4, "moe_intermediate_size": 256}
    widths = replace(LLAMA_8B, **experts if "ep=" in text else {})
    facts = Facts(widths=widths, global_batch=64, devices=64, hosts=8, sequence_length=2048)
    if not code:
        check(Layout.parse(text), facts)
        return
    with pytest.raises(Refused) as caught:
        check(Layout.parse(text), facts)
    assert caught.value.exit_code == code
    check(Layout.parse(caught.value.use.removeprefix("--layout ")), facts)


def test_processes_of_a_cpu_have_no_upper_limit() -> None:
    check(Layout.parse("fsdp=4"), Facts(global_batch=64, devices=2, cpu=True))


@settings(deadline=None, max_examples=200)
@given(layouts(), st.sampled_from([FACTS, MOE, SHARED, CPU]))
def test_the_repair_keeps_the_whole_book(layout: Layout, facts: Facts) -> None:
    near = repair(layout, facts)
    assert first_broken(near, facts) is None
    if first_broken(layout, facts) is None:
        assert near == layout


@settings(deadline=None, max_examples=300)
@given(layouts(), st.sampled_from([FACTS, HOST, Facts(), SHARED, MOE]), st.booleans())
def test_every_repair_parses_and_keeps_the_rule(layout: Layout, facts: Facts, auto: bool) -> None:
    if auto:
        layout = Layout(auto=True, mbs=layout.mbs, recompute=layout.recompute, compile=layout.compile)
    try:
        check(layout, facts)
    except Refused as refused:
        near = Layout.parse(refused.use.removeprefix("--layout "))
        check(near, facts)
        assert near.auto == auto or not auto


def test_the_degrees_of_ep_that_are_allowed_are_those_beside_this_etp() -> None:
    from paceline.job.presets import find_preset
    from paceline.job.widths import widths_of

    facts = Facts(widths=widths_of(find_preset("tiny-moe").widths, 512), global_batch=8)
    with pytest.raises(Refused) as caught:
        check(Layout.parse("dp=2,tp=2,ep=4,etp=2"), facts)
    assert caught.value.allowed == "ep = 1, 2"
    for degree in (1, 2):
        check(Layout.parse(f"dp=2,tp=2,ep={degree},etp=2"), facts)
