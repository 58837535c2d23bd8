"""CPU speeds: ranks share cores, measured blocks correct the closed form, unmeasured is said."""

from __future__ import annotations

from dataclasses import replace

import pytest

from paceline.plan.model import cut, kinds
from paceline.plan.speed.cpu import CATALOGUE_SIGMA, CpuSpeeds
from paceline.plan.speed.speeds import Group
from tests.plan.answers import machine, measurement
from tests.plan.test_model import Shape


def row(layer_s: float, threads: int = 2, processes: int = 1) -> dict[str, object]:
    shape = Shape()
    names = (
        "vocab_size",
        "hidden_size",
        "intermediate_size",
        "num_attention_heads",
        "num_key_value_heads",
        "head_dim",
    )
    return {name: getattr(shape, name) for name in names} | {
        "precision": "fp32",
        "sequence_length": 64,
        "mbs": 2,
        "threads": threads,
        "processes": processes,
        "layer_s": layer_s,
        "outer_s": 0.02,
    }


def test_a_measured_block_is_predicted_as_measured() -> None:
    speeds = CpuSpeeds(machine(), replace(measurement(), blocks=[row(0.123), row(0.456, 1, 2)]), "fp32")
    assert speeds.block_s(Shape(), 64, 2, 1) == pytest.approx(0.123, rel=1e-3)
    assert speeds.block_s(Shape(), 64, 2, 2) == pytest.approx(0.456, rel=1e-3)
    assert speeds.outer_s(Shape(), 64, 2, 1) == pytest.approx(0.02, rel=1e-3)
    assert speeds.distance(Shape(), 64, 2) == 0.0
    assert speeds.distance(Shape(), 128, 2) > 0.0


def test_more_ranks_than_cores_wait_for_one_another() -> None:
    speeds = CpuSpeeds(machine(cores=2), measurement(), "fp32")
    assert [speeds.threads(n) for n in (1, 2, 4)] == [2, 1, 1]
    assert speeds.block_s(Shape(), 64, 2, 4) > 1.9 * speeds.block_s(Shape(), 64, 2, 2)


def test_unmeasured_is_said_and_wide() -> None:
    speeds = CpuSpeeds(machine(), None, "fp32")
    assert "not measured" in speeds.assumed[0]
    assert speeds.sigma is CATALOGUE_SIGMA
    assert speeds.collective_s("all_reduce", 1e6, Group(2, 2)) > 0
    assert CpuSpeeds(machine(), measurement(), "fp32").assumed == ()
    assert "fp64 was not measured" in CpuSpeeds(machine(), measurement(), "fp64").assumed[0]


def test_bf16_without_instructions_is_never_attractive() -> None:
    fp32, bf16 = (CpuSpeeds(machine(), None, p).block_s(Shape(), 64, 2, 1) for p in ("fp32", "bf16"))
    assert bf16 > 5 * fp32


def test_a_block_of_another_family_is_predicted_as_measured() -> None:
    plain = Shape(gated_mlp=False, norm="layernorm")
    taken = row(0.2) | {"kind": plain.to_dict()}
    speeds = CpuSpeeds(machine(), replace(measurement(), blocks=[taken]), "fp32")
    assert speeds.block_s(plain, 64, 2, 1) == pytest.approx(0.2, rel=1e-3)
    assert speeds.block_s(Shape(), 64, 2, 1) > 0.2  # one more matrix


def test_experts_cost_what_a_token_meets_and_a_product_each() -> None:
    parts = {"num_experts_per_tok": 2, "moe_intermediate_size": 172, "num_experts": 8}
    moe, wider = (kinds(Shape(**parts | {"num_experts": n}))[0][0] for n in (8, 64))
    speeds = CpuSpeeds(machine(), measurement(), "fp32")
    dense, few, many = (speeds.block_s(kind, 64, 8, 1) for kind in (Shape(), moe, wider))
    assert 0.8 * dense < few < 2 * dense
    assert many > few


def test_cut_blocks_are_cheaper_and_messages_between_two_are_not_free() -> None:
    speeds = CpuSpeeds(machine(), measurement(), "fp32")
    assert speeds.block_s(cut(Shape(), 2), 64, 8, 2, 2) < 0.75 * speeds.block_s(Shape(), 64, 8, 2)
    pair = Group(2, 2)
    assert speeds.collective_s("send", 1e6, pair) > speeds.collective_s("all_to_all", 1e6, pair) > 0
