"""A row becomes the question that its run answered; what a blank was filled with is said."""

from __future__ import annotations

import pytest

from paceline.plan.model import parameters
from paceline.plan.published.cases import case_of
from paceline.plan.published.cut import Unstated
from paceline.plan.published.place import host_network
from paceline.plan.published.runs import OPEN, read_runs
from tests.plan.published.rows import row


def test_a_full_row_assumes_nothing() -> None:
    case = case_of(row(vpp=1))
    assert case.assumed == ()
    assert str(case.layout) == "fsdp=64,mbs=1"
    assert (case.cluster.hosts, case.cluster.devices, case.work.global_batch) == (8, 8, 64)
    assert case.measured_s == 1.3


def test_blanks_are_filled_and_said() -> None:
    case = case_of(
        row(heads=None, vocab=None, recompute="", micro_batch=None, global_batch=None, gpus_per_node=None)
    )
    words = " ".join(case.assumed)
    for name in (
        "heads=32",
        "vocab=50304",
        "recompute=none",
        "micro_batch=1",
        "global_batch=64",
        "gpus_per_node=8",
    ):
        assert name in words


def test_tokens_a_second_of_one_device_give_the_step() -> None:
    case = case_of(row(step_time_s=None, tokens_per_s_per_gpu=8192.0))
    assert case.measured_s == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"fsdp_or_zero_stage": "DDP"}, "dp=64,mbs=1"),
        ({"fsdp_or_zero_stage": "ZeRO-1", "tp": 8, "pp": 2}, "fsdp=4:zero1,tp=8,pp=2,mbs=1"),
        ({"fsdp_or_zero_stage": "HSDP"}, "dp=8,fsdp=8,mbs=1"),
        ({"fsdp_or_zero_stage": "ZeRO-2"}, "fsdp=64:zero2,mbs=1"),
        (
            {"tp": 8, "pp": 4, "vpp": 2, "global_batch": 8},
            "fsdp=2,tp=8,pp=4:interleaved,mbs=1",
        ),
        ({"micro_batch": 8, "global_batch": 64}, "fsdp=64,mbs=1"),
    ],
)
def test_degrees_become_a_layout(changes: dict[str, object], expected: str) -> None:
    assert str(case_of(row(**changes)).layout) == expected


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"layers": None}, "layers is not stated"),
        ({"task": "lora"}, "task lora is not training of all weights"),
        ({"model_kind": "hybrid"}, "model kind hybrid has no arithmetic here"),
        ({"gpu_type": "Abacus"}, "accelerator Abacus is not in the catalogue"),
        ({"tp": 7}, "tp·pp·cp = 7 does not divide 64 devices"),
    ],
)
def test_what_cannot_be_asked_says_why(changes: dict[str, object], reason: str) -> None:
    with pytest.raises(Unstated) as caught:
        case_of(row(**changes))
    assert str(caught.value) == reason


def test_shapes_have_the_parameters_that_their_rows_state() -> None:
    """Of the rows that state a count and all widths, nine in ten come within 3 %."""
    off = []
    for run in read_runs(OPEN):
        if run.params_b and run.completeness in ("A", "B") and run.vocab and run.heads:
            try:
                case = case_of(run)
            except Unstated:
                continue
            off.append(abs(parameters(case.work.widths).total / (run.params_b * 1e9) - 1))
    off.sort()
    assert len(off) > 500
    assert off[int(0.9 * len(off))] < 0.03


@pytest.mark.parametrize(
    ("text", "gbit"),
    [
        ("1600 Gbps node-node RoCE", 1600),
        ("8x200Gbps HDR InfiniBand per node", 1600),
        ("4 OmniPath links per node", 400),
        ("EFA (p5.48xlarge, 3200 Gbps per node)", 3200),
        ("", 0),
    ],
)
def test_networks_in_words(text: str, gbit: float) -> None:
    assert host_network(text) == gbit * 1e9 / 8
