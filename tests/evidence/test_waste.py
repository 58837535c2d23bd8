"""The console's time line, in the words of the interface."""

from __future__ import annotations

from pathlib import Path

from paceline.evidence.waste import phase_shares, reason_words, time_line, waste_rows
from paceline.ledger.folder import create
from tests.evidence.synthetic_run import Story, write_run


def row(phase: str, reason: str, share: float) -> dict[str, object]:
    return {"phase": phase, "reason": reason, "seconds": 10 * share, "share": share}


ROWS = [
    row("compute", "forward", 0.3),
    row("compute", "backward", 0.612),
    row("update", "optimizer", 0.039),
    row("recover", "checkpoint", 0.018),
    row("idle", "host", 0.021),
    row("idle", "data", 0.0098),
    row("idle", "ledger", 0.0001),
    row("unattributed", "", 0.0001),
]


def test_it_reads_as_in_the_mock_up() -> None:
    assert time_line(ROWS) == (
        "compute 91.2 · update (optimizer) 3.9 · deliver (communication) 0.0 · recover (checkpoint) 1.8 · "
        "idle 3.1 % (host 2.1, data 1.0)"
    )


def test_unattributed_time_is_shown_when_it_can_be_seen() -> None:
    assert time_line([*ROWS[:-1], row("unattributed", "", 0.02)]).endswith(" · unattributed 2.0")
    assert time_line([row("plan", "search", 0.5), row("compute", "forward", 0.5)]).startswith(
        "plan 50.0 · compute 50.0"
    )


def test_a_run_gives_its_line_and_one_without_a_ledger_none(tmp_path: Path) -> None:
    line = time_line(write_run(tmp_path, Story(steps=20, ranks=2)))
    assert line.startswith("compute ")
    assert "peer" in line
    assert time_line(create(tmp_path, "bare")) == ""


def test_waste_is_what_brings_no_step_nearer() -> None:
    assert [r["reason"] for r in waste_rows(ROWS)][:2] == ["host", "checkpoint"]
    assert sum(phase_shares(ROWS).values()) == 1.0
    assert reason_words("idle", "peer") == "waiting for a late rank"
    assert reason_words("deliver", "fsdp/all_gather") == "fsdp/all_gather"
