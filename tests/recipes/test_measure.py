"""The measurement: figures that make sense, under their conditions, merged into one file."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from paceline.launch.local import run_here
from paceline.plan.measured import Measured, fastest_precision
from paceline.recipes import measure, messages
from paceline.recipes.measure import Bench
from tests.pool import RankPool


def bench() -> Bench:
    return Bench(1, 1, lambda: None, lambda value: value, lambda: None)


def test_seconds_are_those_of_the_work() -> None:
    import time

    taken = bench().seconds(lambda: time.sleep(0.01), 0.0, 5)
    assert 0.0095 < taken < 0.1


def test_while_other_programs_hold_the_cores_the_shortest_time_counts() -> None:
    """Most samples wait for a core: the median would be a hundred times the work."""
    import time

    calls = iter([0.0] + [0.05, 0.05, 0.05, 0.001] * 10)
    busy = replace(bench(), busy=True)
    assert busy.seconds(lambda: time.sleep(next(calls)), 0.0, 3) < 0.02
    waits = iter([0.0] + [0.05] * 10)
    assert bench().seconds(lambda: time.sleep(next(waits)), 0.0, 3) >= 0.05


def test_a_machine_is_measured_into_a_file_that_plan_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measure, "MATMUL_SIZES", {"fp32": (64, 128), "bf16": (64,)})
    monkeypatch.setattr(measure, "SHAPES", ((32, 64, 2, 1, 16, 1),))
    monkeypatch.setattr(measure, "STREAM_NUMBERS", 1 << 16)
    monkeypatch.setattr(measure, "OPTIMIZER_NUMBERS", 1 << 14)
    monkeypatch.setattr(measure, "EACH_S", 0.01)
    monkeypatch.setattr(measure, "SHARE_S", 0.05)
    monkeypatch.setattr(measure, "BLOCK_S", 0.01)
    file = tmp_path / "measured" / "k.json"
    widths = measure.reference(64, 128, 2, 2, 16, 1)[0]
    payload = {
        "file": str(file),
        "key": "k",
        "widths": widths.to_dict(),
        "sequence_length": 16,
        "mbs": [1, 2],
    }
    said: list[dict[str, object]] = []
    run_here(
        "paceline.recipes.measure:run",
        payload,
        logs=tmp_path / "logs",
        on_message=lambda r, row: said.append(row),
    )
    found = Measured.read(file, "k")
    assert found is not None
    assert [row["size"] for row in found.matmul] == [64, 128, 64]
    assert all(row["threads"] == 1 and row["processes"] == 1 for row in found.matmul)
    assert {(b["hidden_size"], b["mbs"]) for b in found.blocks} == {(64, 1), (64, 2), (32, 1)}
    in_bf16 = [b for b in found.blocks if b["precision"] == "bf16"]
    assert len(in_bf16) in (0, 3), "all shapes or none"
    assert all(b["layer_s"] > 0 and b["outer_s"] > 0 for b in found.blocks)
    assert found.dispatch_s > 0
    assert found.process_bytes > 50 << 20
    assert found.rate(found.stream, "bytes_per_s", 1, 1)
    assert found.rate(found.optimizer, "parameters_per_s", 1, 1)
    assert said[0]["kind"] == "say"
    assert fastest_precision(found) in ("fp32", "bf16")


def test_a_large_model_is_not_timed() -> None:
    assert measure.small(*measure.reference(256, 704, 4, 2, 256, 2))
    assert not measure.small(*measure.reference(8192, 28672, 64, 8, 8192, 1))


def test_matmul_counts_two_operations_a_product() -> None:
    rows = measure.matmul(bench())
    sizes = {(row["precision"], row["size"]) for row in rows}
    always = {(p, n) for p, all_of in measure.MATMUL_SIZES.items() for n in all_of}
    more = {("bf16", n) for n in measure.WORTH_MORE_SIZES}  # where the CPU has instructions for it
    assert sizes in (always, always | more)
    a = torch.ones(512, 512)
    seconds = bench().seconds(lambda: torch.mm(a, a), 0.0, 9, best=True)
    found = next(row["flops_per_s"] for row in rows if row["size"] == 512 and row["precision"] == "fp32")
    assert 0.1 < found / (2 * 512**3 / seconds) < 10


def test_the_share_of_the_cores_falls_when_others_want_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """And only then: what keeps one thread at work, as bf16 products do, is not asked."""
    monkeypatch.setattr(measure, "SHARE_S", 0.6)
    cores = len(os.sched_getaffinity(0))
    script = "while True: pass"
    others = [subprocess.Popen([sys.executable, "-c", script]) for _ in range(2 * cores)]
    try:
        crowded = measure.cpu_share(bench())
    finally:
        for other in others:
            other.kill()
            other.wait()
    alone = measure.cpu_share(bench())
    assert crowded < 0.75
    assert crowded < alone


def test_two_ranks_are_timed_together_over_the_wire(ranks: RankPool) -> None:
    rows = ranks(2).run("tests.recipes.test_measure:collectives_of_a_rank")[0]
    assert {(row["op"], row["bytes"]) for row in rows} == {
        (op, size) for op in ("all_reduce", "all_gather", "reduce_scatter") for size in (1 << 10, 1 << 20)
    }
    assert all(row["seconds"] > 0 and row["ranks"] == 2 for row in rows)


def collectives_of_a_rank(world: object) -> list[dict[str, object]]:
    """Runs on each rank of the pool."""
    messages.COLLECTIVE_BYTES = (1 << 10, 1 << 20)
    return messages.messages(2)


def test_a_figure_of_several_rounds_is_their_median() -> None:
    rounds = [[{"threads": 1, "layer_s": s, "outer_s": 2 * s}] for s in (3.0, 1.0, 2.0)]
    rounds[1].append({"threads": 1, "layer_s": 9.0, "outer_s": 9.0})  # a shape that one round had time for
    assert measure.medians(rounds) == [{"threads": 1, "layer_s": 2.0, "outer_s": 4.0}]


def test_a_message_is_what_it_adds_to_the_work_before_it(ranks: RankPool) -> None:
    late = ranks(2).run("tests.recipes.test_measure:late_message_of_a_rank")[0]
    assert 0.018 < late < 0.1  # 20 ms planted in the call of one rank, however long the work is


def late_message_of_a_rank(world: object) -> float:
    import time

    import torch.distributed as dist

    def call() -> None:
        time.sleep(0.02 if dist.get_rank() == 1 else 0.0)
        dist.barrier()

    return messages._within_s(messages._work(), call, 3)


def test_a_layer_with_experts_is_timed_as_what_a_token_meets() -> None:
    moe = measure.replace(
        measure.reference(64, 128, 2, 2, 16, 1)[0],
        num_experts=8, num_experts_per_tok=2, moe_intermediate_size=32, n_shared_experts=1,
    )  # fmt: skip
    stands = measure.timed(moe)
    assert (stands.num_experts, stands.intermediate_size) == (0, 3 * 32)
    row = measure.block(stands, 16, 1, "fp32", bench())
    assert row["kind"]["intermediate_size"] == 96
