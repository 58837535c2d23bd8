"""`make drills`: run every test that is a drill, slow ones too, and write docs/drills.md from what they did.

    python -m tests.drills.table [--dry]

A test that is known to fail (strict ``xfail``) is written as failing, with its reason; exit
code 1 when another one fails.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import time
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from tests.drills.listed import DRILLS

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "drills.md"


@dataclass
class Result:
    """What became of one test function, over all of its cases."""

    test: str
    passed: int = 0
    failed: int = 0
    skipped: int = 0
    seconds: float = 0.0
    known: set[str] = field(default_factory=set)
    why_skipped: set[str] = field(default_factory=set)
    lost: dict[str, list[float]] = field(default_factory=dict)

    @property
    def says(self) -> str:
        """``passed``, or what is worse."""
        count = self.passed + self.failed + self.skipped
        if self.failed:
            return f"**FAILS** ({self.failed} of {count})" + "".join(f": {why}" for why in sorted(self.known))
        if self.skipped:
            return f"skipped ({self.skipped} of {count}): {'; '.join(sorted(self.why_skipped))}"
        return "passed" if count == 1 else f"passed, {count} cases"

    @property
    def lost_says(self) -> str:
        steps, seconds = self.lost.get("steps_lost", []), self.lost.get("seconds_lost", [])
        parts = [f"{max(steps):.0f} steps"] if steps else []
        return ", ".join(parts + ([f"{max(seconds):.2f} s"] if seconds else []))


class Recorder:
    """A pytest plugin: results by drill and test function."""

    def __init__(self) -> None:
        self.by_drill: dict[int, dict[str, Result]] = {}
        self._numbers: dict[str, tuple[int, ...]] = {}

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        for item in items:
            marks = [number for mark in item.iter_markers("drill") for number in mark.args]
            self._numbers[item.nodeid] = tuple(marks)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        for number in self._numbers.get(report.nodeid, ()):
            name = report.nodeid.partition("[")[0]
            result = self.by_drill.setdefault(number, {}).setdefault(name, Result(name))
            if report.when == "call":  # a shared fixture's seconds belong to no one drill
                result.seconds += report.duration
            xfail = getattr(report, "wasxfail", "")
            if xfail:
                result.failed += 1
                result.known.add(xfail.removeprefix("reason: "))
            elif report.failed:
                result.failed += 1
            elif report.skipped:
                result.skipped += 1
                text: Any = report.longrepr
                result.why_skipped.add(
                    str(text[2]).removeprefix("Skipped: ") if isinstance(text, tuple) else ""
                )
            elif report.when == "call":
                result.passed += 1
                for key, value in report.user_properties:
                    result.lost.setdefault(key, []).append(float(value))


def state(number: int, found: dict[int, dict[str, Result]]) -> str:
    """``covered``, ``failing``, ``skipped`` or ``not yet`` of one drill."""
    results = found.get(number, {}).values()
    if any(one.failed for one in results):
        return "failing"
    if DRILLS[number].not_yet or not results:
        return "not yet"
    return "skipped" if any(one.skipped for one in results) else "covered"


def page(found: dict[int, dict[str, Result]], seconds: float) -> str:
    """docs/drills.md."""
    states = {number: state(number, found) for number in DRILLS}
    counts = {
        name: list(states.values()).count(name) for name in ("covered", "failing", "skipped", "not yet")
    }
    lines = [
        "# Fault drills",
        "",
        "A fault is planted, seen to strike, and answered as the list says. Written by `make drills` from the tests",
        "marked `drill`; every number here is theirs. The job is small: 4 layers of width 32, 2 to 4 processes on one",
        "host, a save every 5 of 30 steps ([`small.py`](../tests/drills/small.py)).",
        "",
        f"kind: measured here · {time.strftime('%Y-%m-%d', time.gmtime())} · torch {version('torch')}, gloo · Python "
        f"{platform.python_version()}, {platform.system()}, {len(os.sched_getaffinity(0))} cores · {seconds:.0f} s",
        "",
        f"Of {len(DRILLS)} drills: " + ", ".join(f"{count} {name}" for name, count in counts.items()) + ".",
        "",
        "| drill | fault | right is | test | result | seconds | lost |",
        "|---|---|---|---|---|---|---|",
    ]
    for number, drill in DRILLS.items():
        head = f"| D{number:02d} | {drill.fault} | {drill.right} |"
        results = found.get(number, {}).values()
        for one in results:
            lines.append(f"{head} `{one.test}` | {one.says} | {one.seconds:.1f} | {one.lost_says} |")
            head = "| | | |"
        if drill.not_yet or not results:
            lines.append(f"{head} | not yet: {drill.not_yet or 'no test'} | | |")
    return "\n".join(lines) + "\n"


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.drills.table")
    parser.add_argument("--dry", action="store_true", help="show the page and do not write it")
    asked = parser.parse_args(argv)
    recorder = Recorder()
    began = time.monotonic()
    code = pytest.main(
        ["-m", "drill and not soak", "-p", "no:cacheprovider", str(ROOT / "tests")], plugins=[recorder]
    )
    text = page(recorder.by_drill, time.monotonic() - began)
    if asked.dry:
        print(text)
    elif recorder.by_drill:
        PAGE.write_text(text, encoding="utf-8")
    return int(code)


if __name__ == "__main__":
    sys.exit(main())
