"""Verdict and naming from figures alone: made-up reports of ranks, with the fault known."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from paceline.evidence.cause import first_difference
from paceline.evidence.explain import explain
from paceline.evidence.parity import LIMIT, Found, covers, judge, judge_own, relative
from paceline.evidence.parity_text import headline, line, power, table, verdict
from paceline.evidence.rounding import message_rounding
from paceline.plan.layout import Layout

NAMES = (
    "embed_tokens.weight",
    "layers.0.input_layernorm.weight",
    "layers.0.mlp.up_proj.weight",
    "lm_head.weight",
)
SHAPE = (8, 4)
DIRECTIONS = np.random.default_rng(1).normal(size=(3, *SHAPE))


def truth() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {name: rng.normal(size=SHAPE) for name in NAMES}


def index(steps: int = 3) -> dict[str, Any]:
    shapes = {f"gradient-{n}": {name: list(SHAPE) for name in NAMES} for n in range(1, steps + 1)}
    shapes |= {f"weights-{n}": {f"model/{name}": list(SHAPE) for name in NAMES} for n in range(steps + 1)}
    shapes["state"] = {}
    return {"losses": [5.0, 4.9, 4.8], "norms": [2.0, 2.1, 2.2], "held_out": 5.1, "shapes": shapes}


def block(name: str, ours: np.ndarray, theirs: np.ndarray, start: int = 0) -> dict[str, Any]:
    """What ``recipes/against.compared`` says of rows ``start`` … of a tensor."""
    rows = slice(start, start + ours.shape[0])
    away = np.abs(ours - theirs)
    scale = float(np.abs(ours).max())
    factor = float((ours * theirs).sum() / (ours * ours).sum())
    wrong = np.argwhere(away > 1e-12)
    found = {
        "name": name, "starts": [start, 0], "shape": list(ours.shape), "bad": 0, "of": ours.size,
        "error": float(away.max()) / scale, "factor": factor,
        "rest": float(np.abs(theirs - factor * ours).max()) / scale,
        "ours": [float((d[rows] * ours).sum()) for d in DIRECTIONS],
        "theirs": [float((d[rows] * theirs).sum()) for d in DIRECTIONS],
    }  # fmt: skip
    if len(wrong):
        low, high = wrong.min(0) + [start, 0], wrong.max(0) + 1 + [start, 0]
        found |= {"wrong": len(wrong), "low": low.tolist(), "high": high.tolist()}
    return found


def report(changed: dict[str, np.ndarray] | None = None, **other: Any) -> dict[str, Any]:
    """A rank that holds everything; ``changed`` tensors differ at step 2."""
    right = truth()
    kinds = {f"gradient-{n}": [block(name, a, a) for name, a in right.items()] for n in (1, 2, 3)}
    kinds["gradient-2"] = [block(n, a, (changed or {}).get(n, a)) for n, a in right.items()]
    kinds |= {f"weights-{n}": [block(f"model/{name}", a, a) for name, a in right.items()] for n in range(4)}
    return {
        "losses": [5.0, 4.9, 4.8],
        "norms": [2.0, 2.1, 2.2],
        "held_out": 5.1,
        "finite": True,
        "kinds": kinds,
    } | other


def fault(layout: str, by_rank: list[dict[str, np.ndarray]], needs: tuple[str, ...] = ()) -> Any:
    parsed = Layout.parse(layout)
    return first_difference(judge(index(), [report(c) for c in by_rank], parsed), parsed, needs)


def test_equal_is_proven() -> None:
    judged = judge(index(), [report(), report()], Layout.parse("dp=2"))
    assert judged.equal
    assert first_difference(judged, Layout.parse("dp=2")) is None
    assert [row.of for row in judged.rows] == [1, 4, 1, 0, 4, 1]


def test_a_factor_of_one_over_the_degree_is_a_missing_sum() -> None:
    name, right = NAMES[1], truth()[NAMES[1]]
    first = fault("tp=2", [{name: right / 2}] * 2)
    assert (first.name, first.step, first.axis) == (name, 2, "tp")
    assert first.text.startswith("ratio 0.500 everywhere: a sum over tp (2 ranks) is missing")


def test_twice_the_gradient_is_summed_twice() -> None:
    name, right = NAMES[2], truth()[NAMES[2]]
    first = fault("dp=3", [{name: 3 * right}] * 3)
    assert "ratio 3.000 everywhere: summed once too often over dp (3 ranks)" in first.text


def test_partial_sums_that_add_up_name_their_axis() -> None:
    """dp=2, tp=2: the ranks of a tp group hold parts of the sum, which differ and are no fixed share of it."""
    name, right = NAMES[1], truth()[NAMES[1]]
    part = np.random.default_rng(5).normal(size=SHAPE)
    first = fault("dp=2,tp=2", [{name: part}, {name: right - part}] * 2)
    assert first.axis == "tp"
    assert first.text == "each rank has a part of the sum: a sum over tp (2 ranks) is missing"
    first = fault("dp=2,tp=2", [{name: part}, {name: part}, {name: right - part}, {name: right - part}])
    assert first.axis == "dp"


def test_wrong_ranks_of_one_coordinate_name_their_axis() -> None:
    name, right = NAMES[3], truth()[NAMES[3]]
    odd = right.copy()
    odd[5, 2] += 1.0
    first = fault("dp=2,pp=2", [{}, {}, {name: odd}, {name: odd}])
    assert first.axis == "pp"
    assert "wrong on ranks 2, 3 (pp=1), right on the others" in first.text
    assert "1 of 32 values, elements 5–5 of dim 0, 2–2 of dim 1" in first.text


def test_one_replica_alone_is_named() -> None:
    name, right = NAMES[0], truth()[NAMES[0]]
    odd = right + np.random.default_rng(3).normal(size=SHAPE)
    first = fault("dp=2,fsdp=2", [{}, {}, {}, {name: odd}])
    assert "wrong on rank 3 (dp=1, fsdp=1)" in first.text


def test_the_first_of_several_is_nearest_to_the_head() -> None:
    """The backward makes the head's gradient first: what is wrong there spoils what comes after."""
    right = truth()
    first = fault("dp=2", [{NAMES[0]: 1.3 * right[NAMES[0]], NAMES[2]: 1.3 * right[NAMES[2]]}] * 2)
    assert first.name == NAMES[2]


