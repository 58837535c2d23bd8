"""A dry run of a 70 B-width model at its full depth of 80 layers, against the extension from two small depths.

Prints both with their seconds, and exits 1 when a byte of the messages or of the memory differs.

    python benchmarks/dry_run_depth.py [LAYOUT] [RANK]
"""

from __future__ import annotations

import sys

from paceline.job import Job
from paceline.plan.dry_run import DryRun
from paceline.plan.layout import Layout
from paceline.recipes.dry.step import Question
from paceline.recipes.dry_run import dry_run

LAYOUT, LENGTH, VOCABULARY = "fsdp=128,tp=8,mbs=1", 8192, 128_256


def main() -> int:
    layout = Layout.parse(sys.argv[1] if len(sys.argv) > 1 else LAYOUT)
    rank = int(sys.argv[2]) if len(sys.argv) > 2 else 0
    job = Job(model="llama-3.1-70b", data={"train": "none"}).replace({"data.sequence_length": LENGTH})
    asked = Question(job, job.model.widths(VOCABULARY), layout, rank, "bf16", rows=1, count=1)
    short = dry_run(asked, _say, limit_s=3600.0)
    whole = dry_run(asked, _say, limit_s=3600.0, extended=False)
    for found in (short, whole):
        gib = found.peak_bytes / 2**30
        print(
            f"{found.ran['layers']}: {found.seconds:.1f} s, {gib:.6f} GiB, {found.sent_bytes} bytes of messages"
        )
    same = _compared(short) == _compared(whole)
    print("equal to the byte" if same else f"DIFFERENT\n{_compared(short)}\n{_compared(whole)}")
    return 0 if same else 1


def _compared(found: DryRun) -> tuple[object, ...]:
    return dict(found.memory), found.moment, list(found.messages), found.parameters, found.layers


def _say(line: str) -> None:
    print(line, file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
