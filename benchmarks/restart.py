"""From the death of one of four ranks to the next finished step, against torchrun with DCP, in turns in one run.

    python -m benchmarks.restart [--rounds 5] [--folder DIR]

Both train a decoder of width 128 on four replicas, gloo, one thread a rank, a save every 5 steps. In each round each of
them is started, one rank is killed after step 12, and the first step that the next attempt finishes is waited for.
Paceline goes on from memory after the last finished step; torchrun's next step repeats one after the last checkpoint.
Bars: the death is noticed in 0.5 s (the ranks' messages awaited, their memory read), the next step comes in at most
0.35 times torchrun's time, and in 2 s and two steps. Exit 1 when one is missed.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import paceline as pl
from benchmarks.restart_torchrun import EVERY, HEADS, LAYERS, LENGTH, ROWS, STEPS, VOCAB, WIDTH

RANKS, VICTIM, AFTER = 4, 2, 12
NOTICED_S, RATIO, NEXT_S = 0.5, 0.35, 2.0
JOB = f"""\
data.train = "ids.npy"
data.eval = 0.1
data.sequence_length = {LENGTH}
model.vocab_size = {VOCAB}
model.hidden_size = {WIDTH}
model.intermediate_size = {4 * WIDTH}
model.num_hidden_layers = {LAYERS}
model.num_attention_heads = {HEADS}
model.num_key_value_heads = {HEADS}
model.head_dim = {WIDTH // HEADS}
train.steps = {STEPS}
train.global_batch_size = {ROWS * RANKS}
train.precision = "fp32"
checkpoint.every = {EVERY}
eval.every = "never"
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", type=Path, help="where runs are written (a temporary folder)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="paceline-restart-", dir=options.folder) as name:
        folder = Path(name)
        np.save(folder / "ids.npy", np.random.default_rng(3).integers(0, VOCAB, 60_000).astype(np.uint16))
        (folder / "job.toml").write_text(f'run.root = "{folder / "runs"}"\n{JOB}')
        pl.train(
            folder / "job.toml", layout=f"dp={RANKS}", name="warm"
        )  # data prepared, ranks' server started
        ours, theirs, steps = [], [], []
        for number in range(options.rounds):
            found = _paceline(folder, f"struck-{number}")
            ours.append(found)
            theirs.append(_torchrun(folder / f"torchrun-{number}"))
            steps.append(found["step_s"])
            print(f"round {number}: {ours[-1]} · torchrun {theirs[-1]}", flush=True)
    noticed = max(one["noticed_s"] for one in ours)
    following = statistics.median(one["next_s"] for one in ours)
    other = statistics.median(one["next_s"] for one in theirs)
    worst, allowed = max(one["next_s"] for one in ours), NEXT_S + 2 * statistics.median(steps)
    rows = [
        ("noticed, worst", noticed, NOTICED_S),
        ("next step, worst", worst, allowed),
        ("next step / torchrun's", following / other, RATIO),
    ]
    for what, value, bar in rows:
        print(f"{what:<24} {value:.3f}   bar {bar:.3f}   {'met' if value <= bar else 'MISSED'}")
    print(f"medians: {following:.2f} s · torchrun {other:.2f} s")
    print(json.dumps({what: round(value, 3) for what, value, _ in rows} | {"kind": "measured here"}))
    return 0 if all(value <= bar for _, value, bar in rows) else 1


def _paceline(folder: Path, name: str) -> dict[str, float]:
    """Seconds after the kill until the restart was told, and until the next step's end by rank 0's ledger."""
    killed: list[float] = []
    noticed: list[float] = []

    def on_row(row: dict[str, Any]) -> None:
        if row.get("event") == "restart":
            noticed.append(time.time())
        if row["kind"] == "train" and row["step"] >= AFTER and not killed:
            os.kill(_pid(folder / "runs" / name), signal.SIGKILL)
            killed.append(time.time())

    run = pl.train(folder / "job.toml", layout=f"dp={RANKS}", name=name, on_row=on_row)
    rows = [json.loads(line) for line in (run.path / "metrics.jsonl").read_text().splitlines()]
    (restart,) = (row for row in rows if row.get("event") == "restart")
    assert restart["detail"]["from"].startswith("memory"), restart
    ends = _step_ends(run.path, restart["step"])
    return {
        "noticed_s": round(noticed[0] - killed[0], 3),
        "next_s": round(ends[0] - killed[0], 3),
        "step_s": round(float(statistics.median(run.metrics()["step_time_s"])), 4),
    }


def _step_ends(run: Path, after: int) -> list[float]:
    """Unix times at which rank 0 of the second attempt finished steps beyond ``after``, as its ledger has them."""
    ends, attempt, origin = [], 0, 0.0
    for text in (run / "ledger" / "rank-00000.jsonl").read_text().splitlines():
        line = json.loads(text)
        if line.get("kind") == "ledger":
            attempt, origin = int(line["attempt"]), float(line["origin_unix_s"])
        elif attempt == 1 and (line.get("step") or 0) > after:
            ends.append(origin + line["end_s"])
    return sorted(ends)


def _pid(run: Path) -> int:
    lines = (run / "ledger" / f"rank-{VICTIM:05d}.jsonl").read_text().splitlines()
    return int([json.loads(line) for line in lines if '"kind":"ledger"' in line][-1]["pid"])


def _torchrun(folder: Path) -> dict[str, float]:
    folder.mkdir()
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={RANKS}"]
    command += ["--max-restarts=3", "-m", "benchmarks.restart_torchrun", str(folder)]
    with open(folder / "log", "w") as log:
        process = subprocess.Popen(
            command, stdout=log, stderr=log, env={**os.environ, "OMP_NUM_THREADS": "1"}
        )
        try:
            _wait(lambda: _last(folder / "steps-0.jsonl") >= AFTER, process)
            os.kill(int((folder / f"pid-0-{VICTIM}").read_text()), signal.SIGKILL)
            killed_s = time.time()
            _wait(lambda: _last(folder / "steps-1.jsonl") > 0, process)
            row = json.loads((folder / "steps-1.jsonl").read_text().splitlines()[0])
        finally:
            process.terminate()  # its workers with it
            process.wait()
    return {"next_s": round(row["unix_s"] - killed_s, 3), "from": row["step"] - 1}


def _last(path: Path) -> int:
    lines = path.read_text().splitlines() if path.exists() else []
    return int(json.loads(lines[-1])["step"]) if lines else 0


def _wait(there: Callable[[], bool], process: subprocess.Popen[bytes], limit_s: float = 120.0) -> None:
    until = time.monotonic() + limit_s
    while not there():
        if process.poll() is not None or time.monotonic() > until:
            raise RuntimeError("torchrun's program ended, or did not come so far")
        time.sleep(0.005)


if __name__ == "__main__":
    sys.exit(main())
