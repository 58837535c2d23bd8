"""The public names of interface §12 are there, lazily, and what has not arrived refuses by name."""

from __future__ import annotations

import subprocess
import sys

import pytest

import paceline as pl
from paceline.ledger.outcome import Exit
from tests.cli.shell import environment

INTERFACE = {
    "Job", "Layout", "plan", "train", "Run", "runs", "load", "prove", "evaluate", "claim", "compare",
    "diagnose", "Refused", "Failed", "Preempted", "PacelineError",
}  # fmt: skip


def test_every_name_of_the_interface_is_there() -> None:
    assert set(pl.__all__) >= INTERFACE
    for name in pl.__all__:
        assert getattr(pl, name) is not None
    assert set(dir(pl)) >= INTERFACE


def test_the_stub_types_the_same_names() -> None:
    from pathlib import Path

    stub = (Path(pl.__file__).parent / "__init__.pyi").read_text()
    assert {name for name in pl.__all__ if f" as {name}\n" in stub or f"{name}: str" in stub} == set(
        pl.__all__
    )


@pytest.mark.parametrize(
    "first",
    ["pass", "import paceline.plan.layout", "from paceline import Layout", "import paceline.plan as p; p"],
)
def test_plan_is_a_function_and_a_package_in_any_order(first: str) -> None:
    """``paceline.plan`` is phase 1's folder and a word of the interface; neither may hide the other."""
    code = f"""
import paceline as pl
{first}
from paceline.plan.layout import Layout
assert callable(pl.plan), type(pl.plan)
import paceline.plan.search
assert paceline.plan.search.plan is not None and callable(pl.plan)
try:
    pl.plan("no-such-job.toml")
except pl.Refused as error:
    assert error.exit_code == 2
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", ["claim", "evaluate", "diagnose"])
def test_what_has_not_arrived_refuses_by_name(name: str) -> None:
    with pytest.raises(pl.Refused) as caught:
        getattr(pl, name)("last", anything=1)
    assert caught.value.exit_code == Exit.USAGE
    assert caught.value.message == f"pl.{name} is not in this version"


def test_an_unknown_name_lists_the_known() -> None:
    with pytest.raises(AttributeError, match=r"fit.*it has .*train"):
        _ = pl.fit
