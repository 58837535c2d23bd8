"""Rows go round, survive a kill, and no chart of them runs backward."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from paceline.ledger.metrics import MetricsWriter, columns, counted_rows, last_row, read_rows


def row(step: int, attempt: int = 0, kind: str = "train", **more: object) -> dict[str, object]:
    return {"kind": kind, "step": step, "attempt": attempt, "time_s": float(step), **more}


def test_for_one_step_the_greatest_attempt_counts_and_lost_rows_stay(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    writer = MetricsWriter(path)
    for step in (1, 2, 3, 4):
        writer.write(row(step, loss=10.0 - step))
    for step in (3, 4, 5):
        writer.write(row(step, attempt=1, loss=20.0 - step))
    writer.write(row(3, attempt=0, loss=-1.0))  # a late row of the lost attempt
    writer.close()
    found = columns(path)
    assert found["step"] == [1, 2, 3, 4, 5]
    assert found["loss"] == [9.0, 8.0, 17.0, 16.0, 15.0]
    assert len(list(read_rows(path))) == 8


def test_a_torn_line_is_ignored_and_the_next_writer_starts_a_new_one(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    writer = MetricsWriter(path)
    writer.write(row(1))
    writer.close()
    with path.open("ab") as file:
        file.write(b'{"kind":"train","step":2,"lo')
    writer = MetricsWriter(path)
    writer.write(row(3))
    writer.close()
    writer.close()
    assert [r["step"] for r in read_rows(path)] == [1, 3]


def test_not_finite_is_written_as_null_and_said(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    writer = MetricsWriter(path)
    writer.write(row(1, loss=math.nan, grad_norm=math.inf, lr=0.1))
    writer.write(row(2, loss=1.0, by_group=[1.0, -math.inf]))
    writer.write(row(3, loss=1.0, tuple=(1, 2)))
    writer.close()
    first, second, third = (json.loads(line, parse_constant=pytest.fail) for line in path.open())
    assert (first["loss"], first["grad_norm"], first["lr"], first["nonfinite"]) == (None, None, 0.1, 1)
    assert (second["by_group"], second["nonfinite"]) == ([1.0, None], 1)
    assert "nonfinite" not in third
    assert math.isnan(columns(path)["loss"][0])


def test_columns_have_equal_length_whatever_rows_lack(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    writer = MetricsWriter(path)
    writer.write(row(1, kind="eval", set="eval", loss=2.0))
    writer.write(row(1, kind="eval", set="long", loss=3.0))
    writer.write(row(2, kind="eval", set="eval", perplexity=7.0))
    found = columns(path, "eval")
    assert found["set"] == ["eval", "long", "eval"]
    assert found["loss"][:2] == [2.0, 3.0]
    assert {len(column) for column in found.values()} == {3}
    assert columns(path, "train") == {}
    assert columns(tmp_path / "absent.jsonl") == {}


def test_events_are_all_kept(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    writer = MetricsWriter(path)
    for event in ("checkpoint", "control", "stop"):
        writer.write(row(5, kind="event", event=event))
    assert [r["event"] for r in counted_rows(path, "event")] == ["checkpoint", "control", "stop"]


@pytest.mark.parametrize("bad", [{"kind": "train", "step": 1}, row(1, kind="lunch"), {}])
def test_a_row_without_its_keys_is_refused(tmp_path: Path, bad: dict[str, object]) -> None:
    with pytest.raises(ValueError):
        MetricsWriter(tmp_path / "metrics.jsonl").write(bad)


def test_the_last_row_is_read_from_the_end(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    writer = MetricsWriter(path)
    for step in range(500):
        writer.write(row(step, loss=1.0))
    writer.write(row(499, kind="event", event="stop"))
    assert (last_row(path, window_bytes=400) or {})["step"] == 499
    assert (last_row(path, "event") or {})["event"] == "stop"
    assert last_row(path, "round") is None
    assert last_row(tmp_path / "absent.jsonl") is None


HOSTILE = [
    "[" * 100_000,
    '{"kind":"train","step":"x","attempt":0,"time_s":1}',
    '{"kind":"train","step":2,"attempt":"1","time_s":1}',
    '{"kind":"train","step":-3,"attempt":0}',
    '{"kind":"train","step":' + "9" * 400 + ',"attempt":0}',
    '{"kind":"train","step":true,"attempt":0}',
    '{"kind":"train","attempt":0}',
    '{"kind":["train"],"step":1,"attempt":0}',
    "[1]",
    "null",
]


def test_a_row_of_wrong_types_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    good = json.dumps(row(1, loss=2.0))
    path.write_text("\n".join([HOSTILE[0], good, *HOSTILE[1:]]) + "\n")
    assert [r["step"] for r in read_rows(path)] == [1]
    assert columns(path)["step"] == [1]
    assert (last_row(path) or {})["step"] == 1


@pytest.mark.parametrize("value", ["NaN", "1e999", "-Infinity", "1e308", "9" * 400, '"x"', "[1]", "{}"])
def test_a_value_that_is_no_number_is_left_out_alone(tmp_path: Path, value: str) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text(f'{{"kind":"train","step":1,"attempt":0,"time_s":1,"loss":{value},"lr":0.5}}\n')
    found = columns(path)
    assert math.isnan(found["loss"][0])
    assert found["lr"] == [0.5]
    assert (last_row(path) or {"loss": 0})["loss"] is None
