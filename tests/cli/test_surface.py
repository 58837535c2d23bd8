"""Help shows the four groups and every command of interface §2; the table below is that section."""

from __future__ import annotations

import re

import pytest

from paceline.cli.surface import COMMANDS, GROUPS
from tests.cli.shell import in_process, paceline

# command → (group, capability it arrives with, "" = here, its options without the common ones)
INTERFACE: dict[str, tuple[str, str, str]] = {
    "plan": (
        "Decide", "",
        "--cluster --layout --top --what-if --objective --deadline --budget --measure --scale --save --draw "
        "--dry-run --rank --score --calibrate --anchors --out --set",
    ),
    "prove": ("Decide", "", "--layout --all --steps --leg --shrink --set"),
    "claim": ("Decide", "05", "--ablate --shadow --canary"),
    "train": (
        "Run", "",
        "--layout --cluster --name --resume --allow-change --set --max-time --profile --dry-controls",
    ),
    "eval": ("Run", "06", "--data"),
    "sample": ("Run", "", "--prompt --tokens --temperature --seed"),
    "launch": ("Run", "08", "--print --check --submit"),
    "federate": ("Run", "07", "--serve --join --approve --make-keys"),
    "runs": ("Look", "", ""),
    "runs stop": ("Look", "", ""),
    "runs approve": ("Look", "05", ""),
    "runs delete": ("Look", "", "--yes"),
    "watch": ("Look", "05", ""),
    "logs": ("Look", "", "--rank --host --follow"),
    "compare": ("Look", "", ""),
    "report": ("Look", "", "--open --live --export"),
    "replay": ("Look", "", "--step --layout"),
    "diagnose": ("Look", "05", ""),
    "checkpoint list": ("Keep", "", ""),
    "checkpoint inspect": ("Keep", "", ""),
    "checkpoint verify": ("Keep", "", ""),
    "checkpoint reshard": ("Keep", "", "--layout --out"),
    "checkpoint import": ("Keep", "", "--job --layout --set"),
    "checkpoint export": ("Keep", "", "--to"),
    "cluster list": ("Keep", "", ""),
    "cluster show": ("Keep", "", ""),
    "cluster measure": ("Keep", "", "--from --out"),
    "job new": ("Keep", "", ""),
    "job check": ("Keep", "", "--set"),
    "job show": ("Keep", "", "--set"),
    "job keys": ("Keep", "", ""),
    "job schema": ("Keep", "", ""),
    "doctor": ("Keep", "", ""),
}  # fmt: skip
COMMON = {"--json", "--quiet", "--verbose", "--color", "--help"}


def test_help_shows_the_four_groups_and_every_command_in_order() -> None:
    done = paceline("--help")
    assert (done.code, done.err) == (0, "")
    found: dict[str, tuple[str, bool]] = {}
    group = ""
    for line in done.out.splitlines():
        if line in GROUPS:
            group = line
        words = re.match(r"  ((?:runs|checkpoint|cluster|job) [a-z]+|[a-z]+)\b", line)
        if group and words:
            found[words[1]] = (group, "(not in this version)" in line)
    assert found == {name: (group, bool(later)) for name, (group, later, _) in INTERFACE.items()}


def test_the_table_of_commands_is_the_interface() -> None:
    assert {c.name: (c.group, c.arrives) for c in COMMANDS} == {n: row[:2] for n, row in INTERFACE.items()}


@pytest.mark.parametrize("name", INTERFACE)
def test_the_help_of_each_command_names_its_options(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    done = in_process(capsys, *name.split(), "--help")
    assert (done.code, done.err) == (0, "")
    named = set(re.findall(r"(?m)^ +(?:-\w, )?(--[a-z][a-z-]*)", done.out))
    _, later, options = INTERFACE[name]
    if later:
        assert set(options.split()) <= named
        assert "Not in this version" in " ".join(done.out.split())
    else:
        assert named == set(options.split()) | COMMON


def test_without_a_word_the_help_is_shown() -> None:
    assert paceline().out == paceline("--help").out
