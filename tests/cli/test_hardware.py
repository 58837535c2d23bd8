"""``plan --cluster`` with a choice of hardware, as a person and a program see it."""

from __future__ import annotations

from pathlib import Path

import pytest

from paceline.cli.hardware import hardware_text
from paceline.plan.hardware.menu import parse_menu
from paceline.plan.hardware.search import choose_hardware
from paceline.plan.layout import Layout
from tests.cli.shell import paceline
from tests.plan.answers import LLAMA, job

JOB = """
[run]
name = "eight"
[model]
preset = "llama-3.1-8b"
[data]
train = "input.txt"
tokenizer = "bpe:8192"
sequence_length = 2048
[train]
steps = 3000
global_batch_size = 256
"""
MENU = "p5.48xlargex2,p4d.24xlargex4,Standard_ND96isr_MI300X_v5x1"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "input.txt").write_text("to be or not to be\n" * 100)
    (tmp_path / "job.toml").write_text(JOB)
    return tmp_path


def test_the_choice_stands_above_the_plan_for_it(folder: Path) -> None:
    done = paceline("plan", "job.toml", "--cluster", MENU, "--save", "planned.toml", cwd=folder)
    assert done.code == 0, done.err
    lines = done.out.splitlines()
    assert lines[0] == f"hardware {MENU}, by time"
    chosen = next(line for line in lines if "chosen" in line).split()[0]
    assert f'use = "{chosen}"' in (folder / "planned.toml").read_text()
    assert any(line.startswith("cost     rent $") for line in lines)
    assert any(line.startswith("job      eight") for line in lines)
    assert "3 tried" in done.out


def test_json_has_every_row_with_its_parts(folder: Path) -> None:
    done = paceline("plan", "job.toml", "--cluster", MENU, "--objective", "cost", "--json", cwd=folder)
    assert done.code == 0, done.err
    result = done.object["result"]
    hardware = result["hardware"]
    assert result["objective"] == "cost"
    assert hardware["chosen"] == hardware["rows"][0]["name"] == result["cluster"]
    assert {row["name"] for row in hardware["rows"]} == set(MENU.split(","))
    first = hardware["rows"][0]
    assert first["usd"] == pytest.approx(sum(first["usd_parts"].values()))
    assert first["usd"] == pytest.approx(result["best"]["usd"])
    assert set(result["best"]["usd_parts"]) == {"rent", "egress"}


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["--deadline", "1min"], 12, "--deadline "),
        (["--budget", "5"], 12, "--budget "),
        (["--objective", "memory"], 2, "--objective cost"),
        (["--dry-run"], 2, "one cluster is needed"),
    ],
)
def test_what_cannot_be_ends_with_its_code_and_a_repair(
    folder: Path, words: list[str], code: int, says: str
) -> None:
    done = paceline("plan", "job.toml", "--cluster", MENU, *words, cwd=folder)
    assert done.code == code
    assert says in done.err
    assert "Traceback" not in done.err


def test_a_choice_is_for_plan_alone(folder: Path) -> None:
    done = paceline("train", "job.toml", "--cluster", "aws", cwd=folder)
    assert done.code == 2
    assert "choice of hardware" in done.err


@pytest.mark.parametrize("width", [80, 100, 110])
def test_the_table_fits_the_width(width: int) -> None:
    menu = "Standard_ND96isr_MI300X_v5,Standard_ND96amsr_A100_v4,p5.48xlarge,g6.48xlarge"
    found = choose_hardware(job(LLAMA), parse_menu(menu), measured=None, layout=Layout(auto=True), menu=menu)
    lines = hardware_text(found, width).splitlines()[1:]
    assert max(len(line) for line in lines) <= width
    head = lines[0].split()
    assert head[:5] == ["SHAPE", "HOSTS", "HOURS", "$", "VERDICT"]
    assert ("LAYOUT" in head) == (width >= 100)
    assert any("by hosts" in line for line in lines)
