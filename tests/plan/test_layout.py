"""The layout prints and parses, refuses with the repair, and its ranks and slices cover everything once."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.ledger.outcome import Exit, Refused
from paceline.plan.grammar import KINDS, OPTIONS
from paceline.plan.layout import Layout, balanced, chunk

GOOD = [
    "single",
    "dp=2",
    "fsdp=8:zero2,mbs=4",
    "dp=4,fsdp=8,tp=2",
    "fsdp=auto,tp=8",
    "tp=8,pp=4:interleaved,mbs=1,vpp=4,recompute=selective",
    "fsdp=8:zero2,pp=8:dualpipev,ep=8",
    "single,recompute=full,offload=optimizer",
    "auto,recompute=full",
    "auto",
    "fsdp=2,cp=4:ring,compile=on",
]

BAD = [  # text, words of the error, the repair
    ("fsdp=4 tp=2", "`,`", "fsdp=4,tp=2"),
    ("fsdp=4  tp=2 , mbs=1", "`,`", "fsdp=4,tp=2,mbs=1"),
    ("fsdp=2,fsdp=4", "each key once", "fsdp=2"),
    ("fsdp=0", "from 1", "single"),
    ("fsdp=0,dp=2", "from 1", "dp=2"),
    ("fsdp=-1,mbs=2", "from 1", "single,mbs=2"),
    ("fsdp=2.5", "whole number", "single"),
    ("fsdp=99999999999", "1000000", "fsdp=1000000"),
    ("fsdp=Auto", "whole number", "fsdp=auto"),
    ("ddp=2", "dp replicates", "dp=2"),
    ("hsdp=2x4", "HSDP", "dp=2,fsdp=4"),
    ("hsdp=8", "HSDP", "dp=2,fsdp=4"),
    ("dp_replicate=2,dp_shard=4", "dp replicates", "dp=2,fsdp=4"),
    ("dp_shard=4", "fsdp shards", "fsdp=4"),
    ("dp_shard_size=4", "fsdp shards", "fsdp=4"),
    ("tensor_parallel_degree=8", "tp cuts", "tp=8"),
    ("zero=2", "stage follows", "fsdp=2:zero2"),
    ("tp=2,sp=2", "sequence parallel", "tp=2"),
    ("sp=2", "sequence parallel", "tp=2"),
    ("fspd=4", "axes and options", "fsdp=4"),
    ("FSDP=4", "axes and options", "fsdp=4"),
    ("fsdp4", "key=value", "fsdp=4"),
    ("Single", "lower case", "single"),
    ("fsdp", "key=value", "fsdp=2"),
    ("fsdp=4:zero4", ":zero3", "fsdp=4:zero3"),
    ("fsdp=4:2", ":zero3", "fsdp=4:zero2"),
    ("pp=4:1F1B", ":1f1b", "pp=4:1f1b"),
    ("dp=2:zero1", "kind follows", "dp=2"),
    ("recompute=ful,fsdp=2", "one of none selective full", "recompute=full,fsdp=2"),
    ("fsdp=2,compile=true", "off on", "fsdp=2,compile=on"),
    ("mbs=4", "starts with axes", "single,mbs=4"),
    ("single,dp=2", "one device", "dp=2"),
    ("auto,fsdp=2", "chooses every axis", "fsdp=2"),
    ("fsdp=auto,tp=auto", "at most one", "auto"),
    ("", "one device", "single"),
    ("fsdp=2,,mbs=1", "one `,`", "fsdp=2,mbs=1"),
    ("fsdp=2,gradient_accumulation_steps=4", "accumulation follows", "fsdp=2"),
    ("per_device_train_batch_size=4,dp=2", "micro-batch", "mbs=4,dp=2"),
    ("gradient_checkpointing,dp=2", "computed again", "recompute=full,dp=2"),
    ("banana=2", "axes and options", "single"),
]


@pytest.mark.parametrize("text", GOOD)
def test_good_layouts_print_as_written(text: str) -> None:
    assert str(Layout.parse(text)) == text


def test_any_order_blanks_and_degree_one_are_the_same_layout() -> None:
    assert str(Layout.parse(" mbs=4 , fsdp = 8 : zero2,dp=1,tp=1 ")) == "fsdp=8:zero2,mbs=4"
    assert Layout.parse("fsdp=1:zero1,pp=1:gpipe") == Layout.parse("single") == Layout()


def test_defaults_are_left_out_and_full_shows_them() -> None:
    layout = Layout.parse("fsdp=4:zero3,pp=2:interleaved,vpp=2,recompute=none")
    assert str(layout) == "fsdp=4,pp=2:interleaved"
    assert layout.full == "fsdp=4:zero3,pp=2:interleaved,vpp=2,recompute=none,offload=none,compile=off"
    assert Layout.parse(layout.full) == layout


@pytest.mark.parametrize(("text", "rule", "use"), BAD)
def test_mistakes_are_refused_with_the_repair(text: str, rule: str, use: str) -> None:
    with pytest.raises(Refused) as caught:
        Layout.parse(text, where="job.toml:3")
    error = caught.value
    assert error.exit_code == Exit.USAGE
    assert error.key == "layout.use"
    assert error.where == "job.toml:3"
    assert rule in error.rule
    assert error.use == f"--layout {use}"


def test_every_repair_leads_to_a_layout_that_parses() -> None:
    for text, _, _ in BAD:
        for _ in range(4):  # a text with several mistakes is repaired one at a time
            try:
                Layout.parse(text)
                break
            except Refused as error:
                text = error.use.removeprefix("--layout ")
        else:
            pytest.fail(f"{text} is never repaired")


def test_slug() -> None:
    assert Layout.parse("fsdp=4:zero2,pp=2:zbv").slug == "fsdp4.zero2-pp2.zbv"
    assert Layout.parse("single,offload=optimizer,mbs=2").slug == "single-mbs2-offload.optimizer"


def test_rank_order_is_tp_fastest_then_cp_fsdp_dp_pp() -> None:
    layout = Layout.parse("pp=2,dp=3,fsdp=2,cp=2,tp=4")
    place = {"pp": 1, "dp": 2, "fsdp": 1, "cp": 0, "tp": 3}
    assert layout.rank_of(place) == (((1 * 3 + 2) * 2 + 1) * 2 + 0) * 4 + 3
    assert Layout.parse("dp=2,fsdp=2").groups("fsdp") == [[0, 1], [2, 3]]
    assert Layout.parse("dp=2,fsdp=2").groups("dp") == [[0, 2], [1, 3]]
    assert [Layout.parse("dp=2,fsdp=2").data_rank(r) for r in range(4)] == [0, 1, 2, 3]


def test_experts_take_the_innermost_ranks() -> None:
    layout = Layout.parse("fsdp=4,tp=2,ep=4")
    assert [layout.coordinates(r)["ep"] for r in range(8)] == [0, 1, 2, 3, 0, 1, 2, 3]
    tied = Layout.parse("fsdp=4,tp=2,ep=2,etp=2")
    assert [(tied.coordinates(r)["ep"], tied.coordinates(r)["etp"]) for r in range(4)] == [
        (0, 0),
        (0, 1),
        (1, 0),
        (1, 1),
    ]


def test_open_layouts_have_no_world_until_resolved() -> None:
    layout = Layout.parse("fsdp=auto,tp=8")
    assert layout.open
    with pytest.raises(ValueError, match="open"):
        _ = layout.world_size
    assert str(layout.resolve(32)) == "fsdp=4,tp=8"
    with pytest.raises(Refused) as caught:
        layout.resolve(12)
    assert caught.value.exit_code == Exit.RULE
    assert str(Layout.parse("fsdp=auto").resolve(1)) == "single"


def test_stages_run_round_or_in_a_v() -> None:
    assert [Layout.parse("pp=2:interleaved").stage_rank(s) for s in range(4)] == [0, 1, 0, 1]
    assert [Layout.parse("pp=2:zbv").stage_rank(s) for s in range(4)] == [0, 1, 1, 0]


def test_rows_of_a_rank_cover_the_batch() -> None:
    assert Layout.parse("dp=3").data_rows(32) == 11
    assert Layout.parse("fsdp=4").data_rows(32) == 8


@given(st.integers(0, 200), st.integers(1, 17))
def test_cuts_cover_everything_once(size: int, parts: int) -> None:
    for cut in (balanced, chunk):
        assert [i for p in range(parts) for i in cut(size, parts, p)] == list(range(size))
    sizes = [len(balanced(size, parts, p)) for p in range(parts)]
    assert max(sizes) - min(sizes) <= 1
    assert sizes == sorted(sizes, reverse=True)


def test_chunk_is_what_torch_chunk_does() -> None:
    assert [list(chunk(5, 4, p)) for p in range(4)] == [[0, 1], [2, 3], [4], []]


DEGREE = st.one_of(st.just(1), st.integers(1, 9))


@st.composite
def layouts(draw: st.DrawFn) -> Layout:
    fields = {axis: draw(DEGREE) for axis in ("dp", "fsdp", "tp", "pp", "cp", "ep", "etp")}
    kinds = {"zero": "fsdp", "schedule": "pp", "cp_kind": "cp"}
    words = {field: draw(st.sampled_from(KINDS[axis])) for field, axis in kinds.items()}
    options = {name: draw(st.sampled_from(values)) for name, values in OPTIONS.items() if values}
    numbers = {"mbs": draw(st.one_of(st.none(), st.integers(1, 64))), "vpp": draw(st.integers(0, 8))}
    return Layout(**fields, **words, **options, **numbers)


@settings(deadline=None)
@given(layouts(), st.randoms())
def test_print_and_parse_are_a_fixed_point(layout: Layout, random) -> None:  # type: ignore[no-untyped-def]
    assert Layout.parse(str(layout)) == layout
    assert Layout.parse(layout.full) == layout
    items = str(layout).split(",")
    random.shuffle(items)
    assert str(Layout.parse(" , ".join(items))) == str(layout)
    assert layout.slug.replace(".", "").replace("-", "").isalnum()


@settings(deadline=None, max_examples=40)
@given(st.tuples(*[st.integers(1, 3)] * 5))
def test_coordinates_and_ranks_are_inverse(degrees: tuple[int, ...]) -> None:
    layout = Layout(**dict(zip(("dp", "fsdp", "tp", "pp", "cp"), degrees, strict=True)))
    ranks = [layout.rank_of(layout.coordinates(rank)) for rank in range(layout.world_size)]
    assert ranks == list(range(layout.world_size))
    for axis in ("dp", "fsdp", "tp", "pp", "cp"):
        groups = layout.groups(axis)
        assert sorted(r for g in groups for r in g) == ranks
        assert {len(g) for g in groups} == {layout.degree(axis)}


@settings(deadline=None)
@given(st.text(alphabet="dpfsautoxz=:,01 48rngle\t", max_size=30))
def test_any_text_parses_or_is_refused(text: str) -> None:
    seen: Refused | None = None
    try:
        layout = Layout.parse(text)
        assert Layout.parse(str(layout)) == layout
    except Refused as error:
        seen = error
    assert seen is None or (seen.exit_code == Exit.USAGE and seen.use.startswith("--layout "))


ITEMS = st.sampled_from(
    ["single", "auto", "Single", "dp=2", "dp=0", "fsdp=0", "fsdp=2:zero9", "fsdp=auto", "tp=auto"]
    + ["mbs=0", "mbs=-3", "mbs"]
    + [
        "dp2",
        "ddp=2",
        "hsdp=8",
        "zero=3",
        "sp=1",
        "world_size=4",
        "compile=yes",
        "recompute=",
        "vpp=x",
        "=",
        "a b",
    ]
    + [
        "fsdp=4 tp=2",
        "",
        " ",
        "pp=2:zbw",
        "dp=2:x",
        "gradient_checkpointing=true",
        "mbs=99999999999",
        "ep=0",
        "\x00",
    ]
)


@settings(deadline=None, max_examples=400)
@given(st.lists(ITEMS, max_size=6).map(",".join) | st.text(max_size=12))
def test_every_repair_is_itself_a_layout(text: str) -> None:
    with contextlib.suppress(Refused):
        Layout.parse(text)
        return
    with pytest.raises(Refused) as caught:
        Layout.parse(text)
    assert caught.value.exit_code == Exit.USAGE
    Layout.parse(caught.value.use.removeprefix("--layout "))


@pytest.mark.parametrize(
    ("text", "use"),
    [
        ("single,mbs=0", "single,mbs=1"),
        ("auto,mbs=0", "auto,mbs=1"),
        ("fsdp=0,single", "single"),
        ("ddp=0,mbs=0,zero=9", "mbs=1,fsdp=9"),
    ],
)
def test_a_repair_mends_every_mistake(text: str, use: str) -> None:
    with pytest.raises(Refused) as caught:
        Layout.parse(text)
    assert caught.value.use == f"--layout {use}"
