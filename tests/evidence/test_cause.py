"""What a proof says of figures: the step's order, ranks that disagree, repeated heads, experts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from paceline.evidence.cause import first_difference
from paceline.evidence.parity import judge
from paceline.evidence.parity_text import belonging
from paceline.plan.layout import Layout
from tests.evidence.test_parity import NAMES, SHAPE, block, fault, index, report, truth

NORM = NAMES[1]
KEYS = "layers.0.self_attn.k_proj.weight"


def with_weights(step: int, name: str, value: np.ndarray) -> dict[str, Any]:
    """A rank whose weight has this value after a step; its gradients are right."""
    found = report()
    right = truth()[name]
    kinds = found["kinds"]
    kinds[f"weights-{step}"] = [b for b in kinds[f"weights-{step}"] if b["name"] != f"model/{name}"]
    kinds[f"weights-{step}"].append(block(f"model/{name}", right, value))
    return found


def named(layout: str, reports: list[dict[str, Any]], needs: tuple[str, ...] = ()) -> Any:
    parsed = Layout.parse(layout)
    return first_difference(judge(index(), reports, parsed), parsed, needs)


def test_a_wrong_update_is_no_wrong_gradient() -> None:
    """Weights are wrong after step 1, so the gradients of step 2 are too: the update is what is named."""
    right = truth()
    reports = [with_weights(1, NORM, 0.9 * right[NORM]) for _ in range(2)]
    for each in reports:
        each["kinds"]["gradient-2"] = [block(n, a, 1.1 * a) for n, a in right.items()]
        each["losses"] = [5.0, 5.9, 5.8]
    first = named("fsdp=2", reports)
    assert first.headline == (
        f"value of {NORM}, after step 1 · every gradient so far is equal, so the update is not; ratio 0.900 everywhere"
    )
    assert (first.what, first.step, first.axis) == ("value", 1, "fsdp")


def test_what_weights_begin_with_is_named_before_everything_else() -> None:
    right = truth()
    first = named("tp=2", [with_weights(0, NORM, right[NORM] + 1.0), report()])
    assert (first.what, first.step) == ("initial value", 0)
    assert first.headline.startswith(f"initial value of {NORM} · wrong on rank 0 (tp=0)")


def test_a_wrong_norm_comes_before_the_weights_that_it_clips() -> None:
    reports = [with_weights(2, NORM, 2 * truth()[NORM]) | {"norms": [2.0, 2.5, 2.2]} for _ in range(2)]
    first = named("dp=2", reports)
    assert (first.what, first.step) == ("gradient norm (clipping)", 2)


def test_a_replica_that_drifts_by_little_is_named_with_its_rank() -> None:
    right = truth()[NORM]
    first = named("dp=2,tp=2", [report(), report(), report(), with_weights(1, NORM, right * (1 + 1e-7))])
    assert first.text.endswith("ratio 1+1.0e-07 on rank 3 (dp=1, tp=1)")


def test_a_rank_is_named_once() -> None:
    odd = truth()[NORM].copy()
    odd[2, 1] += 1.0
    first = fault("tp=2", [{}, {NORM: odd}])
    assert first.text.startswith("wrong on rank 1 (tp=1), right on the others")
    assert first.axis == "tp"


def test_replicas_that_are_all_wrong_and_disagree_are_named() -> None:
    right = truth()[NORM]
    noise = np.random.default_rng(7).normal(size=(2, *SHAPE))
    first = fault("dp=2,tp=2", [{NORM: right + noise[n // 2]} for n in range(4)])
    assert first.text.startswith("replicas disagree, error ")
    assert "on rank 0 (dp=0, tp=0), " in first.text
    assert first.text.endswith("on rank 2 (dp=1, tp=0)")
    assert first.axis == "dp"


def test_a_number_that_one_rank_has_wrong_names_it() -> None:
    first = named("dp=2", [report(), report(losses=[5.0, 4.9, 4.7])])
    assert first.what == "loss"
    assert "on rank 1 (dp=1), right on the others" in first.text
    both = named("dp=2", [report(losses=[5.0, 4.9, 4.7])] * 2)
    assert "rank" not in both.text


def keys_of(ranks: int, heads: int) -> list[dict[str, Any]]:
    """Ranks of which several hold one key head, each with its own part of that head's gradient."""
    rng, rows = np.random.default_rng(3), SHAPE[0] // heads
    right, part = rng.normal(size=SHAPE), rng.normal(size=SHAPE)
    found = []
    for rank in range(ranks):
        each, start = report(), rank * heads // ranks * rows
        last = (rank + 1) % (ranks // heads) == 0
        here = slice(start, start + rows)
        mine = right[here] - (ranks // heads - 1) * part[here] if last else part[here]
        for number in (1, 2, 3):
            each["kinds"][f"gradient-{number}"].append(block(KEYS, right[here], mine, start))
        found.append(each)
    return found


@pytest.mark.parametrize(
    ("layout", "heads", "sum_", "who"),
    [
        ("tp=4", 2, "a sum over tp (2 of 4 ranks) is missing", "over 2 tp ranks (ranks 0, 1 and 2, 3)"),
        ("tp=4", 1, "a sum over tp (4 ranks) is missing", "over 4 tp ranks (ranks 0, 1, 2, 3)"),
    ],
)
def test_the_sum_of_a_repeated_head_is_named(layout: str, heads: int, sum_: str, who: str) -> None:
    known = index()
    for number in (1, 2, 3):
        known["shapes"][f"gradient-{number}"][KEYS] = list(SHAPE)
    parsed = Layout.parse(layout)
    first = first_difference(judge(known, keys_of(4, heads), parsed), parsed, ("tp",))
    assert first is not None
    assert (first.name, first.axis) == (KEYS, "tp")
    assert first.text == f"each rank has a part of the sum: {sum_}; a key/value head is repeated {who}"


@pytest.mark.parametrize(
    ("layout", "needs", "axis"),
    [
        ("dp=2,ep=2", ("dp", "ep"), "ep"),
        ("fsdp=4,ep=2", ("fsdp", "ep"), "ep"),
        ("dp=2,tp=2,ep=2", ("tp", "ep"), "ep"),
        ("pp=2,dp=2,ep=2", ("pp", "dp", "ep"), ""),
    ],
)
def test_a_fault_of_experts_belongs_to_ep_and_not_to_the_ranks_that_ep_lies_on(
    layout: str, needs: tuple[str, ...], axis: str
) -> None:
    ranks = Layout.parse(layout).world_size
    noise = np.random.default_rng(1).normal(size=SHAPE)
    first = fault(layout, [{NORM: truth()[NORM] + noise}] * ranks, needs)
    assert first.axis == axis
    assert not axis or "axis ep (deliver/ep.py)" in belonging(first)
