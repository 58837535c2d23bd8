"""One formula prices a layout and a column of them: thousands of random layouts, both ways, to 1e-12."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from paceline.job import Job
from paceline.plan.cluster import Cluster, parse_cluster
from paceline.plan.cost.sheaf import Sheaf
from paceline.plan.cost.step import estimate, memory_of
from paceline.plan.cost.terms import Work
from paceline.plan.layout import Layout
from paceline.plan.search import speeds_of
from paceline.plan.speed.columns import ColumnSpeeds
from tests.plan.answers import machine, measurement

DENSE, MIXED = "llama-3.1-8b", "qwen3-30b-a3b"
SCHEDULES = (
    ("1f1b", 1),
    ("gpipe", 1),
    ("interleaved", 2),
    ("interleaved", 3),
    ("zero-bubble", 2),
    ("zbv", 2),
    ("dualpipev", 2),
)


def work(model: str, batch: int) -> Work:
    widths = replace(Job(model={"preset": model}).model.widths(32000), num_hidden_layers=24)
    return Work(widths, sequence_length=4096, global_batch=batch, precision="bf16")


def models(draw: random.Random, experts: int, cores: int) -> Iterator[Layout]:
    """What is one value for a sheaf, at random; ``cores``: small degrees, for a machine of few."""
    for _ in range(32):
        tp, cp = draw.choice((1, 2, 4)), draw.choice((1, 1, 2, 4))
        pp = draw.choice((1, 2, 4))
        if cores and tp * cp * pp > cores:
            continue
        schedule, vpp = draw.choice(SCHEDULES) if pp > 1 else ("1f1b", 1)
        ep = draw.choice((1, 2, 8)) if experts else 1
        yield Layout(
            tp=tp, cp=cp, pp=pp, schedule=schedule, vpp=vpp, ep=ep,
            cp_kind=draw.choice(("allgather", "ulysses")),
            etp=tp if ep > 1 and draw.random() < 0.3 else 1,
            recompute=draw.choice(("none", "selective", "full")),
        )  # fmt: skip


def sheaf(draw: random.Random, model: Layout, batch: int, count: int = 40) -> Sheaf:
    inner = max(1, model.ep * model.etp)
    sharded = draw.random() < 0.7
    dp = np.array([draw.choice((1, 2, 3, 4)) * inner for _ in range(count)])
    fsdp = np.array([draw.choice((2, 4, 6, 8)) for _ in range(count)]) if sharded else 1
    rows = -(-batch // (dp * fsdp))
    mbs = np.array([draw.randint(1, int(n)) for n in rows])
    return Sheaf(model, dp, fsdp, mbs, draw.choice(("zero1", "zero2", "zero3")), sharded)


@pytest.mark.parametrize(
    ("preset", "cluster"),
    [(DENSE, "64x8xH100-SXM-80GB"), (MIXED, "16x8xH100-SXM-80GB"), (DENSE, "cpu"), (MIXED, "measured")],
)
def test_columns_are_the_numbers(preset: str, cluster: str) -> None:
    draw = random.Random(f"{preset} on {cluster}")
    where: Cluster = machine(16, 512) if cluster in ("cpu", "measured") else parse_cluster(cluster)
    speeds = speeds_of(where, measurement() if cluster == "measured" else None, "bf16")
    columns = ColumnSpeeds(speeds, shared=where.is_cpu)
    compared = 0
    for model in models(draw, experts=preset == MIXED, cores=0):
        batch = draw.choice((96, 128, 250))
        asked = work(preset, batch)
        many = sheaf(draw, model, batch)
        memory = memory_of(many, asked, columns, where)
        found = estimate(many, asked, columns, where, memory)
        for i in range(len(many)):
            one = estimate(many.layout(i), asked, speeds, where)
            for name in ("step_s", "hidden_s", "padding_s", "sent_bytes", "device_bytes", "allocated_bytes"):
                column = np.broadcast_to(getattr(found, name), len(many))
                assert column[i] == pytest.approx(getattr(one, name), rel=1e-12, abs=1e-15), (
                    f"{name} of {many.layout(i)}"
                )
            for part, seconds in one.seconds.items():
                column = np.broadcast_to(found.seconds[part], len(many))
                assert column[i] == pytest.approx(seconds, rel=1e-12, abs=1e-15), (
                    f"{part} of {many.layout(i)}"
                )
            compared += 1
    assert compared > 1000


def test_a_sheaf_is_taken_apart_and_answers_for_what_it_shares() -> None:
    model = Layout(tp=4, pp=2, recompute="full")
    many = Sheaf(model, np.array([1, 2]), np.array([4, 2]), np.array([1, 2]), "zero2", True)
    assert (many.tp, many.pp, many.recompute, many.schedule) == (4, 2, "full", "1f1b")
    assert list(many.world_size) == [32, 32]
    assert str(many.layout(0)) == "fsdp=4:zero2,tp=4,pp=2,mbs=1,recompute=full"
    assert str(many.take(np.array([False, True])).layout(0)) == str(many.layout(1))
    assert len(many) == 2
