"""Links between regions."""

from __future__ import annotations

import pytest

from paceline.ledger.outcome import Exit, Refused
from paceline.plan.rates import read_table
from paceline.plan.wan import internet_usd_per_gb, wan_link


@pytest.mark.parametrize(
    ("here", "there", "distance", "usd"),
    [
        ("aws:us-east-1", "aws:us-east-1", "region", 0.01),
        ("aws:us-east-1", "aws:us-west-2", "continent", 0.02),
        ("gcp:us-central1", "gcp:europe-west4", "world", 0.08),
        ("azure:eastus", "azure:westeurope", "world", 0.05),
        ("aws:us-east-1", "gcp:us-central1", "continent", 0.09),
        ("gcp:us-central1", "aws:us-east-1", "continent", 0.12),
        ("AWS:eu-west-1", "Azure:japaneast", "world", 0.09),
    ],
)
def test_the_distance_and_what_a_gb_costs_to_leave(here: str, there: str, distance: str, usd: float) -> None:
    link = wan_link(here, there)
    assert (link.distance, link.egress_usd_per_gb) == (distance, usd)


def test_farther_is_slower_and_a_flow_is_less_than_a_host() -> None:
    links = [wan_link("aws:us-east-1", f"aws:{region}") for region in ("us-east-1", "us-west-2", "eu-west-1")]
    assert [one.latency_s for one in links] == sorted(one.latency_s for one in links)
    rates = [one.flow_bytes_per_s for one in links]
    assert rates == sorted(rates, reverse=True)
    assert all(one.flow_bytes_per_s < one.host_bytes_per_s for one in links)
    assert links[1].latency_s == pytest.approx(0.030)  # half of 60 ms there and back


def test_a_region_of_every_price_is_known_to_the_links() -> None:
    for cloud in ("aws", "gcp", "azure"):
        regions = {
            row["region"] for row in read_table(cloud).values() if isinstance(row, dict) and "region" in row
        }
        for region in regions - {"not stated by the source"}:
            assert wan_link(f"{cloud}:{region}", f"{cloud}:{region}").distance == "region"
        assert internet_usd_per_gb(cloud) > 0.05


@pytest.mark.parametrize(
    ("word", "says", "use"),
    [
        ("aws:mars-1", "mars-1 is no region of AWS", "aws:us-east-1"),
        ("oci:us-1", "oci is no cloud", "aws:us-east-1"),
    ],
)
def test_an_unknown_region_is_refused_with_one_that_is_known(word: str, says: str, use: str) -> None:
    with pytest.raises(Refused) as caught:
        wan_link(word, "aws:us-east-1")
    assert caught.value.exit_code == Exit.USAGE
    assert says in caught.value.message
    assert caught.value.use == use
    assert caught.value.allowed
