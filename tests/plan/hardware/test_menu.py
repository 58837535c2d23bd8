"""The words for a choice of hardware."""

from __future__ import annotations

from pathlib import Path

import pytest

from paceline.ledger.outcome import Exit, Refused
from paceline.plan.cluster import parse_cluster
from paceline.plan.hardware.menu import MOST_HOSTS, is_menu, parse_menu
from paceline.plan.rates import rates


@pytest.mark.parametrize(("cloud", "word"), [("AWS", "aws"), ("GCP", "GCP"), ("Azure", "azure")])
def test_a_cloud_offers_its_machines_that_can_train(cloud: str, word: str) -> None:
    names = {offer.name for offer in parse_menu(word)}
    assert names == {
        shape
        for shape, rate in rates().items()
        if rate.cloud == cloud and not shape.startswith("trn")  # no kernels of ours run there
    }


def test_any_is_every_cloud_and_nothing_twice() -> None:
    every = [offer.name for offer in parse_menu("any,aws")]
    assert len(every) == len(set(every))
    assert set(every) == {offer.name for word in ("aws", "gcp", "azure") for offer in parse_menu(word)}


def test_a_name_without_hosts_stands_for_several_and_each_name_is_that_cluster(tmp_path: Path) -> None:
    lab = tmp_path / "lab.toml"
    lab.write_text('[cluster]\nuse = "2x8xB200"\n[own]\nusd_per_kwh = 0.1\n')
    offers = parse_menu(f"p5.48xlarge, 8xB200,p5.48xlargex3,2x8xH100-SXM-80GB,1x8xB200,{lab}")
    counts = [[cluster.hosts for cluster in offer.clusters] for offer in offers]
    several = [1, 2, 4, 8, 16, 32, 64]
    assert several[-1] == MOST_HOSTS
    assert counts == [several, several, [3], [2], [1], [2]]
    for offer in offers[:-1]:
        for cluster in offer.clusters:
            assert parse_cluster(cluster.name) == cluster
    assert offers[-1].clusters[0].own is not None


def test_what_has_kernels_of_another_vendor_is_there_when_it_is_named() -> None:
    assert [offer.name for offer in parse_menu("trn1.32xlarge,p5.48xlarge")] == [
        "trn1.32xlarge",
        "p5.48xlarge",
    ]


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("aws", True),
        ("ANY", True),
        ("a,b", True),
        ("p5.48xlarge", False),
        ("this", False),
        ("lab.toml", False),
    ],
)
def test_which_words_ask_for_a_choice(text: str, answer: bool) -> None:
    assert is_menu(text) is answer


@pytest.mark.parametrize(
    ("text", "use"),
    [
        ("aws,azur", "--cluster aws,azure"),
        ("p5.48xlarg,gcp", "--cluster p5.48xlarge,gcp"),
        ("aws,,gcp", "--cluster aws,gcp"),
        ("aws,8xH1000-SXM-80GB", "--cluster aws,8xH100-SXM-80GB"),
        (",", "--cluster any"),
    ],
)
def test_a_wrong_name_is_refused_with_the_whole_list_repaired(text: str, use: str) -> None:
    with pytest.raises(Refused) as caught:
        parse_menu(text)
    assert caught.value.exit_code == Exit.USAGE
    assert caught.value.use == use
    if use != "--cluster any":
        assert parse_menu(use.removeprefix("--cluster "))
