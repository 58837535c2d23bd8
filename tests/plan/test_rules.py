"""Every rule of the book refuses something, with a repair that keeps the whole book."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.ledger.outcome import Exit, Refused
from paceline.plan.layout import Layout
from paceline.plan.rules import RULES, Facts, check, first_broken, repair
from tests.plan.test_layout import layouts
from tests.plan.test_model import LLAMA_8B

FACTS = Facts(widths=LLAMA_8B, global_batch=64, devices=16, hosts=2)
SHARED = Facts(widths=LLAMA_8B, global_batch=3, cpu=True)
HOST = Facts(widths=LLAMA_8B, global_batch=64, devices=8)

BROKEN = [  # layout, rule, exit, words of the message, the nearest
    ("pp=4:zbv,fsdp=2:zero3", "split backward needs kept weights", 10, "wrong gradients", "fsdp=8:zero2"),
    ("pp=2:zbv,vpp=4", "vpp belongs to its schedule", 10, "vpp=4 with zbv", "fsdp=2"),
    ("pp=2,vpp=2", "vpp belongs to its schedule", 10, "vpp=2 with 1f1b", "fsdp=2"),
    ("tp=3", "tp divides the heads", 10, "tp=3 cannot cut this model", "fsdp=2"),
    ("pp=64", "a stage has a layer", 10, "64 stages for 32 layers", "fsdp=8"),
    ("tp=4,etp=2", "experts divide the ranks", 10, "does not divide", "fsdp=4"),
    ("tp=4", "tp absent", 2, "tp=4 is not in this version", "fsdp=4"),
    ("pp=2", "pp absent", 2, "pp=2 is not in this version", "fsdp=2"),
    ("fsdp=2,cp=2", "cp absent", 2, "cp=2 is not in this version", "fsdp=4"),
    ("fsdp=4,ep=2", "ep absent", 2, "ep=2 is not in this version", "fsdp=4"),
    ("fsdp=2,vpp=3", "vpp absent", 2, "vpp=3 is not in this version", "fsdp=2"),
    ("fsdp=2,recompute=full", "recompute absent", 2, "recompute=full is not in this version", "fsdp=2"),
    ("single,offload=all", "offload absent", 2, "offload=all is not in this version", "single"),
    ("dp=2,compile=on", "compile absent", 2, "compile=on is not in this version", "dp=2"),
    ("fsdp=12", "a rank has a device", 10, "12 ranks for 8 devices", "fsdp=8"),
    ("fsdp=8,mbs=9", "mbs fits the rank's rows", 10, "mbs=9 is more than a rank's 8", "fsdp=8,mbs=8"),
]


@pytest.mark.parametrize(("text", "name", "code", "message", "use"), BROKEN)
def test_each_rule_refuses_with_the_nearest(text: str, name: str, code: int, message: str, use: str) -> None:
    layout = Layout.parse(text)
    broken = first_broken(layout, HOST)
    assert broken is not None
    assert broken[0].name == name
    with pytest.raises(Refused) as caught:
        check(layout, HOST, where="--layout")
    assert caught.value.exit_code == code
    assert message in caught.value.message
    assert caught.value.rule == broken[0].text
    assert caught.value.use == f"--layout {use}"
    assert caught.value.where == "--layout"


def test_rules_of_several_hosts_and_of_the_batch() -> None:
    with pytest.raises(Refused) as caught:
        check(Layout.parse("fsdp=12"), FACTS)
    assert "half filled" in caught.value.message
    assert caught.value.use == "--layout fsdp=8"
    with pytest.raises(Refused) as caught:
        check(Layout.parse("dp=8"), Facts(global_batch=4, devices=8))
    assert caught.value.message == "8 data ranks for 4 sequences a step"


def test_every_rule_has_a_case() -> None:
    told = {name for _, name, *_ in BROKEN} | {"hosts are filled", "a data rank has a row", "etp absent"}
    assert {rule.name for rule in RULES} == told


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
    ):
        check(Layout.parse(text), HOST)


def test_processes_of_a_cpu_have_no_upper_limit() -> None:
    check(Layout.parse("fsdp=4"), Facts(global_batch=64, devices=2, cpu=True))


@settings(deadline=None, max_examples=200)
@given(layouts())
def test_the_repair_keeps_the_whole_book(layout: Layout) -> None:
    near = repair(layout, FACTS)
    assert first_broken(near, FACTS) is None
    if first_broken(layout, FACTS) is None:
        assert near == layout


@settings(max_examples=300)
@given(layouts(), st.sampled_from([FACTS, HOST, Facts(), SHARED]), st.booleans())
def test_every_repair_parses_and_keeps_the_rule(layout: Layout, facts: Facts, auto: bool) -> None:
    if auto:
        layout = Layout(auto=True, mbs=layout.mbs, recompute=layout.recompute, compile=layout.compile)
    try:
        check(layout, facts)
    except Refused as refused:
        near = Layout.parse(refused.use.removeprefix("--layout "))
        check(near, facts)
        assert near.auto == auto or not auto
