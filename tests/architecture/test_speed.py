"""What answers at once stays quick, and what needs no torch never imports it.

Budgets are of a quiet machine. Time is counted as the CPU seconds of the process (a program of one thread
that waits for nothing takes no longer), the fastest of fifteen, and the budget grows by as much as a fixed piece
of work of the same kind (start, and import typer) takes longer here than on the quiet machine.
"""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.shell import ROOT, environment

QUIET_S = 0.1  # CPU seconds of `python -c "import typer"` on the 2-core machine that the budgets were set on
REPEATS = 15


def cpu_seconds(argv: list[str], cwd: Path) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(
        [sys.executable, *argv], cwd=cwd, env=environment(), capture_output=True, timeout=60, check=True
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


@pytest.fixture
def job(tmp_path: Path) -> Path:
    (tmp_path / "input.txt").write_text("to be or not to be\n" * 5000)
    path = tmp_path / "job.toml"
    path.write_text('data.train = "input.txt"\nmodel.preset = "tiny"\ntrain.steps = 200\n')
    return path


@pytest.mark.parametrize(
    ("argv", "budget_s"),
    [
        (["-c", "import paceline"], 0.05),
        (["-m", "paceline", "--help"], 0.3),
        (["-m", "paceline", "plan", "job.toml"], 0.5),
    ],
    ids=lambda value: " ".join(value[1:]) if isinstance(value, list) else "",
)
def test_budget(argv: list[str], budget_s: float, job: Path) -> None:
    cpu_seconds(argv, job.parent)  # writes the bytecode
    took_s, known_s, bare_s = [], [], []
    for _ in range(REPEATS):
        took_s.append(cpu_seconds(argv, job.parent))
        known_s.append(cpu_seconds(["-c", "import typer"], job.parent))
        bare_s.append(cpu_seconds(["-c", "pass"], job.parent))
    slower = max(1.0, min(known_s) / QUIET_S)
    own_s = min(took_s) - (min(bare_s) if argv[0] == "-c" else 0.0)
    assert own_s < budget_s * slower, (
        f"{own_s:.3f} s on a machine {slower:.2f} times slower than the quiet one"
    )


MODULES = """
import sys
{code}
heavy = [name for name in {forbidden} if name in sys.modules]
assert not heavy, heavy
"""


@pytest.mark.parametrize(
    ("code", "forbidden"),
    [
        ("import paceline", ["torch", "pydantic", "numpy", "typer", "rich"]),
        ("import paceline as pl; pl.Job; pl.Layout; pl.Run; pl.runs; pl.compare; pl.plan", ["torch"]),
        ("import paceline as pl; pl.plan(pl.Job.load('job.toml'))", ["torch"]),
        ("from paceline.cli.app import build; build()", ["torch", "pydantic", "numpy", "rich"]),
        (
            "from paceline.cli.app import run; run(['plan', 'job.toml', '-q'])",
            ["torch", "rich", "tokenizers"],
        ),
        ("from paceline.cli.app import run; run(['runs'])", ["torch", "rich", "numpy"]),
        ("from paceline.cli.app import run; run(['job', 'check', 'job.toml'])", ["torch", "rich"]),
        ("from paceline.cli.app import run; run(['cluster', 'list'])", ["torch", "rich"]),
        ("import paceline.api.train, paceline.cli.console, paceline.cli.doctor", ["torch"]),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_not_imported(code: str, forbidden: list[str], job: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", MODULES.format(code=code, forbidden=forbidden)],
        cwd=job.parent, env=environment(), capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_the_environment_is_read_in_one_file() -> None:
    """DESIGN: effects at the edge. Tests and benchmarks may; the package may not."""
    marks = ("os.environ", "os.getenv", "getenv(", "putenv(")
    found = [
        str(path.relative_to(ROOT))
        for path in sorted((ROOT / "paceline").rglob("*.py"))
        if any(mark in path.read_text(encoding="utf-8") for mark in marks)
    ]
    assert found == ["paceline/launch/environment.py"]
