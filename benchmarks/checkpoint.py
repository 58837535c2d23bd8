"""Saving and loading a sharded state, against torch.distributed.checkpoint on the same state.

    python -m benchmarks.checkpoint [--ranks 2] [--gb 1.2] [--rounds 5] [--folder DIR]

Each round does, alternated so that what else the machine does falls on all: DCP's save, DCP's asynchronous save (in
a thread, its default, and in a process), and Paceline's; then both loads. Measured on every rank, the slowest counts:
how long training is blocked, how long until the save is durable (Paceline's is then read back and verified; DCP reads
nothing back), how long a load takes. Ratios are of medians. Bars: blocked at most 0.5 times DCP's asynchronous save,
saved and loaded at least as fast. Exit 1 when one is missed.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import sys
import tempfile
from pathlib import Path

from paceline.launch.local import run_ranks

BLOCKED, SAVED, LOADED = 0.5, 1.0, 1.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--gb", type=float, default=1.2, help="of the whole state: weights and two moments")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", type=Path, help="where checkpoints are written (a temporary folder)")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="paceline-checkpoint-", dir=options.folder))
    try:
        payload = {"folder": str(folder), "gb": options.gb, "rounds": options.rounds}
        by_rank = run_ranks(
            "benchmarks.checkpoint_rank:run",
            payload,
            world_size=options.ranks,
            logs=folder / "logs",
            timeout_s=900,
            hang_timeout_s=1200,
        )
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    worst = {
        what: [max(rank[what][n] for rank in by_rank) for n in range(options.rounds)] for what in by_rank[0]
    }
    found = {what: statistics.median(values) for what, values in worst.items()}
    for what, seconds in found.items():
        print(f"{what:<28} {seconds:8.3f}   {' '.join(f'{v:.3f}' for v in worst[what])}")
    blocked = found["paceline blocked_s"] / found["dcp async blocked_s"]
    of_process = found["paceline blocked_s"] / found["dcp process blocked_s"]
    saved = found["dcp save_s"] / found["paceline saved_s"]
    loaded = found["dcp load_s"] / found["paceline load_s"]
    rows = [("blocked", blocked, BLOCKED, blocked <= BLOCKED), ("save", saved, SAVED, saved >= SAVED)]
    rows += [("load", loaded, LOADED, loaded >= LOADED)]
    for name, ratio, bar, met in rows:
        print(f"{name:<8} {ratio:.2f}x of DCP's   bar {bar}   {'met' if met else 'MISSED'}")
    print(f"blocked  {of_process:.2f}x of DCP's in a process, which is not its default")
    print(json.dumps({name: round(ratio, 3) for name, ratio, _, _ in rows} | {"kind": "measured here"}))
    return 0 if all(met for *_, met in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
