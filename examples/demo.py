"""``make demo``: one real run through all five phases, in under three minutes on two cores.

It writes a job file, then runs the very commands that you would type, each shown behind a ``$``: train on
part of this Python's own standard library; take the run up again as two processes. Last, the verdict: a
small decoder has to predict files that it never saw better than a strong trigram model of the same data.

Exit code: 0 when it does, 1 when it does not, that of ``paceline train`` when that fails.
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import paceline as pl

JOB = Path(__file__).with_name("stdlib.toml")
RESUMED_STEPS = 20
RESUMED_LAYOUT = "fsdp=2"
PACKAGES = ("email", "http", "json", "logging", "urllib", "xml")
"""Part of the standard library that every Python has, small enough to be read one and a half times in a minute."""
HELD_OUT_EACH = 6


def main(words: list[str]) -> int:
    """Both runs and the verdict; the exit code."""
    asked = _arguments(words)
    began_s = time.monotonic()
    job = write_job(Path(asked.root) / "demo.toml", asked.job)
    print(f"The demo trains on {', '.join(PACKAGES)} of {sysconfig.get_path('stdlib')}; its job is {job}.")
    code = _train([str(job), *_root_key(asked.root)])
    if code:
        return code
    run = pl.runs(asked.root)[0]
    steps = run.status.step
    first = (str(run.layout), run.last("eval"))
    print(f"\nThe same run, {RESUMED_STEPS} steps more, now cut over two processes ({RESUMED_LAYOUT}):")
    more = ["--resume", "--layout", RESUMED_LAYOUT, "--set", f"train.steps={steps + RESUMED_STEPS}"]
    code = _train([str(run.path), *more])
    if code:
        return code
    print()
    won = True
    for line, holds in verdict(run, first, (str(run.layout), run.last("eval"))):
        print(line)
        won = won and holds
    print(f"report   {run.folder.report}")
    print(f"took     {_clock(time.monotonic() - began_s)}, everything after the install")
    # typed as it is: `make demo` leaves the command in .venv, which no shell has in its path
    command = Path(sys.executable).with_name("paceline")
    print(f"next     {command} sample {shlex.quote(str(run.path))} --prompt 'def '")
    return 0 if won else 1


def write_job(path: Path, base: Path) -> Path:
    """The demo's job: ``base`` on this Python's packages. The paths differ by machine, so no file can hold them."""
    train, held_out = sources()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        "# Written by examples/demo.py; what is not said here stands in the job that it extends.\n"
        f"extends = {json.dumps(str(base.resolve()))}\n"
        f"data.train = {_listed(train)}\n"
        f"# Every {HELD_OUT_EACH}th file by name: the model and the trigram never see a line of these.\n"
        f"data.eval = {_listed(held_out)}\n",
        encoding="utf-8",
    )
    return path


def sources() -> tuple[list[str], list[str]]:
    """(train, held out): by name and not by content, so that every release of Python is judged on the same files."""
    root = Path(sysconfig.get_path("stdlib"))
    files = [f for package in PACKAGES for f in sorted((root / package).rglob("*.py")) if f.stat().st_size]
    held_out = files[HELD_OUT_EACH - 1 :: HELD_OUT_EACH]
    return [str(f) for f in files if f not in held_out], [str(f) for f in held_out]


def _listed(files: list[str]) -> str:
    return "[\n" + "".join(f"  {json.dumps(file)},\n" for file in files) + "]"


def verdict(run: pl.Run, *ends: tuple[str, dict[str, Any]]) -> Iterator[tuple[str, bool]]:
    """A line for each end, (layout, last evaluation), with whether the model is below the trigram."""
    trigram = float(run.manifest["evaluation"]["baselines"]["trigram"]["bits_per_byte"])
    for layout, row in ends:
        model = float(row["bits_per_byte"])
        beats = model < trigram
        yield (
            f"{'BEATEN' if beats else 'MISSED':<8} step {row['step']} on {layout}: {model:.3f} bits/byte against the"
            f" trigram's {trigram:.3f} ({100 * abs(1 - model / trigram):.1f} % {'better' if beats else 'worse'})",
            beats,
        )


def _train(words: list[str]) -> int:
    """One ``paceline train`` on this terminal, announced as it would be typed."""
    print(f"\n$ {_shown(['train', *words])}", flush=True)
    return subprocess.run([sys.executable, "-m", "paceline", "train", *words], check=False).returncode


def _shown(words: list[str]) -> str:
    return shlex.join(["paceline", *words])


def _root_key(root: str) -> list[str]:
    return [] if root == "runs" else ["--set", f"run.root={json.dumps(root)}"]


def _clock(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"


def _arguments(words: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--root", default="runs", help="folder of runs (default: runs)")
    parser.add_argument("--job", type=Path, default=JOB, help="job file to narrow to the demo's packages")
    return parser.parse_args(words)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
