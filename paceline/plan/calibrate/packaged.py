"""The calibration that comes with the planner: examples of the open tables, priced once, and interval stretches.

``learnt/examples.csv`` and ``learnt/stretch.toml`` are written by ``benchmarks/plan_accuracy.py --write`` and hold
nothing that the open tables and the cost formulas do not say; a test prices some of them again.
"""

from __future__ import annotations

import tomllib
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from hashlib import blake2b
from pathlib import Path

from paceline.plan.calibrate.example import Example, read_examples
from paceline.plan.calibrate.posterior import Posterior

FOLDER = Path(__file__).parent / "learnt"
EXAMPLES, STRETCH = FOLDER / "examples.csv", FOLDER / "stretch.toml"
MOST_A_SOURCE = 240
"""More examples of one source say little more, and learning takes the cube of their number."""
COLD, ANCHORED = "cold", "anchored"


def thinned(examples: Iterable[Example]) -> list[Example]:
    """Every source with at most :data:`MOST_A_SOURCE`, evenly over its rows in order."""
    by_source: dict[str, list[Example]] = defaultdict(list)
    for one in examples:
        by_source[one.vote].append(one)
    found: list[Example] = []
    for several in by_source.values():
        found += several[:: -(-len(several) // MOST_A_SOURCE)]
    return found


@cache
def packaged_examples() -> tuple[Example, ...]:
    """Those that the planner learns from unless the user names others."""
    return tuple(read_examples(EXAMPLES))


@cache
def packaged_stretch() -> Mapping[str, Mapping[str, float]]:
    """``cold`` and ``anchored`` → regime → stretch."""
    found: dict[str, dict[str, float]] = tomllib.loads(STRETCH.read_text(encoding="utf-8"))["stretch"]
    return found


def posterior(
    learnt: Sequence[Example] | None = None, anchors: int = 0, pool: Sequence[Example] = ()
) -> Posterior:
    """What is known after ``learnt`` (default: the packaged examples)."""
    stretch = packaged_stretch()[ANCHORED if anchors else COLD]
    examples = packaged_examples() if learnt is None else learnt
    return Posterior(examples, anchors=anchors, pool=pool, stretch=stretch)


def fingerprint() -> str:
    """A short hash of the packaged calibration, for records that name what a prediction rests on."""
    return blake2b(EXAMPLES.read_bytes() + STRETCH.read_bytes(), digest_size=4).hexdigest()
