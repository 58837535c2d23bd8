"""How near the planner comes to published runs: cold, and with two measured layouts of the same group.

    python benchmarks/plan_accuracy.py [--write] [--groups]

``--write`` prices the open tables again and writes the packaged calibration (examples and interval stretches), which
is needed after every change of a cost formula. Exit 1 when a bar of the docs is missed.
"""

from __future__ import annotations

import argparse
import sys

import tomli_w

from paceline.plan.calibrate.example import Example, write_examples
from paceline.plan.calibrate.packaged import ANCHORED, COLD, EXAMPLES, STRETCH
from paceline.plan.calibrate.posterior import Posterior, stretches
from paceline.plan.published.runs import OPEN, read_runs
from paceline.plan.score.score import Score, learnable, score
from paceline.plan.score.scored import asked
from paceline.plan.score.show import text

ANCHORS = 2
COLD_BAR, ANCHORED_BAR = 0.12, 0.08
COVERED = (0.85, 0.95)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--groups", action="store_true")
    options = parser.parse_args()
    runs = read_runs(OPEN)
    if options.write:
        write(learnable(asked(runs)))
    good = True
    for name, anchors, bar in (("cold", 0, COLD_BAR), ("calibrated", ANCHORS, ANCHORED_BAR)):
        found = score(runs, anchors=anchors, say=lambda line: print(line, file=sys.stderr))
        print(f"\n== {name}: {anchors} runs of the same group\n{text(found, groups=options.groups)}")
        good = judged(name, found, bar) and good
    return 0 if good else 1


def judged(name: str, found: Score, bar: float) -> bool:
    """Whether median and coverage are within the bars, said either way."""
    whole = found.all()
    assert whole is not None
    sources = found.sources()
    covered = sum(source.covered for source in sources) / len(sources)
    error = "met" if whole.median <= bar else "MISSED"
    inside = "met" if COVERED[0] <= covered <= COVERED[1] else "MISSED"
    print(f"bar      {name}: median {whole.median:.1%} of {bar:.0%} {error} · in 90 % {covered:.1%} {inside}")
    return error == inside == "met"


def write(examples: list[Example]) -> None:
    """Examples, and what covers nine in ten of them when their own group is left out."""
    EXAMPLES.parent.mkdir(exist_ok=True)
    write_examples(EXAMPLES, examples)
    found = {
        name: stretches(examples, Posterior(examples, anchors=anchors).predict(examples))
        for name, anchors in ((COLD, 0), (ANCHORED, ANCHORS))
    }
    STRETCH.write_text(tomli_w.dumps({"stretch": found}), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
