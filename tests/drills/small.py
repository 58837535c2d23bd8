"""The job of all drills, a run of it with a planted fault, and what is asked of it afterwards."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import paceline as pl
from paceline.compute.models.decoder import Decoder
from paceline.recipes.feed import Feed
from paceline.recover.whole import read_whole
from tests.cli.shell import environment
from tests.launch.test_signals import is_running

PLANTED = "tests.drills.planted:run"
STEPS, EVERY, VOCAB = 30, 5, 101
TINY = f"""\
data.train = "ids.npy"
data.eval = 0.1
data.sequence_length = 16
model.vocab_size = {VOCAB}
model.hidden_size = 32
model.intermediate_size = 64
model.num_hidden_layers = 4
model.num_attention_heads = 4
model.num_key_value_heads = 2
model.head_dim = 8
train.steps = {STEPS}
train.global_batch_size = 8
train.precision = "fp32"
optimizer.lr = 1e-3
checkpoint.every = {EVERY}
eval.every = "never"
restart.hang_timeout = "60s"
"""


def write_tiny(folder: Path, **changes: str) -> Path:
    """``tiny.toml`` and its data; ``changes`` replace or add keys, ``__`` for the dot, values as TOML."""
    folder.mkdir(parents=True, exist_ok=True)
    np.save(folder / "ids.npy", np.random.default_rng(3).integers(0, VOCAB, 6000).astype(np.uint16))
    lines = dict(line.split(" = ", 1) for line in TINY.splitlines())
    lines["run.root"] = json.dumps(str(folder / "runs"))
    lines |= {key.replace("__", "."): value for key, value in changes.items()}
    path = folder / "tiny.toml"
    path.write_text("".join(f"{key} = {value}\n" for key, value in lines.items()), encoding="utf-8")
    return path


def plant(job: Path, how: str, *, rank: int = 1, step: int = 12, **more: Any) -> None:
    """The ranks of the next runs of this job read it, and write ``fired`` when it strikes."""
    fault = {"how": how, "rank": rank, "step": step, **more}
    (job.parent / "fault.json").write_text(json.dumps(fault))
    (job.parent / "fired").unlink(missing_ok=True)


def fired(job: Path) -> list[dict[str, Any]]:
    """Every time that the fault struck: ``unix_s``, ``attempt``, ``pid``. At least one: else it was no drill."""
    path = job.parent / "fired"
    assert path.exists(), "the fault has not fired"
    return [json.loads(line) for line in path.read_text().splitlines()]


def train(job: Path, name: str, layout: str = "dp=2", **more: Any) -> pl.Run:
    """The job on ranks that obey ``fault.json``."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("paceline.api.attempts.ENTRY", PLANTED)
        patch.setattr(Decoder, "forward", Decoder.forward)  # one rank runs here: its fault is taken out again
        patch.setattr(Feed, "__call__", Feed.__call__)
        return pl.train(job, layout=layout, name=name, **more)


