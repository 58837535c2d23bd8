"""Rows of the fault log about what is kept and taken up again: LR OPT KEY EXP ASY PORT TYPO MET.

Each test has the row's number in its name. Rows that a test of another room holds are listed in ``rows.py``.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import paceline as pl
from paceline.api.export import export
from paceline.ledger.outcome import Exit, PacelineError, Refused
from paceline.recipes.assemble import assemble
from paceline.recover.checkpoint import inspect, latest, open_manifest, verify
from paceline.recover.whole import read_whole
from tests.drills.small import assert_same_bits, children_of, events, pids_of, write_tiny
from tests.flow.conftest import cache as cache
from tests.launch.test_signals import is_running
from tests.recipes.parity_cases import CPU
from tests.tiny import tiny_job, tiny_widths

KEPT = Path(__file__).parent / "kept"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("rows")


@pytest.fixture(scope="module")
def tied(home: Path, cache: str) -> tuple[Path, pl.Run]:
    """Ten steps of a tied model, saved at 5 and 10."""
    job = write_tiny(
        home / "tied", model__tie_word_embeddings="true", train__steps="10", checkpoint__keep="5"
    )
    return job, pl.train(job, layout="single", name="tied")


def test_b025_twice_the_data_does_not_rescale_the_schedule_in_silence(tmp_path: Path, cache: str) -> None:
    """The length of a run by epochs follows from its data: other data under the same name is refused."""
    job = write_tiny(tmp_path)
    epochs = {"train.epochs": 0.5, "checkpoint.every": 2}
    half = pl.train(job, layout="single", name="half", set=epochs, on_row=lambda row: row.get("step", 0) < 6)
    assert half.state == "preempted"
    path = latest(half.path / "checkpoints")
    assert path is not None
    steps = open_manifest(path).scalars["steps"]
    ids = np.load(tmp_path / "ids.npy")
    np.save(tmp_path / "ids.npy", np.concatenate([ids, ids]))
    with pytest.raises(Refused) as caught:
        pl.train(job, name="half", set=epochs, resume=True)
    assert caught.value.exit_code == Exit.MISMATCH
    assert caught.value.key == "data.train"
    np.save(tmp_path / "ids.npy", ids)
    done = pl.train(job, name="half", set=epochs, resume=True)
    assert done.state == "done"
    assert done.status.step == steps, "the length is what it was"


@pytest.mark.parametrize("option", ["recompute=full", "compile=on"])
def test_b070_b073_wrappers_leave_no_trace_in_a_name(option: str) -> None:
    from paceline.deliver.mesh import build_mesh

    def names(layout: str) -> list[str]:
        mesh = build_mesh(pl.Layout.parse(layout), 0, None)
        built = assemble(tiny_job(), tiny_widths(), "fp32", mesh, CPU)
        state = built.state({})
        assert set(state.tensors) >= {f"model/{name}" for name in built.names}
        return sorted(state.tensors)

    assert names(f"single,{option}") == names("single")


def test_b070_saved_with_recompute_and_taken_up_without_it(home: Path, cache: str) -> None:
    job = write_tiny(home / "recompute", train__steps="10")
    straight = pl.train(job, layout="single", name="straight")
    half = pl.train(
        job, layout="single,recompute=full", name="half", on_row=lambda row: row.get("step", 0) < 5
    )
    assert half.state == "preempted"
    assert_same_bits(pl.train(job, layout="single", name="half", resume=True), straight, 10)


def test_b072_a_checkpoint_of_an_older_version_is_read(tmp_path: Path) -> None:
    """Written on 2026-12-01 and never again: whatever the format becomes, this one is still read or converted."""
    step = tmp_path / "step-00000002"
    shutil.copytree(KEPT / step.name, step)
    assert inspect(step)["step"] == 2
    names = open_manifest(step).tensors
    assert {name.rpartition("/")[2] for name in names if name.startswith("optimizer/")} >= {
        "exp_avg",
        "exp_avg_sq",
    }
    assert verify(step) == []
    sums = {name: float(value.double().sum()) for name, value in read_whole(step).items()}
    assert sums == pytest.approx(json.loads((KEPT / "sums.json").read_text()), abs=1e-12)


def test_b076_a_tied_head_is_told_by_the_config_and_a_plain_reader_can_use_it(
    tied: tuple[Path, pl.Run], tmp_path: Path
) -> None:
    _, run = tied
    export(run, tmp_path / "out", to="hf")
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    weights: dict[str, torch.Tensor] = {}
    for file in (tmp_path / "out").glob("*.safetensors"):
        weights |= load_file(file)
    assert config["tie_word_embeddings"] is True
    assert "lm_head.weight" not in weights or torch.equal(
        weights["lm_head.weight"], weights["model.embed_tokens.weight"]
    )


def test_b077_a_tied_model_goes_through_its_own_checkpoint(tied: tuple[Path, pl.Run], cache: str) -> None:
    job, straight = tied
    half = pl.train(job, layout="single", name="half", on_row=lambda row: row.get("step", 0) < 4)
    assert half.state == "preempted"
    assert_same_bits(pl.train(job, name="half", resume=True), straight, 10)


def test_b108_a_writer_that_stands_still_is_no_silent_hang(tmp_path: Path, cache: str) -> None:
    """One rank's writer is frozen for ever: the ranks that wait for its part are ended in time and start again."""
    job = write_tiny(tmp_path, restart__hang_timeout='"4s"', checkpoint__every="3")
    frozen: list[int] = []

    def freeze(row: dict[str, Any]) -> None:
        if row["kind"] == "train" and row["step"] >= 7 and not frozen:
            writers = children_of(pids_of(tmp_path / "runs" / "frozen")[1])
            assert writers, "rank 1 has no writer yet"
            frozen.extend(writers)
            for pid in writers:
                os.kill(pid, signal.SIGSTOP)

    run = pl.train(job, layout="dp=2", name="frozen", on_row=freeze)
    assert frozen
    assert run.state == "done"
    (restart,) = events(run, "restart")
    assert restart["detail"]["cause"].startswith("every rank stands still"), restart
    until = time.monotonic() + 5  # whoever adopts the dead reaps them a little later
    while any(map(is_running, frozen)) and time.monotonic() < until:
        time.sleep(0.05)
    assert [pid for pid in frozen if is_running(pid)] == []


