"""Time from the start of a launcher to the first optimizer step: four ranks against one.

    python -m benchmarks.start [--pairs 9] [--ranks 4]

Each sample is a fresh interpreter, timed from outside until every rank has stepped; one rank is a plain step
in the calling process, several are FSDP2. Alternated, so that what else the machine does falls on both; the
ratio is of medians, with a bootstrap interval. The bar is 1.5.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time

BAR = 1.5
LIMIT_S = 120


def sample(ranks: int) -> float:
    """Seconds to the first step of all ranks."""
    with tempfile.TemporaryDirectory() as folder:
        begin = time.perf_counter()
        command = [sys.executable, "-m", "benchmarks.first_step", str(ranks), folder]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        line = process.stdout.readline()
        seconds = time.perf_counter() - begin
        if process.wait(LIMIT_S) or line.strip() != "first step":
            raise SystemExit(f"{ranks} ranks did not reach their first step")
        return seconds


def interval(one: list[float], many: list[float], draws: int = 2000) -> tuple[float, float]:
    """95 % bootstrap interval of the ratio of medians."""
    source = random.Random(0)
    ratios = sorted(
        statistics.median(source.choices(many, k=len(many)))
        / statistics.median(source.choices(one, k=len(one)))
        for _ in range(draws)
    )
    return ratios[int(0.025 * draws)], ratios[int(0.975 * draws)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=9)
    parser.add_argument("--ranks", type=int, default=4)
    options = parser.parse_args()
    for ranks in (1, options.ranks):
        sample(ranks)  # fills the page cache; not counted
    one, many = [], []
    for _ in range(options.pairs):
        one.append(sample(1))
        many.append(sample(options.ranks))
    ratio = statistics.median(many) / statistics.median(one)
    low, high = interval(one, many)
    print(f"1 rank   {statistics.median(one):.2f} s   ({min(one):.2f}–{max(one):.2f}, {len(one)} starts)")
    print(f"{options.ranks} ranks  {statistics.median(many):.2f} s   ({min(many):.2f}–{max(many):.2f})")
    print(
        f"ratio    {ratio:.2f}   95 % {low:.2f}–{high:.2f}   bar {BAR}   {'ok' if ratio <= BAR else 'OVER'}"
    )
    print(
        json.dumps(
            {"benchmark": "start", "ratio": ratio, "low": low, "high": high, "one_s": one, "many_s": many}
        )
    )
    return 0 if ratio <= BAR else 1


if __name__ == "__main__":
    sys.exit(main())