def rows(run: pl.Run | Path) -> list[dict[str, Any]]:
    """Every whole row of ``metrics.jsonl``, of all attempts."""
    text = ((run if isinstance(run, Path) else run.path) / "metrics.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def events(run: pl.Run | Path, kind: str) -> list[dict[str, Any]]:
    return [row for row in rows(run) if row["kind"] == "event" and row["event"] == kind]


def attempts_of(run: Path) -> dict[int, list[tuple[int, float]]]:
    """By attempt, the steps that rank 0 finished and the Unix time of each one's end, as its ledger has them."""
    found: dict[int, list[tuple[int, float]]] = {}
    attempt, origin = 0, 0.0
    for text in (run / "ledger" / "rank-00000.jsonl").read_text().splitlines():
        line = json.loads(text)
        if line.get("kind") == "ledger":
            attempt, origin = int(line["attempt"]), float(line["origin_unix_s"])
        elif line.get("step") is not None:
            found.setdefault(attempt, []).append((line["step"], origin + line["end_s"]))
    return found


def steps_done(run: Path) -> int:
    """The last step that rank 0 finished; rows of ``metrics.jsonl`` come a step later than the ledger's lines."""
    return max(step for lines in attempts_of(run).values() for step, _ in lines)


def steps_lost(run: Path) -> int:
    """Steps begun more than once, by the ledger: those finished since the checkpoint, and the one that broke."""
    by_attempt = attempts_of(run)
    numbers = sorted(by_attempt)
    pairs = itertools.pairwise(numbers)
    return sum(max(s for s, _ in by_attempt[a]) + 2 - min(s for s, _ in by_attempt[b]) for a, b in pairs)


def seconds_lost(run: Path, strike: dict[str, Any]) -> float:
    """From the fault until the step that it broke is done."""
    last = max(by := attempts_of(run))
    return next(end for step, end in by[last] if step == strike["step"]) - float(strike["unix_s"])


def end_state(run: pl.Run | Path, step: int = STEPS) -> dict[str, torch.Tensor]:
    path = (run if isinstance(run, Path) else run.path) / "checkpoints" / f"step-{step:08d}"
    return read_whole(path, prefix="model/") | read_whole(path, prefix="optimizer/")


def assert_same_bits(found: pl.Run | Path, expected: pl.Run | Path, step: int = STEPS) -> None:
    ours, theirs = end_state(found, step), end_state(expected, step)
    assert ours.keys() == theirs.keys()
    assert [name for name in theirs if not torch.equal(ours[name], theirs[name])] == []


def pids_of(run: Path) -> list[int]:
    """The processes of the newest attempt, by rank."""
    found = []
    for path in sorted((run / "ledger").glob("rank-*.jsonl")):
        headers = [json.loads(line) for line in path.read_text().splitlines() if '"kind":"ledger"' in line]
        found.append(int(headers[-1]["pid"]))
    return found


def children_of(pid: int) -> list[int]:
    """Every process below ``pid``, writers of checkpoints and the forkserver included."""
    parents: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        parents.setdefault(int(fields[1]), []).append(int(stat.parent.name))
    found, todo = [], [pid]
    while todo:
        below = parents.get(todo.pop(), [])
        found += below
        todo += below
    return found


def sockets_of(pids: list[int]) -> set[str]:
    """The kernel's numbers of every socket that these processes have open."""
    found = set()
    for pid in pids:
        try:
            links = [os.readlink(link) for link in Path(f"/proc/{pid}/fd").iterdir()]
        except OSError:
            continue
        found.update(link[8:-1] for link in links if link.startswith("socket:["))
    return found


def ports(sockets: set[str]) -> list[str]:
    """The ports on which one of these sockets listens now."""
    tables = [Path(f"/proc/net/{table}").read_text().splitlines()[1:] for table in ("tcp", "tcp6")]
    lines = [line.split() for table in tables for line in table]
    return [fields[1] for fields in lines if fields[3] == "0A" and fields[9] in sockets]


def wait_for(true: Callable[[], Any], limit_s: float = 60.0) -> None:
    until = time.monotonic() + limit_s
    while not true():
        assert time.monotonic() < until, "it has not come to that"
        time.sleep(0.01)


def last_step(run: Path) -> int:
    """The last finished step that ``metrics.jsonl`` tells of."""
    if not (run / "metrics.jsonl").exists():
        return 0
    return max([row["step"] for row in rows(run) if row["kind"] == "train"], default=0)


def gone(pids: list[int], limit_s: float = 10.0) -> list[int]:
    """Those still running when the limit is over."""
    until = time.monotonic() + limit_s
    while (left := [pid for pid in pids if is_running(pid)]) and time.monotonic() < until:
        time.sleep(0.02)
    return left


class Command:
    """``paceline ARGS`` in a process of its own, on ranks that obey ``fault.json``."""

    def __init__(self, job: Path, *args: str, **variables: str) -> None:
        code = (
            f"import sys, paceline.api.attempts as a; a.ENTRY = {PLANTED!r}; "
            "from paceline.__main__ import main; sys.argv[0] = 'paceline'; sys.exit(main())"
        )
        given = {"PACELINE_CACHE": os.environ["PACELINE_CACHE"], **variables}
        self.process = subprocess.Popen(
            [sys.executable, "-c", code, *args],
            cwd=job.parent,
            env=environment(**given),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            encoding="utf-8",
            start_new_session=True,
        )

    def __enter__(self) -> Command:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.communicate(timeout=20)

    def signal(self, number: int) -> None:
        os.kill(self.process.pid, number)

    def end(self, limit_s: float = 60.0) -> tuple[int, str, str]:
        """Exit code, stdout, stderr."""
        out, err = self.process.communicate(timeout=limit_s)
        return self.process.returncode, out, err