def test_b111_a_time_out_names_the_setting_that_it_comes_from(tmp_path: Path, cache: str) -> None:
    job = write_tiny(tmp_path, restart__hang_timeout='"3s"', restart__max="0")

    def stop_one(row: dict[str, Any]) -> None:
        if row["kind"] == "train" and row["step"] == 5:
            os.kill(pids_of(tmp_path / "runs" / "hung")[1], signal.SIGSTOP)

    with pytest.raises(PacelineError) as caught:
        pl.train(job, layout="dp=2", name="hung", on_row=stop_one)
    assert "restart.hang_timeout" in caught.value.rule


def test_b113_two_launches_at_once_do_not_meet(tmp_path: Path, cache: str) -> None:
    """No port is asked for: each launch has a meeting place of its own."""
    job = write_tiny(tmp_path, train__steps="8")
    runs: dict[str, pl.Run] = {}

    def one(name: str) -> None:
        runs[name] = pl.train(job, layout="dp=2", name=name)

    both = [threading.Thread(target=one, args=(name,)) for name in ("left", "right")]
    for thread in both:
        thread.start()
    for thread in both:
        thread.join(100)
    assert [runs[name].state for name in ("left", "right")] == ["done", "done"]
    assert_same_bits(runs["left"], runs["right"], 8)


@pytest.mark.parametrize(
    ("layout", "sets"), [("fsdp=2,mbss=3", {}), ("dp=2:zero9", {}), ("dp=2", {"optimizer.lr_ranl": 4})]
)
def test_b124_every_layer_checks_the_options_that_it_passes_on(
    layout: str, sets: dict[str, Any], tmp_path: Path, cache: str
) -> None:
    with pytest.raises(Refused) as caught:
        pl.train(write_tiny(tmp_path), layout=layout, set=sets)
    assert caught.value.use
    assert not (tmp_path / "runs").exists()


def test_b134_the_time_of_a_restart_is_in_the_rows(tmp_path: Path, cache: str) -> None:
    """From the death to full speed: the event says when, and the ledger of the next attempt what start-up took."""
    job = write_tiny(tmp_path)
    killed: list[int] = []

    def kill(row: dict[str, Any]) -> None:
        if row["kind"] == "train" and row["step"] >= 12 and not killed:
            killed.append(pids_of(tmp_path / "runs" / "slow")[1])
            os.kill(killed[0], signal.SIGKILL)

    run = pl.train(job, layout="dp=2", name="slow", on_row=kill)
    (restart,) = events(run, "restart")
    lines = [json.loads(line) for line in (run.path / "ledger" / "rank-00000.jsonl").read_text().splitlines()]
    headers = [number for number, line in enumerate(lines) if line.get("kind") == "ledger"]
    assert len(headers) == 2
    began_unix_s = lines[headers[1]]["origin_unix_s"]
    start_up = lines[headers[1] + 1]
    assert start_up.get("step") is None, "start-up is a line of its own"
    again_s = began_unix_s + start_up["end_s"] - run.status.started_s
    assert restart["time_s"] < again_s < restart["time_s"] + 20


def test_b140_b141_tokens_and_operations_do_not_depend_on_how_a_step_is_cut(home: Path, cache: str) -> None:
    job = write_tiny(home / "cut", train__steps="3")
    counted = {}
    for layout in ("single,mbs=8", "single,mbs=2", "cp=2", "dp=2"):
        run = pl.train(job, layout=layout, name=pl.Layout.parse(layout).slug)
        found = run.metrics()
        world = pl.Layout.parse(layout).world_size
        operations = found["tflops_per_device"] * found["step_time_s"] * world
        counted[layout] = (found["tokens"].tolist(), operations.tolist())
    tokens, operations = counted["single,mbs=8"]
    for layout, (its_tokens, its_operations) in counted.items():
        assert its_tokens == tokens, layout
        assert its_operations == pytest.approx(operations, rel=1e-9), layout
