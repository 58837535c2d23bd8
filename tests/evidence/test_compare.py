"""Differences are attributed as far as they can be, and no further."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from paceline.evidence.compare import Comparison, compare, interpolated
from paceline.evidence.compare_text import columns
from paceline.ledger.folder import create
from paceline.ledger.outcome import Refused
from tests.evidence.synthetic_run import Story, write_run

STEPS = 60


def compared(tmp_path: Path, *stories: Story) -> Comparison:
    return compare([write_run(tmp_path, story) for story in stories])


def causes(comparison: Comparison) -> dict[str, tuple[str, tuple[str, ...]]]:
    return {a.result: (a.cause, a.because) for a in comparison.attributions}


def test_one_changed_key_explains_the_loss(tmp_path: Path) -> None:
    found = compared(
        tmp_path,
        Story(name="a", steps=STEPS),
        Story(name="b", steps=STEPS, loss_shift=0.3, job={"optimizer.lr": 1e-3}),
    )
    assert causes(found) == {"loss at equal tokens": ("technique", ("optimizer.lr",))}
    assert found.ranked == ("a", "b")
    assert found.order == "a < b"
    assert found.attributions[0].settle == ""


def test_a_loss_that_is_not_shown_is_explained(tmp_path: Path) -> None:
    short = write_run(tmp_path, Story(name="short", steps=STEPS))
    late = write_run(tmp_path, Story(name="late", steps=4 * STEPS))
    rows = [json.loads(line) for line in late.metrics.read_text().splitlines()]
    kept = [row for row in rows if row["kind"] != "eval" or row["step"] == 4 * STEPS]
    late.metrics.write_text("".join(json.dumps(row) + "\n" for row in kept))
    text = compare([short, late]).text(200).replace("\n", " ")
    assert "no loss at a common number of tokens (late has its first at " in text


def test_a_layout_explains_speed_but_never_a_loss(tmp_path: Path) -> None:
    found = compared(
        tmp_path,
        Story(name="a", steps=STEPS),
        Story(name="b", steps=STEPS, loss_shift=0.3, step_s=0.2, layout="dp=2"),
    )
    assert causes(found)["tokens_per_s"] == ("technique", ("layout.use",))
    assert causes(found)["loss at equal tokens"] == ("unexplained", ())
    settle = next(a.settle for a in found.attributions if a.result == "loss at equal tokens")
    assert settle.startswith("paceline prove a --layout dp=2")


def test_an_environment_explains_speed(tmp_path: Path) -> None:
    found = compared(
        tmp_path,
        Story(name="a", steps=STEPS),
        Story(name="b", steps=STEPS, step_s=0.6, versions={"torch": "2.12.0"}, job={"optimizer.lr": 1e-3}),
    )
    assert causes(found) == {"tokens_per_s": ("environment", ("versions torch",))}


def test_several_causes_at_once_explain_nothing_and_name_the_run_that_would(tmp_path: Path) -> None:
    found = compared(
        tmp_path,
        Story(name="a", steps=STEPS),
        Story(
            name="b", steps=STEPS, loss_shift=0.3, job={"optimizer.lr": 1e-3}, versions={"torch": "2.12.0"}
        ),
    )
    (attribution,) = found.attributions
    assert attribution.cause == "unexplained"
    assert attribution.settle == "paceline train a --set optimizer.lr=0.001"
    assert "settle: paceline train a --set optimizer.lr=0.001" in found.text(80)


def test_a_difference_without_any_cause_asks_for_a_repetition(tmp_path: Path) -> None:
    found = compared(tmp_path, Story(name="a", steps=STEPS), Story(name="b", steps=STEPS, step_s=0.6))
    assert causes(found) == {"tokens_per_s": ("unexplained", ())}
    assert "paceline train a" in found.attributions[0].settle


def test_runs_on_different_data_are_not_ranked(tmp_path: Path) -> None:
    found = compared(
        tmp_path,
        Story(name="a", steps=STEPS),
        Story(name="b", steps=STEPS, data_hash="sha256:other", loss_shift=-1),
    )
    assert found.ranked == ()
    assert "data differ" in found.refusal
    assert "not ranked: their data differ" in found.text()
    assert ("data hash", "data pipeline") in [(d.key, d.cause) for d in found.differences]


def test_runs_without_a_data_hash_are_not_ranked(tmp_path: Path) -> None:
    folders = [write_run(tmp_path, Story(name=n, steps=STEPS, data_hash="not stated")) for n in "ab"]
    assert compare(folders).ranked == ()


def test_losses_are_compared_at_equal_tokens(tmp_path: Path) -> None:
    """A run of 60 steps against one of 120: at the shorter one's tokens they are equal."""
    found = compared(tmp_path, Story(name="short", steps=60), Story(name="long", steps=120))
    assert found.at_tokens == 60 * 8192
    assert found.runs[0].loss_at == pytest.approx(found.runs[1].loss_at)
    assert found.order == "short = long"


def test_bookkeeping_differs_without_explaining(tmp_path: Path) -> None:
    found = compared(
        tmp_path,
        Story(name="a", steps=STEPS),
        Story(name="b", steps=STEPS, step_s=0.6, job={"checkpoint.keep": 5, "run.note": "x"}),
    )
    assert [(d.key, d.cause) for d in found.differences] == [("checkpoint.keep", "bookkeeping")]
    assert causes(found)["tokens_per_s"] == ("unexplained", ())


def test_it_is_json_and_fits_its_width(tmp_path: Path) -> None:
    found = compared(
        tmp_path,
        Story(name="a" * 30, steps=STEPS),
        Story(name="b", steps=STEPS, ranks=2, job={"model.preset": "small"}),
    )
    again = json.loads(json.dumps(found.to_dict()))
    assert [run["name"] for run in again["runs"]] == ["a" * 30, "b"]
    for width in (80, 100, 140):
        table = found.text(width).split("\n\n")[0].splitlines()[:-1]
        assert max(map(len, table)) <= width


def test_runs_that_never_trained_still_compare(tmp_path: Path) -> None:
    found = compare([create(tmp_path, "a"), create(tmp_path, "b")])
    assert found.ranked == ()
    assert found.text()


def test_one_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Refused) as refusal:
        compare([create(tmp_path, "a")])
    assert refusal.value.exit_code == 2


def test_interpolation_stays_inside_its_points() -> None:
    points = [(0.0, 4.0), (10.0, 2.0)]
    assert interpolated(points, 5.0) == 3.0
    assert interpolated(points, 11.0) is None
    assert interpolated([(3.0, 1.0)], 3.0) == 1.0


def test_columns_are_dropped_from_the_right() -> None:
    rows = [["A", "B", "C"], ["1", "22", "333"]]
    assert columns(rows, 6) == "A  B\n1  22"
    assert columns(rows, 20, right=(1,)) == "A   B  C\n1  22  333"
