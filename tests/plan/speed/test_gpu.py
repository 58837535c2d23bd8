"""GPU speeds from the data sheet: plausible utilisation, links by group."""

from __future__ import annotations

import pytest

from paceline.plan.cluster import parse_cluster
from paceline.plan.model import flops_per_token
from paceline.plan.speed.gpu import GpuSpeeds
from paceline.plan.speed.speeds import Group
from tests.plan.test_model import LLAMA_8B, Shape


def test_compute_of_a_large_model_reaches_a_plausible_share_of_the_peak() -> None:
    speeds = GpuSpeeds(parse_cluster("8xH100-SXM-80GB"), "bf16")
    seconds = 32 * speeds.block_s(LLAMA_8B, 8192, 1, 8) + speeds.outer_s(LLAMA_8B, 8192, 1, 8)
    mfu = flops_per_token(LLAMA_8B, 8192) * 8192 / seconds / speeds.peak_flops(8)
    assert 0.35 < mfu < 0.65


def test_a_small_model_is_bound_by_launches() -> None:
    speeds = GpuSpeeds(parse_cluster("8xH100-SXM-80GB"), "bf16")
    one, two = (speeds.block_s(Shape(), 64, rows, 1) for rows in (1, 2))
    assert two == pytest.approx(one, rel=1e-3)


def test_links_inside_and_between_hosts() -> None:
    speeds = GpuSpeeds(parse_cluster("4x8xH100-SXM-80GB"), "bf16")
    size = 1e9
    inside = speeds.collective_s("all_gather", size, Group(8, 8))
    across = speeds.collective_s("all_gather", size, Group(16, 8))
    thin = speeds.collective_s("all_reduce", size, Group(4, 1))
    assert inside < across
    assert thin > 1.5 * size / speeds.cluster.nic_bytes_per_s
    assert speeds.collective_s("all_reduce", size, Group(8, 8)) == pytest.approx(2 * inside, rel=0.05)
    assert speeds.collective_s("all_reduce", size, Group(1, 1)) == 0.0
