"""A network with pods: which collectives pay for leaving one, and that a plan keeps them inside."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from paceline.job import Job
from paceline.ledger.outcome import Exit, Refused
from paceline.plan.cluster import parse_cluster
from paceline.plan.cost.step import estimate
from paceline.plan.cost.terms import group_of
from paceline.plan.fabric import Fabric, fabric_of
from paceline.plan.layout import Layout
from paceline.plan.search import plan, question_of
from paceline.plan.speed.gpu import GpuSpeeds
from paceline.plan.speed.speeds import Group

FLAT = parse_cluster("64x8xH100-SXM-80GB")
PODS = replace(FLAT, fabric=Fabric(pod_hosts=8, oversubscription=4.0))
JOB = Job().replace(
    {
        "model.preset": "llama-3.1-70b",
        "data.train": "python-stdlib",
        "data.sequence_length": 8192,
        "train.global_batch_size": 512,
        "train.steps": 1000,
    }
)


@pytest.mark.parametrize(
    ("op", "group", "share"),
    [
        ("all_reduce", Group(64, 8, 1), 1.0),  # eight hosts: the whole pod, and no more
        ("all_gather", Group(512, 8, 1), 1.0),  # one ring, 64 ranks of each pod in it
        ("all_reduce", Group(64, 1, 8), 1.0),  # eight rings a pod, eight ranks of each
        ("all_reduce", Group(8, 1, 64), 0.25),  # 64 rings a pod: all of them leave it
        ("all_reduce", Group(16, 1, 32), 0.5),  # two ranks a pod
        ("send", Group(2, 1, 64), 0.25),
        ("send", Group(2, 1, 8), 1.0),
        ("all_to_all", Group(512, 8, 1), 1 / (4 * 7 / 8)),
        ("all_to_all", Group(64, 8, 1), 1.0),
    ],
)
def test_what_leaves_a_pod_pays(op: str, group: Group, share: float) -> None:
    assert Fabric(8, 4.0).share(op, group.ranks, group.apart, devices=8) == pytest.approx(share)


def test_without_oversubscription_pods_change_nothing() -> None:
    even = replace(FLAT, fabric=Fabric(8, 1.0))
    for op in ("all_reduce", "all_to_all", "send"):
        for group in (Group(8, 1, 64), Group(512, 8, 1), Group(2, 1, 256)):
            speeds = [GpuSpeeds(cluster, "bf16").collective_s(op, 1e9, group) for cluster in (FLAT, even)]
            assert speeds[0] == speeds[1]


def test_messages_take_longer_by_the_share_and_no_others() -> None:
    flat, pods = GpuSpeeds(FLAT, "bf16"), GpuSpeeds(PODS, "bf16")
    across = group_of(8, 64, 8)
    assert pods.collective_s("all_reduce", 8e9, across) == pytest.approx(
        4 * flat.collective_s("all_reduce", 8e9, across), rel=0.01
    )
    inside = group_of(8, 1, 8)
    assert pods.collective_s("all_reduce", 8e9, inside) == flat.collective_s("all_reduce", 8e9, inside)


def test_a_search_sees_the_same_prices_as_one_layout_alone() -> None:
    found = plan(JOB, cluster=PODS, measured=None, top=8)
    question = question_of(JOB, PODS, None, None, None)
    for candidate in found.candidates:
        if candidate.layout.pp == 1:  # a pipeline's waiting is simulated
            alone = estimate(candidate.layout, question.facts.work, question.speeds, PODS)
            assert candidate.step_s[1] == pytest.approx(alone.step_s)


def test_replicas_over_pods_are_what_a_slow_spine_makes_dear() -> None:
    layout = Layout.parse("dp=8,fsdp=64,mbs=1,recompute=full")
    steps = [
        plan(JOB, cluster=cluster, measured=None, layout=layout).best.step_s[1] for cluster in (FLAT, PODS)
    ]
    assert steps[1] > steps[0]
    slow = replace(FLAT, fabric=Fabric(8, 64.0))
    flat, found = (plan(JOB, cluster=cluster, measured=None).best for cluster in (FLAT, slow))
    assert found.step_s[1] >= flat.step_s[1]


def test_a_cluster_file_says_it(tmp_path: Path) -> None:
    file = tmp_path / "lab.toml"
    file.write_text('[cluster]\nuse = "64x8xH100-SXM-80GB"\n[fabric]\npod_hosts = 8\noversubscription = 4\n')
    assert parse_cluster(str(file), this=None, where="--cluster").fabric == Fabric(8, 4.0)


@pytest.mark.parametrize(
    "table",
    [
        {},
        "4:1",
        {"pod_hosts": 8},
        {"pod_hosts": 0, "oversubscription": 2},
        {"pod_hosts": 8, "oversubscription": 0.5},
        {"pod_hosts": 8, "oversubscription": float("inf")},
        {"pod_hosts": 8, "oversubscription": float("nan")},
        {"pod_hosts": 8, "oversubscription": "4"},
        {"pod_hosts": True, "oversubscription": 2},
        {"pod_hosts": 8, "oversubscription": 4, "rails": 2},
    ],
)
def test_what_is_no_fabric_is_refused(table: object) -> None:
    with pytest.raises(Refused) as refused:
        fabric_of(table, "lab.toml")
    assert refused.value.exit_code == Exit.USAGE
    assert "pod_hosts" in refused.value.use