def test_an_ambiguous_degree_is_settled_by_what_the_failure_needs() -> None:
    name, right = NAMES[1], truth()[NAMES[1]]
    ranks = [{name: right / 2}] * 4
    assert fault("dp=2,tp=2", ranks, needs=("tp",)).axis == "tp"
    assert fault("dp=2,tp=2", ranks, needs=("dp",)).axis == "dp"
    both = fault("dp=2,pp=2", ranks, needs=("pp", "dp"))
    assert both.together == ("pp=2", "dp=2")


def test_a_value_that_is_not_finite_is_never_equal() -> None:
    bad = report()
    bad["kinds"]["gradient-1"][2] |= {"error": math.inf, "bad": 3}
    first = first_difference(judge(index(), [report(), bad], Layout.parse("dp=2")), Layout.parse("dp=2"))
    assert first is not None
    assert first.step == 1
    assert "3 of 32 values are not finite on rank 1 (dp=1)" in first.text
    judged = judge(index(), [report(losses=[5.0, math.nan, 4.8])], Layout())
    assert not judged.rows[0].equal


def test_a_tensor_that_is_nowhere_and_one_that_nobody_knows() -> None:
    lost = report()
    lost["kinds"]["gradient-1"] = [b for b in lost["kinds"]["gradient-1"] if b["name"] != NAMES[2]]
    first = first_difference(judge(index(), [lost, lost], Layout.parse("dp=2")), Layout.parse("dp=2"))
    assert first is not None
    assert (first.name, first.text) == (NAMES[2], "no rank holds it")
    more = report()
    more["kinds"]["gradient-1"].append(
        {"name": "extra", "starts": [0], "shape": [2], "error": math.inf, "unknown": True}
    )
    judged = judge(index(), [more], Layout())
    assert [f.name for f in judged.differing] == ["extra"]
    assert explain(judged.differing[0], judged.reports, Layout())[0] == "one device has no such tensor"


def test_a_run_that_stopped_early_is_not_equal() -> None:
    short = report(losses=[5.0], norms=[2.0], held_out=None)
    short["kinds"] = {"gradient-1": short["kinds"]["gradient-1"]}
    judged = judge(index(), [short], Layout())
    assert [row.equal for row in judged.rows] == [False] * 3 + [True] + [False] * 2


