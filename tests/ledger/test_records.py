"""A phase record has every field, and a broken hand-off is refused at its boundary."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from paceline.ledger.folder import create
from paceline.ledger.outcome import Refused
from paceline.ledger.records import (
    FIELDS,
    HANDOFF,
    NOT_STATED,
    RECORDED,
    PhaseRecord,
    check_handoff,
    content_hash,
    gaps,
    parameters_hash,
    read,
    read_all,
    write,
)

# DESIGN §2, in its order: code and design name the same fields.
DESIGN_FIELDS = [
    "objective",
    "owner",
    "inputs",
    "assumptions",
    "decision",
    "changes",
    "rejected",
    "shortcut",
    "evidence",
    "check",
    "uncertainty",
    "resources",
    "controls",
    "handoff",
    "reproduce",
]


def test_the_fields_are_those_of_the_design() -> None:
    assert list(FIELDS) == DESIGN_FIELDS


@pytest.mark.parametrize("n", range(1, 6))
def test_a_record_goes_round_with_every_field(tmp_path: Path, n: int) -> None:
    folder = create(tmp_path, "r")
    handoff = {name: name.upper() for name in HANDOFF[RECORDED[n - 1]]}
    write(folder, n, PhaseRecord(objective="o", decision={"layout": "dp=2"}, handoff=handoff), attempt=2)
    found = read(folder, n)
    assert found is not None
    assert set(FIELDS) <= set(found)
    assert (found["phase"], found["attempt"], found["handoff"]) == (RECORDED[n - 1], 2, handoff)
    assert (folder.phases / f"{n}-{RECORDED[n - 1]}.json").is_file()
    assert "objective" not in gaps(found)
    assert "owner" in gaps(found)


@pytest.mark.parametrize("field", FIELDS)
def test_a_missing_field_is_refused_when_written(tmp_path: Path, field: str) -> None:
    folder = create(tmp_path, "r")
    content = asdict(PhaseRecord())
    for bad in ({k: v for k, v in content.items() if k != field}, content | {field: None}):
        with pytest.raises(ValueError, match=field):
            write(folder, 1, bad)
    with pytest.raises(ValueError, match="misspelt"):
        write(folder, 1, content | {"misspelt": 1})
    assert not list(folder.phases.iterdir())


def test_a_handoff_that_lacks_a_name_is_refused_when_written(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="vocabulary"):
        write(create(tmp_path, "r"), 1, PhaseRecord(handoff={"layout": "single"}))


def test_unreadable_and_missing_records_are_gaps(tmp_path: Path) -> None:
    folder = create(tmp_path, "r")
    write(folder, 2, PhaseRecord())
    (folder.phases / "1-plan.json").write_text("{")
    (folder.phases / "3-deliver.json").write_text(json.dumps({"phase": "deliver", "decision": "x"}))
    records = read_all(folder)
    assert [r is None for r in records] == [True, False, False, True, True]
    assert gaps(records[0]) == list(FIELDS)
    assert gaps(records[1]) == list(FIELDS)
    assert "decision" not in gaps(records[2])


HANDED = {"layout": "dp=2", "global_batch": 8, "job_hash": "a", "data_hash": "b", "tokenizer_hash": "c"}
PLAN = {"phase": "plan", "handoff": HANDED | {"vocabulary": 512}}


def test_what_was_handed_over_and_holds_is_accepted() -> None:
    check_handoff(PLAN, HANDED | {"vocabulary": 512, "more": 1})
    check_handoff(
        {"phase": "deliver", "handoff": {"world_size": 4, "mesh": (2, 2)}}, {"world_size": 4, "mesh": [2, 2]}
    )
    check_handoff({"phase": "plan", "handoff": NOT_STATED}, {})
    check_handoff({"phase": "plan", "handoff": {"data_hash": NOT_STATED}}, {})


@pytest.mark.parametrize("name", [*HANDED, "vocabulary"])
def test_a_name_that_differs_or_is_missing_is_refused_and_named(name: str) -> None:
    have = HANDED | {"vocabulary": 512}
    for wrong in (have | {name: "other"}, {k: v for k, v in have.items() if k != name}):
        with pytest.raises(Refused) as refusal:
            check_handoff(PLAN, wrong)
        assert (refusal.value.exit_code, refusal.value.key) == (33, name)


def test_update_to_recover_ends_with_the_checkpoint_code() -> None:
    record = {"phase": "update", "handoff": {"step": 4, "position": 32, "parameters_hash": "x"}}
    with pytest.raises(Refused) as refusal:
        check_handoff(record, {"step": 4, "position": 40, "parameters_hash": "x"})
    assert (refusal.value.exit_code, refusal.value.key) == (54, "position")


def test_hashes_depend_on_content_and_not_on_order() -> None:
    assert content_hash({"a": 1, "b": 2}) == content_hash({"b": 2, "a": 1})
    assert parameters_hash({"w": (2, 3)}) == parameters_hash({"w": [2, 3]})
    assert parameters_hash({"w": (2, 3)}) != parameters_hash({"w": (3, 2)})
    assert replace(PhaseRecord(), owner="me").owner == "me"
