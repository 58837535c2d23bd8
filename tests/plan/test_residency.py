"""``data.residency`` is a hard constraint: what would read raw data on several hosts is refused by that name."""

import pytest

from paceline.job import Job
from paceline.ledger.outcome import Exit, Refused
from paceline.plan.cluster import parse_cluster
from paceline.plan.search import plan
from paceline.plan.show import table

BIG = {
    "model.preset": "llama-3.1-8b",
    "data.train": "python-stdlib",
    "data.sequence_length": 4096,
    "train.global_batch_size": 64,
    "train.steps": 100,
}


def job(**more: object) -> Job:
    return Job().replace({**BIG, **more})


def test_without_it_several_hosts_win_and_with_it_one_host_is_the_widest():
    cluster = parse_cluster("4x8xH100-SXM-80GB")
    free = plan(job(), cluster=cluster, measured=None)
    held = plan(job(**{"data.residency": "clinic-7"}), cluster=cluster, measured=None)
    assert free.best.scope == "cluster"
    assert held.best.scope == "host"
    assert held.best.layout.world_size <= 8
    assert set(held.scopes) <= {"device", "host"}


def test_the_refusal_has_its_name_its_place_and_the_federation():
    held = plan(
        job(**{"data.residency": "clinic-7"}), cluster=parse_cluster("4x8xH100-SXM-80GB"), measured=None
    )
    [pooled] = [r for r in held.rejected if "residency" in r.reason]
    assert "clinic-7" in pooled.reason
    assert pooled.kind == "rule"
    assert pooled.nearest == "nearest: paceline federate"
    assert held.tally.adds_up()
    assert "data.residency" in table(held, width=110) or held.counts()["rule"] > 0


def test_a_layout_asked_for_by_name_is_refused():
    with pytest.raises(Refused) as refused:
        plan(
            job(**{"data.residency": "clinic-7"}),
            cluster=parse_cluster("4x8xH100-SXM-80GB"),
            measured=None,
            layout="fsdp=32",
        )
    assert refused.value.exit_code == Exit.RULE
    assert "clinic-7" in refused.value.message
    assert "federate" in refused.value.rule
    assert refused.value.use == "--layout fsdp=8"


def test_one_host_is_as_before():
    cluster = parse_cluster("8xH100-SXM-80GB")
    held = plan(job(**{"data.residency": "clinic-7"}), cluster=cluster, measured=None)
    assert held.best == plan(job(), cluster=cluster, measured=None).best
