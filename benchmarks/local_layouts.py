"""What `paceline plan` predicts on this machine against what `paceline train` then takes, layout by layout.

    python -m benchmarks.local_layouts [--fresh]

Each layout of each job is predicted from the machine's measurement (``paceline cluster measure``; ``--fresh`` takes
it now) and then run for some steps, in turns with the others of its job. Bars: median error at most 15 %, the worst
35 %, Spearman at least 0.9 within each job and over all, and `single` chosen where single is faster.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

SHOWN = ("compute", "deliver", "update", "host", "idle")
MEDIAN_BAR, WORST_BAR, ORDER_BAR = 0.15, 0.35, 0.9

TEXT = {"data.train": "python-stdlib", "data.eval": 0.05, "data.tokenizer": "bpe:288"}
SMALL = {
    "model.hidden_size": 256,
    "model.intermediate_size": 704,
    "model.num_hidden_layers": 4,
    "model.num_attention_heads": 4,
    "model.num_key_value_heads": 4,
    "data.sequence_length": 256,
    "train.global_batch_size": 8,
    "train.steps": 200,
}
JOBS: dict[str, tuple[dict[str, Any], list[str]]] = {
    "small": (
        SMALL,
        [
            "single,mbs=4",
            "single,mbs=4,recompute=full",
            "dp=2,mbs=4",
            "fsdp=2,mbs=4",
            "fsdp=2:zero2,mbs=2",
            "tp=2,mbs=4",
            "cp=2,mbs=4",
            "pp=2,mbs=1",
            "dp=4,mbs=2",
            "fsdp=4,mbs=2",
            "dp=2,tp=2,mbs=2",
            "fsdp=2,pp=2,mbs=1",
            "tp=4,mbs=4",
            "pp=4,mbs=1",
            "fsdp=8,mbs=1",
        ],
    ),
    "wide": (
        SMALL
        | {
            "model.hidden_size": 512,
            "model.intermediate_size": 1408,
            "model.num_attention_heads": 8,
            "model.num_key_value_heads": 8,
            "data.sequence_length": 512,
            "train.global_batch_size": 4,
        },
        ["single,mbs=1", "dp=2,mbs=1", "fsdp=2,mbs=2", "tp=2,mbs=2", "fsdp=4,mbs=1", "fsdp=2,tp=2,mbs=1"],
    ),
    "tiny": (
        SMALL | {"model.hidden_size": 64, "model.intermediate_size": 176, "train.global_batch_size": 4},
        ["single,mbs=4", "dp=2,mbs=2", "fsdp=2,mbs=2", "dp=4,mbs=1"],
    ),
}


@dataclass(frozen=True)
class Row:
    """One layout: seconds of a step predicted and measured, and of each how much of it is messages."""

    job: str
    layout: str
    world: int
    predicted_s: float
    low_s: float
    high_s: float
    measured_s: float
    predicted_parts: Mapping[str, float]
    measured_parts: Mapping[str, float]

    @property
    def error(self) -> float:
        """Predicted over measured, less one."""
        return self.predicted_s / self.measured_s - 1


def main() -> int:
    words = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    words.add_argument("--fresh", action="store_true", help="measure the machine first")
    words.add_argument("--jobs", default=",".join(JOBS))
    words.add_argument("--json", action="store_true")
    given = words.parse_args()
    if given.fresh:
        from paceline.api.measuring import measure_cluster

        measure_cluster(None, _say)
    rows: list[Row] = []
    right = True
    for name in given.jobs.split(","):
        found, chosen, fastest = _job(name)
        rows += found
        good = chosen == fastest or fastest != "single"
        right = right and good
        print(f"{name}: plan chooses {chosen}; of those that ran {fastest} is the fastest")
    if given.json:
        print(json.dumps([vars(row) for row in rows]))
    return 0 if _judge(rows) and right else 1


def _say(label: str, text: str) -> None:
    print(f"{label:<9}{text}", file=sys.stderr, flush=True)


def _job(name: str) -> tuple[list[Row], str, str]:
    """Rows of one job, what the plan chooses for it without being asked, and the fastest that ran."""
    from paceline.api.contest import time_layouts
    from paceline.api.ground import settle
    from paceline.job import Job
    from paceline.plan.chance import PARTS
    from paceline.plan.layout import Layout
    from paceline.plan.search import plan

    settings, layouts = JOBS[name]
    with tempfile.TemporaryDirectory() as root:
        job = Job().replace({**TEXT, **settings, "run.name": name, "run.root": root})
        ground = settle(job, "auto", _say, lambda row: None)
        plans = {
            text: plan(
                ground.job,
                cluster=ground.cluster,
                measured=ground.measured,
                layout=text,
                tokens=ground.prepared.tokens,
                vocab_size=ground.prepared.vocab,
            ).best
            for text in layouts
        }
        timings = time_layouts(ground, [Layout.parse(text) for text in layouts], _say)
    rows = []
    for text, best in plans.items():
        timing = timings[Layout.parse(text)]
        low, mid, high = best.step_s
        parts = {part: best.terms[f"{part}_s"] for part in PARTS}
        world = best.layout.world_size
        rows.append(Row(name, text, world, mid, low, high, timing.middle_s, parts, timing.parts_s))
    fastest = min(rows, key=lambda row: row.measured_s)
    return rows, _short(str(ground.plan.layout)), _short(fastest.layout)


def _short(layout: str) -> str:
    return "single" if layout.startswith("single") else layout


def _judge(rows: list[Row]) -> bool:
    """Prints the table; whether every bar is met."""
    parts = " ".join(f"{part:>13}" for part in SHOWN)
    print(f"{'job':<6} {'layout':<28} {'predicted':>9} {'90 %':>15} {'measured':>9} {'error':>7}  {parts}")
    for row in rows:
        inside = "" if row.low_s <= row.measured_s <= row.high_s else "  outside"
        print(
            f"{row.job:<6} {row.layout:<28} {row.predicted_s:9.3f} {row.low_s:7.3f}–{row.high_s:.3f} "
            f"{row.measured_s:9.3f} {row.error:+7.1%}  {_parts(row)}{inside}"
        )
    errors = sorted(abs(row.error) for row in rows)
    over = sum(row.world > 2 for row in rows)
    orders = {
        job: _order([row for row in rows if row.job == job]) for job in dict.fromkeys(r.job for r in rows)
    }
    orders["all"] = _order(rows)
    told = " · ".join(f"{job} {value:.2f}" for job, value in orders.items())
    print(
        f"{len(rows)} layouts, {over} with more ranks than two · median {median(errors):.1%} (bar 15 %) · "
        f"worst {errors[-1]:.1%} (bar 35 %) · Spearman {told} (bar 0.9)"
    )
    return median(errors) <= MEDIAN_BAR and errors[-1] <= WORST_BAR and min(orders.values()) >= ORDER_BAR


def _parts(row: Row) -> str:
    names = ("compute", "deliver", "update", "host", "idle")
    return " ".join(
        f"{1e3 * row.predicted_parts.get(n, 0):6.1f}/{1e3 * row.measured_parts.get(n, 0):<6.1f}"
        for n in names
    )


def _order(rows: list[Row]) -> float:
    """Spearman's rank correlation of predicted and measured seconds."""
    from paceline.plan.score.ranking import spearman

    return spearman([row.predicted_s for row in rows], [row.measured_s for row in rows])


if __name__ == "__main__":
    sys.exit(main())
