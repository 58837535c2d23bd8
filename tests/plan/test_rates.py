"""What clouds ask: dated, whole machines, above the price of the accelerator alone."""

from __future__ import annotations

import re

import pytest

from paceline.plan import money
from paceline.plan.cluster import catalogue, parse_cluster, shapes
from paceline.plan.rates import NAMES, rates, read_table
from tests.plan.answers import LLAMA, ask, job


def test_every_price_has_a_region_a_date_and_a_source() -> None:
    assert len(rates()) >= 27
    for name, rate in rates().items():
        assert name in shapes(), name
        assert shapes()[name].partition("x")[2] in catalogue(), name
        assert rate.region, name
        assert rate.source, name
        assert re.match(r"20\d\d", rate.date), name
        assert 1 < rate.usd_per_hour < 300, name
        assert rate.spot_usd_per_hour is None or 0 < rate.spot_usd_per_hour < rate.usd_per_hour, name
        assert rate.nic_bytes_per_s > 0, name
    for cloud in NAMES:
        assert read_table(cloud)["egress"]["date"], cloud
    assert {rate.cloud for rate in rates().values()} == {"AWS", "GCP", "Azure"}


def test_a_shape_has_its_own_price_and_network_not_the_accelerators() -> None:
    cluster = parse_cluster("p5.48xlargex4")
    assert cluster.usd_per_device_hour == pytest.approx(55.04 / 8)
    assert cluster.price_date == "2026-07-08"
    assert cluster.usd_per_device_hour != parse_cluster("4x8xH100-SXM-80GB").usd_per_device_hour
    # a3-highgpu has a quarter of the network that the same device has elsewhere
    assert parse_cluster("a3-highgpu-8g").nic_bytes_per_s == pytest.approx(100e9 / 8)
    assert parse_cluster("8xH100-SXM-80GB").nic_bytes_per_s == pytest.approx(400e9 / 8)
    assert parse_cluster("dgx-h100").rate is None


@pytest.mark.parametrize(("world", "paid"), [(1, 8), (8, 8), (9, 16), (16, 16)])
def test_a_rented_machine_is_paid_whole(world: int, paid: int) -> None:
    assert money.paid_devices(parse_cluster("p5.48xlargex4"), world) == paid
    assert money.paid_devices(parse_cluster("4x8xH100-SXM-80GB"), world) == world


def test_half_of_a_machine_costs_the_whole() -> None:
    cluster = parse_cluster("Standard_NC96ads_A100_v4")
    assert cluster.devices == 4
    half = money.usd_parts(cluster, 10.0, 2, 0.0)
    assert half["rent"] == pytest.approx(146.92)


def test_the_cost_of_a_plan_is_rent_and_the_weights_that_leave() -> None:
    found = ask(job(LLAMA), "p5.48xlarge", layout="fsdp=8,mbs=1")
    best = found.best
    assert best.hours is not None
    assert best.usd is not None
    assert best.usd_parts["rent"] == pytest.approx(best.hours[1] * 55.04)
    count = found.facts.work.count.total
    assert best.usd_parts["egress"] == pytest.approx(count * 4 / 1e9 * 0.09)
    assert best.usd == pytest.approx(sum(best.usd_parts.values()))
    assert any("leave the cloud once" in note for note in found.assumed)
    assert found.to_dict()["best"]["usd_parts"] == best.usd_parts
