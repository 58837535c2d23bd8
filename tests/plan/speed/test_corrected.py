"""What runs say multiplies a machine's speeds, part by part."""

from __future__ import annotations

import pytest

from paceline.api.calibrating import part_of
from paceline.plan.cluster import parse_cluster
from paceline.plan.cost.step import estimate
from paceline.plan.cost.terms import Work
from paceline.plan.layout import Layout
from paceline.plan.search import speeds_of
from paceline.plan.speed.corrected import CorrectedSpeeds, Correction, factors_of, joined, left_out, read
from tests.tiny import tiny_widths

PRICED = {"compute": 1.0, "deliver": 0.2, "update": 0.1, "host": 0.05, "idle": 0.0}


def test_each_part_is_multiplied_by_its_factor() -> None:
    cluster = parse_cluster("2x8xA100-SXM-80GB")
    plain = speeds_of(cluster, None, "bf16")
    factors = {"compute": 1.3, "deliver": 0.7, "update": 2.0, "host": 1.5, "idle": 1.1}
    corrected = CorrectedSpeeds(plain, Correction("bf16", factors, {}, ("a",)))
    work = Work(
        tiny_widths(hidden_size=4096, intermediate_size=11008, num_attention_heads=32), 4096, 64, "bf16"
    )
    for text in ("single,mbs=1", "tp=8,mbs=1", "pp=4,mbs=1"):
        layout = Layout.parse(text)
        before = estimate(layout, work, plain, cluster).seconds
        after = estimate(layout, work, corrected, cluster).seconds
        for part in ("compute", "update", "host"):
            assert after[part] == pytest.approx(factors[part] * before[part], rel=0.02)
    # of a pipeline's waiting: compute's factor is in it already, the rest is the part's own
    assert after["idle"] == pytest.approx(1.1 * before["idle"], rel=0.05)
    messages = [
        estimate(Layout.parse("tp=8,mbs=1"), work, s, cluster).seconds["deliver"] for s in (plain, corrected)
    ]
    assert messages[1] == pytest.approx(0.7 * messages[0])


def test_a_part_that_is_hardly_there_has_no_factor() -> None:
    measured = {"compute": 1.2, "deliver": 0.1, "update": 0.02, "host": 0.06, "idle": 0.3}
    found = factors_of(PRICED, measured)
    assert found == pytest.approx(
        {"compute": 1.2, "deliver": 0.5, "update": 0.02 / PRICED["update"], "host": 1.2}
    )
    assert "host" not in factors_of(PRICED | {"host": 0.001}, measured | {"host": 0.5}), (
        "a fixed cost, not a rate"
    )
    said = left_out(PRICED | {"host": 0.001}, measured | {"host": 0.5})
    assert set(said) == {"host", "idle"}  # idle is priced at nothing
    assert "of a step, too little to tell a rate" in said["host"]


@pytest.mark.parametrize("times", [10.5, 1e12, 0.09, 1e-6])
def test_ten_times_the_price_is_no_rate(times: float) -> None:
    """Said, and not learnt as ten."""
    measured = PRICED | {"compute": times * PRICED["compute"]}
    assert "compute" not in factors_of(PRICED, measured)
    assert left_out(PRICED, measured)["compute"] == f"{times:.3g} times its price is no rate of this machine"
    assert "update" in factors_of(PRICED, measured)


def test_runs_are_joined_by_their_geometric_mean() -> None:
    both = joined("fp32", {"a": {"compute": 1.0, "host": 3.0}, "b": {"compute": 4.0}})
    assert both.factors == pytest.approx({"compute": 2.0, "host": 3.0})
    assert both.spread == pytest.approx(
        {
            "compute": 0.6931,
        },
        rel=1e-3,
    )
    assert both.runs == ("a", "b")
    assert read([both.to_dict()], "fp32") == both
    assert read([both.to_dict()], "bf16") is None
    assert read("nonsense", "fp32") is None


def test_uncertainty_falls_by_what_is_known() -> None:
    plain = speeds_of(parse_cluster("8xA100-SXM-80GB"), None, "bf16")
    one = CorrectedSpeeds(plain, Correction("bf16", {"compute": 1.2}, {}, ("a",)))
    assert one.sigma["compute"] == pytest.approx(plain.sigma["compute"] / 2)
    assert one.sigma["deliver"] == plain.sigma["deliver"]
    apart = CorrectedSpeeds(plain, Correction("bf16", {"compute": 1.2}, {"compute": 9.0}, ("a", "b")))
    assert apart.sigma["compute"] == plain.sigma["compute"]  # runs that disagree make nothing surer
    close = CorrectedSpeeds(plain, Correction("bf16", {"compute": 1.2}, {"compute": 0.001}, ("a", "b")))
    assert close.sigma["compute"] == 0.05


@pytest.mark.parametrize(
    ("account", "pipeline", "part"),
    [
        (("compute", "forward"), False, "compute"),
        (("deliver", "fsdp/all_gather"), False, "deliver"),
        (("idle", "peer"), False, "deliver"),
        (("idle", "peer"), True, "idle"),
        (("idle", "bubble"), True, "idle"),
        (("update", "optimizer"), False, "update"),
        (("update", "rows"), False, "host"),
        (("idle", "data"), False, "host"),
        (("unattributed", ""), False, "host"),
    ],
)
def test_every_account_is_priced_in_one_part(account: tuple[str, str], pipeline: bool, part: str) -> None:
    assert part_of(account, pipeline=pipeline) == part
