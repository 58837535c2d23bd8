"""A launcher for tests that send it signals: ``python -m tests.launch.script LOGS CASE WORLD PAYLOAD``.

Prints each rank's pid as it reports it, then the results or the error, and how it ends is its exit code.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
from multiprocessing import forkserver
from pathlib import Path

from paceline.launch.local import run_here, run_ranks
from paceline.ledger.outcome import PacelineError


def main(logs: str, case: str, world: str, payload: str) -> int:
    def show(rank: int, row: dict[str, object]) -> None:
        if row["kind"] == "event":
            print(f"pid {row['pid']}", flush=True)

    if case == "until_stopped":  # needs no torch, so its server is started without: it saves seconds
        multiprocessing.set_forkserver_preload(["tests.launch.cases"])
        forkserver.ensure_running()
    print(f"launcher {os.getpid()}", flush=True)
    try:
        entry, values, folder = f"tests.launch.cases:{case}", json.loads(payload), Path(logs)
        if int(world) == 1:
            results = run_here(entry, values, logs=folder, on_message=show)
        else:
            results = run_ranks(entry, values, world_size=int(world), logs=folder, on_message=show)
    except PacelineError as error:
        print(f"error {error.exit_code} {error.message}", flush=True)
        return error.exit_code
    print(f"results {json.dumps(results)}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
