"""``[control.NAME]``: what goes together, and the repair where it does not."""

from __future__ import annotations

import pytest

from paceline.job import Job
from paceline.job.tables.control import MOST_RULES
from paceline.ledger.outcome import Exit, Refused

DATA = {"train": "x.txt"}
ME = {"owner": "me"}


def job(**control: dict) -> Job:
    return Job(data=DATA, train={"steps": 5}, control=control)


def test_a_rule_goes_through_a_file_and_back(tmp_path) -> None:
    made = job(
        spike={"signal": "loss_ratio", "above": 3.0, "action": "rollback"} | ME, cost_usd={"above": 9.0}
    )
    assert Job(**made.to_dict()) == made
    made.save(tmp_path / "job.toml")
    assert Job.load(tmp_path / "job.toml").control == made.control
    changed = made.replace({"control.spike.action": "alert"})
    assert changed.control is not None
    assert changed.control["spike"].action == "alert"
    assert changed.control["spike"].above == 3.0


@pytest.mark.parametrize(
    ("name", "table", "key", "use"),
    [
        ("x", {}, "control.x", "above"),
        ("[control] says", None, "control", ""),
        ("lss", {"above": 1.0}, "control.lss.signal", '"loss"'),
        ("loss", {"action": "alert"}, "control.loss.above", "above"),
        ("loss", {"above": 1.0, "below": 0.5}, "control.loss.", ""),
        ("loss", {"above": 1.0, "action": "stpo"} | ME, "control.loss.action", '"stop"'),
        ("loss", {"above": 1.0, "action": "stop"}, "control.loss.owner", "owner"),
        ("loss", {"above": 1.0, "action": "skip", "owner": " "}, "control.loss.owner", "owner"),
        ("mfu", {"below": 0.1, "action": "skip"} | ME, "control.mfu.action", '"stop"'),
        ("mfu", {"below": 0.1, "action": "rollback"} | ME, "control.mfu.action", '"stop"'),
        ("loss", {"above": float("nan")}, "control.loss.above", ""),
        ("loss", {"above": 1.0, "for_steps": 0}, "control.loss.for_steps", ""),
    ],
)
def test_what_cannot_be_is_refused_with_its_key(name: str, table: dict | None, key: str, use: str) -> None:
    with pytest.raises(Refused) as caught:
        Job(data=DATA, control=5) if table is None else job(**{name: table})
    assert caught.value.exit_code == Exit.USAGE
    assert caught.value.key.startswith(key), caught.value
    assert use in caught.value.use


def test_not_a_number_needs_no_threshold() -> None:
    assert job(nonfinite={"action": "skip"} | ME).control is not None


def test_more_rules_than_are_kept_are_refused() -> None:
    with pytest.raises(Refused) as caught:
        job(**{f"r{n}": {"signal": "loss", "above": 1.0} for n in range(MOST_RULES + 1)})
    assert f"at most {MOST_RULES}" in caught.value.allowed
