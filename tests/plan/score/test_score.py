"""Scores: errors by source, ranking, the table of predictions."""

from __future__ import annotations

import csv
import math
from dataclasses import replace
from pathlib import Path

import pytest

from paceline.plan.calibrate.posterior import Predicted
from paceline.plan.published.runs import OPEN, read_runs
from paceline.plan.score.errors import by_group, by_source, counts, middle, overall, worst
from paceline.plan.score.ranking import contests, ranking, ranks, spearman
from paceline.plan.score.score import score
from paceline.plan.score.scored import COLUMNS, Scored, asked
from paceline.plan.score.show import text
from tests.plan.published.rows import row


def told(run_id: str, error: float, **changes: object) -> Scored:
    """A run whose prediction is off by a logarithm."""
    (question,) = asked([row(id=run_id, **changes)])
    assert question.example is not None
    assert question.example.measured is not None
    guess = Predicted(math.exp(question.example.measured + error), 0.1)
    return replace(question, predicted=guess)


def test_every_source_has_one_vote() -> None:
    many = [told(f"m{n}", 0.5, source_id="many") for n in range(9)]
    few = [told("f", 0.0, source_id="few"), told("g", 0.0, source_id="third")]
    whole = overall([*many, *few])
    assert whole is not None
    assert whole.median == pytest.approx(0.0, abs=1e-9)
    assert whole.covered == pytest.approx(2 / 3)
    assert [errors.name for errors in by_source([*many, *few])] == ["few", "many", "third"]


def test_a_median_of_two_lies_between_them_and_weights_move_it() -> None:
    assert middle([0.023, 0.33], [1, 1]) == pytest.approx(0.1765)
    assert middle([1.0, 2.0, 3.0], [1, 1, 1]) == 2.0
    assert middle([1.0, 2.0, 3.0], [0.2, 0.2, 1.0]) == 3.0


def test_signed_errors_keep_their_sign_and_the_worst_is_named() -> None:
    scored = [told("a", -0.4), told("b", -0.3), told("c", 0.1)]
    (errors,) = by_source(scored)
    assert errors.signed == pytest.approx(-0.3)
    assert [one.run.id for one in worst(scored, 2)] == ["a", "b"]
    assert len(by_group(scored)) == 1


@pytest.mark.parametrize(
    ("changes", "judged"),
    [
        ({}, True),
        ({"quality": "", "completeness": "", "task": ""}, True),
        ({"quality": "noisy"}, False),
        ({"completeness": "C"}, False),
        ({"task": "sft"}, False),
    ],
)
def test_what_judges(changes: dict[str, object], judged: bool) -> None:
    assert counts(told("a", 0.0, **changes)) is judged


def test_ties_share_their_ranks() -> None:
    assert ranks([1.0, 3.0, 3.0, 2.0]) == [1.0, 3.5, 3.5, 2.0]
    assert spearman([1.0, 1.0, 1.0], [1.0, 2.0, 3.0]) == 0.0
    assert spearman([1.0, 2.0, 3.0, 4.0], [10.0, 20.0, 30.0, 40.0]) == pytest.approx(1.0)


def contest(errors: list[float], times: list[float]) -> list[Scored]:
    cuts = [{"tp": 1}, {"tp": 2}, {"tp": 4}, {"tp": 8}, {"pp": 2}]
    return [
        told(str(n), error, step_time_s=seconds, **cut)
        for n, (error, seconds, cut) in enumerate(zip(errors, times, cuts, strict=False))
    ]


def test_regret_is_what_the_first_costs_over_the_best() -> None:
    right = ranking(contests(contest([0, 0, 0, 0], [1.0, 1.2, 1.5, 2.0])))
    wrong = ranking(contests(contest([1.0, -1.0, 0, 0], [1.0, 1.2, 1.5, 2.0])))
    assert right is not None
    assert wrong is not None
    assert (right.contests, right.regret, right.spearman) == (1, pytest.approx(0), pytest.approx(1))
    assert wrong.regret_max == pytest.approx(0.2)
    assert wrong.spearman < 1


def test_three_layouts_are_no_contest() -> None:
    assert contests(contest([0, 0, 0], [1.0, 1.2, 1.5])) == []
    assert ranking([]) is None


def test_the_table_of_predictions(tmp_path: Path) -> None:
    runs = [row(id="a", recompute=""), row(id="b", layers=None), row(id="c", step_time_s=None)]
    found = score(runs)
    found.write(tmp_path / "out.csv")
    with (tmp_path / "out.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert tuple(rows[0]) == COLUMNS
    assert [line["status"] for line in rows] == ["ok", "refused", "ok"]
    assert rows[1]["reason"] == "layers is not stated"
    assert "recompute=none" in rows[0]["assumed"]
    low, mid, high = (float(rows[0][f"step_time_{part}s"]) for part in ("low_", "", "high_"))
    assert low < mid < high
    assert float(rows[0]["tokens_per_s_per_gpu"]) == pytest.approx(8192 / mid, rel=1e-3)
    assert float(rows[0]["peak_allocated_gib"]) <= float(rows[0]["peak_device_gib"])
    assert found.to_dict()["judged"] == 1


def test_a_table_without_measurements_is_predicted_and_not_judged() -> None:
    found = score([row(id="a", step_time_s=None)])
    assert found.all() is None
    assert "judged   none" in text(found)


def test_a_sample_of_the_open_tables_is_within_the_bars() -> None:
    """One run in nine, every source: a cold median above 12 % would be a planner that has got worse."""
    runs = [run for run in read_runs(OPEN) if run.completeness in ("A", "B")]
    some = [run for n, run in enumerate(runs) if n % 9 == 0 and run.source_id != "vtrain-single"]
    found = score(some).all()
    assert found is not None
    assert found.runs > 70
    assert found.median < 0.12
    assert found.covered > 0.8
