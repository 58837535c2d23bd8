"""Every data layout trains the model that one device trains: float64, 1e-9 (issue: ten steps, kinds GA TW TIE CLIP).

Relative errors have the floor of DESIGN §4: a difference counts against the tensor's own norm, or 1e-4 of the
model's largest gradient where the tensor's is smaller (a key bias has gradient zero in mathematics).
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from paceline.plan.layout import Layout
from tests.pool import RankPool
from tests.recipes.parity_cases import train_steps
from tests.tiny import tiny_job, tiny_widths

LIMIT = 1e-9
CASE = "tests.recipes.parity_cases:train_steps"
LAYOUTS = (
    "dp=2", "dp=3", "dp=4", "fsdp=2", "fsdp=2:zero2", "fsdp=2:zero1", "fsdp=3", "fsdp=4", "fsdp=4:zero1",
    "dp=2,fsdp=2", "dp=2,fsdp=2:zero2", "dp=2,fsdp=2:zero1",
)  # fmt: skip
# pairs of features meet in each row; rows are dealt so that a rank accumulates as often as it says
FEATURES = (
    {"rows": 8, "accumulate": 1, "documents": False, "tied": False, "bias": True},
    {"rows": 12, "accumulate": 3, "documents": True, "tied": True, "bias": False},
)


def reference(features: dict[str, Any], rows: int) -> dict[str, Any]:
    return train_steps(None, **_arguments(features, "single", mbs=rows, rows=rows))


def _arguments(features: dict[str, Any], layout: str, mbs: int, rows: int) -> dict[str, Any]:
    return {
        "job": tiny_job(),
        "widths": tiny_widths(tie_word_embeddings=features["tied"], attention_bias=features["bias"]),
        "layout": layout,
        "documents": features["documents"],
        "mbs": mbs,
        "rows": rows,
    }


def assert_same_training(found: dict[str, Any], expected: dict[str, Any]) -> None:
    largest = max(float(g.norm()) for g in expected["first"].values())
    for what in ("first", "weights"):
        for name, tensor in expected[what].items():
            floor = 1e-4 * largest if what == "first" else 1e-4
            error = float((found[what][name] - tensor).norm()) / max(float(tensor.norm()), floor)
            assert error <= LIMIT, f"{what} of {name}: {error:.1e}"
    assert torch.allclose(torch.tensor(found["losses"]), torch.tensor(expected["losses"]), rtol=LIMIT, atol=0)
    assert torch.allclose(torch.tensor(found["norms"]), torch.tensor(expected["norms"]), rtol=LIMIT, atol=0)


@pytest.fixture(scope="module", params=range(len(FEATURES)), ids=["one-micro-batch", "accumulated"])
def case(request: pytest.FixtureRequest) -> tuple[dict[str, Any], dict[str, Any]]:
    features = FEATURES[request.param]
    return features, reference(features, features["rows"])


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layout_equals_single(
    ranks: RankPool, case: tuple[dict[str, Any], dict[str, Any]], layout: str
) -> None:
    features, expected = case
    world, rows = Layout.parse(layout).world_size, features["rows"]
    mbs = -(-rows // world // features["accumulate"])
    arguments = _arguments(features, layout, mbs=mbs, rows=rows)
    results = ranks(world).run(CASE, timeout_s=90, **arguments)
    for result in results:
        assert_same_training(result, expected)


@pytest.mark.parametrize(("rows", "mbs"), [(5, 2), (7, 1)])
def test_a_batch_that_does_not_divide_is_filled_with_weight_zero(
    ranks: RankPool, rows: int, mbs: int
) -> None:
    """Accumulation of three, a remainder over the ranks, and a rank that has no valid token at all (B002 B006 B034)."""
    features = FEATURES[1]
    expected = reference(features, rows)
    results = ranks(2).run(CASE, timeout_s=90, **_arguments(features, "fsdp=2", mbs=mbs, rows=rows))
    assert_same_training(results[0], expected)


def test_the_comparison_can_fail(ranks: RankPool) -> None:
    """Another seed of the data is another training: the limit is not met by anything."""
    features, expected = FEATURES[0], reference(FEATURES[0], 8)
    results = ranks(2).run(CASE, timeout_s=90, seed=1, **_arguments(features, "dp=2", mbs=8, rows=8))
    with pytest.raises(AssertionError, match="first of"):
        assert_same_training(results[0], expected)


def test_bf16_forward_is_bit_equal_on_every_data_layout(ranks: RankPool) -> None:
    """Weights are cast at the module's edge and not by autocast (DESIGN §4): the first loss has the same bits."""
    job, widths = tiny_job(), tiny_widths()
    arguments: dict[str, Any] = {"job": job, "widths": widths, "precision": "bf16", "steps": 1, "rows": 1}
    alone = train_steps(None, layout="single", mbs=1, **arguments)
    for layout in ("dp=2", "fsdp=2"):
        results = ranks(2).run(CASE, timeout_s=60, layout=layout, mbs=1, **arguments)
        assert results[0]["losses"] == alone["losses"], layout


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_the_jobs_own_precision_runs_on_every_layout(ranks: RankPool, precision: str) -> None:
    """Float64 takes other reduction paths in FSDP2 than float32 and bf16, where a divide factor alone crashes."""
    job, widths = tiny_job(), tiny_widths()
    arguments: dict[str, Any] = {"job": job, "widths": widths, "steps": 4, "mbs": 2}
    truth = train_steps(None, layout="single", precision="fp64", **arguments)
    alone = train_steps(None, layout="single", precision=precision, **arguments)
    for layout in ("dp=2", "fsdp=2:zero1", "dp=2,fsdp=2"):
        world = Layout.parse(layout).world_size
        found = ranks(world).run(CASE, timeout_s=60, layout=layout, precision=precision, **arguments)[0]
        for name, exact in truth["first"].items():
            floor = max(float(exact.norm()), 1e-2 * max(float(g.norm()) for g in truth["first"].values()))
            own = float((alone["first"][name].double() - exact).norm()) / floor
            error = float((found["first"][name].double() - exact).norm()) / floor
            assert error <= 2 * own + 1e-5, f"{layout} {name}: {error:.1e}, one device {own:.1e}"
