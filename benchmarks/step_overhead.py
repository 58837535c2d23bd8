"""A step of Paceline over a step of the shortest hand-written loop: same model, same wrapper, same precision.

Both loops run in the same processes on the same data, their steps alternated in pairs, so that whatever else the
machine does falls on both. The hand-written loop does what everybody's does: forward, mean cross-entropy, backward,
clip_grad_norm_, AdamW, zero_grad, with torch's own wrapper around the model (none, DistributedDataParallel,
fully_shard) on a plain gloo group. Ours is the loop's own step: counts, two reductions, ledger, wire, row.

    python benchmarks/step_overhead.py [--pairs 40] [--layouts single,dp=2,fsdp=2]

Prints the median of the paired ratios with a 95 % bootstrap interval. The bar is 1.03.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

BAR = 1.03
LEAST_STEP_S = 0.2
WARM_UP = 3


def main() -> int:
    words = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    words.add_argument("--pairs", type=int, default=40)
    words.add_argument("--layouts", default="single,dp=2,fsdp=2")
    words.add_argument("--json", action="store_true")
    given = words.parse_args()
    results = [measure(layout, given.pairs) for layout in _layouts(given.layouts)]
    for found in results:
        if given.json:
            print(json.dumps(found))
        else:
            low, high = found["interval"]
            print(
                f"{found['layout']:<8} {found['median']:.4f}  [{low:.4f}, {high:.4f}]  of {found['pairs']} pairs · "
                f"ours {found['ours_s']:.3f} s, by hand {found['by_hand_s']:.3f} s · bar {BAR}"
            )
    return 0 if all(found["median"] <= BAR for found in results) else 1


def _layouts(text: str) -> list[str]:
    return [word for word in text.split(",") if word]


def measure(layout: str, pairs: int) -> dict[str, Any]:
    """Median ratio over ``pairs`` alternated pairs of steps at one layout, on rank 0's clock."""
    from paceline.launch.local import run_ranks
    from paceline.plan.layout import Layout

    world = Layout.parse(layout).world_size
    with tempfile.TemporaryDirectory() as folder:
        payload = {"layout": layout, "pairs": pairs, "folder": folder}
        found = run_ranks(
            "benchmarks.paired_steps:run",
            payload,
            world_size=world,
            logs=Path(folder) / "logs",
            threads_per_rank=max(1, 2 // world),
            timeout_s=240,
        )[0]
    ratios = [ours / by_hand for ours, by_hand in zip(found["ours_s"], found["by_hand_s"], strict=True)]
    by_hand_s = statistics.median(found["by_hand_s"])
    if by_hand_s < LEAST_STEP_S:
        raise SystemExit(
            f"{layout}: a step takes {by_hand_s:.3f} s, too short for the bar: enlarge the batch"
        )
    return {
        "layout": layout,
        "pairs": pairs,
        "median": statistics.median(ratios),
        "interval": bootstrap(ratios),
        "ours_s": statistics.median(found["ours_s"]),
        "by_hand_s": by_hand_s,
    }


def bootstrap(values: list[float], rounds: int = 4000, seed: int = 0) -> tuple[float, float]:
    """95 % percentile interval of the median."""
    rng = random.Random(seed)
    medians = sorted(statistics.median(rng.choices(values, k=len(values))) for _ in range(rounds))
    return medians[int(0.025 * rounds)], medians[int(0.975 * rounds)]


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
    began = time.monotonic()
    code = main()
    print(f"{time.monotonic() - began:.0f} s", file=sys.stderr)
    raise SystemExit(code)
