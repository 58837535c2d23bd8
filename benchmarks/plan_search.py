"""The planner's search over the whole space of a job: how many layouts, how long, how much memory.

Prints the tally, the CPU and wall seconds of the search itself and of the whole command, and the peak of resident
memory; exits 1 when the counts do not add up or a million layouts were not searched.

    python benchmarks/plan_search.py [JOB.toml]
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from paceline.api.plan import resolve_cluster
from paceline.job.load import load
from paceline.ledger.resident import peak_bytes
from paceline.plan.search import plan

EXAMPLE = Path(__file__).parents[1] / "examples" / "llama3-405b-10240.toml"
WANTED = 1_000_000


def main() -> int:
    job = load(Path(sys.argv[1]) if len(sys.argv) > 1 else EXAMPLE).job
    cluster = resolve_cluster(job.cluster.use, job.run.device)
    began, cpu = time.perf_counter(), time.process_time()
    found = plan(job, cluster=cluster, measured=None)
    wall_s, cpu_s = time.perf_counter() - began, time.process_time() - cpu
    peak_gib = peak_bytes() / 2**30
    print(f"{job.run.name} on {cluster.name}: {found.layout}, {found.best.step_s[1]:.4g} s a step")
    print(found.tally)
    print(f"{wall_s:.2f} s, {cpu_s:.2f} s of CPU, crossings included; {peak_gib:.2f} GiB at most")
    return 0 if found.tally.adds_up() and (len(sys.argv) > 1 or found.tally.divide >= WANTED) else 1


if __name__ == "__main__":
    sys.exit(main())