@pytest.mark.parametrize(
    ("blocks", "whole"),
    [
        ([((0, 0), (8, 4))], True),
        ([((0, 0), (4, 4)), ((4, 0), (4, 4))], True),
        ([((0, 0), (4, 4)), ((4, 0), (4, 4)), ((0, 0), (4, 4))], True),
        ([((0, 0), (4, 4))], False),
        ([((0, 0), (4, 4)), ((5, 0), (3, 4))], False),
        ([((0, 0), (5, 4)), ((4, 0), (4, 4))], True),
        ([((0, 0), (5, 4)), ((3, 0), (4, 4))], False),
        ([], False),
    ],
)
def test_cover(blocks: list[Any], whole: bool) -> None:
    assert covers(SHAPE, [{"starts": s, "shape": n} for s, n in blocks]) is whole


def test_the_own_leg_is_held_to_one_devices_error() -> None:
    right = truth()
    noise = {n: a * (1 + 1e-3) for n, a in right.items()}
    alone = [report(noise)]
    assert judge_own(index(), alone, [report({n: a * (1 + 1.9e-3) for n, a in right.items()})], "bf16").equal
    assert not judge_own(
        index(), alone, [report({n: a * (1 + 2.1e-3) for n, a in right.items()})], "bf16"
    ).equal
    assert not judge_own(
        index(), [report()], [report({NAMES[0]: right[NAMES[0]] * (1 + 2e-5)})], "fp32"
    ).equal


@pytest.mark.parametrize(
    ("layout", "precision", "reduced", "units"),
    [
        ("tp=2", "bf16", "fp32", 2),
        ("cp=2", "bf16", "fp32", 2),
        ("fsdp=2,ep=2", "bf16", "fp32", 2),
        ("dp=2", "bf16", "fp32", 0),
        ("pp=2", "bf16", "fp32", 0),
        ("tp=2", "fp32", "fp32", 0),
        ("fsdp=2", "fp32", "bf16", 2),
        ("tp=2", "fp32", "bf16", 0),
    ],
)
def test_messages_that_carry_parts_of_a_sum_may_round_them(
    layout: str, precision: str, reduced: str, units: int
) -> None:
    assert message_rounding(Layout.parse(layout), precision, reduced) == units * 2.0**-8


def test_the_rounding_of_messages_is_beside_one_devices_error_and_no_more() -> None:
    right, alone = truth(), [report()]
    for error, equal in ((7e-3, True), (9e-3, False)):
        found = [report({n: a * (1 + error) for n, a in right.items()})]
        assert judge_own(index(), alone, found, "bf16", 2.0**-7).equal is equal


def test_relative() -> None:
    assert relative(2.0, 2.0) == 0.0
    assert relative(2.0, 1.0) == 0.5
    assert relative(0.0, 0.5) == 0.5
    assert relative(1.0, None) == relative(1.0, math.nan) == math.inf


def test_the_form_of_the_screen() -> None:
    """Interface §10, line by line."""
    layout = Layout.parse("fsdp=2,tp=2")
    assert headline("sft-8b", "layers 4 of 32", layout, 3, ("fp64",)).splitlines() == [
        "prove    sft-8b shrunk to layers 4 of 32 · your data · float64 · 3 steps",
        "         single (1 rank) against fsdp=2,tp=2 (4 ranks); fresh buffers filled with NaN",
    ]
    judged = judge(index(), [report()], Layout())
    assert table(judged.rows).splitlines()[0] == (
        " loss                       0.0e+00                                        limit 1e-9   equal"
    )
    name, right = NAMES[1], truth()[NAMES[1]]
    failed = judge(index(), [report({name: right / 2})] * 4, layout)
    assert line(failed.rows[1]) == (
        " gradients, 4 parameters    5.0e-01   layers.0.input_layernorm.weight      limit 1e-9   DIFFERS (1 of 4)"
    )
    first = first_difference(failed, layout, ("tp",))
    assert verdict(layout, False, first, 31.2, "runs/sft-8b-prove", 61).splitlines() == [
        "FAILED   first: gradient of layers.0.input_layernorm.weight, step 2 · ratio 0.500 everywhere: a sum over tp "
        "(2 ranks) is missing",
        "         belongs to axis tp (deliver/tp.py) · runs/sft-8b-prove/evidence/prove.json · exit 61",
    ]
    assert verdict(layout, True, None, 31.2, "runs/sft-8b-prove", 0) == (
        "PROVEN   fsdp=2,tp=2 trains the same model · 31 s · runs/sft-8b-prove"
    )


def test_limits_print_short() -> None:
    assert (power(1e-9), power(3.1e-5)) == ("1e-9", "3.1e-5")
    assert Found("x", "state", math.nan, LIMIT, 0, {}).differs
