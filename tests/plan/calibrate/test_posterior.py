"""The process: what it learns, from whom it may not learn, and how sure it says it is."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from paceline.plan.calibrate.example import Example, example, read_examples, write_examples
from paceline.plan.calibrate.groups import engine, family
from paceline.plan.calibrate.packaged import packaged_examples, packaged_stretch, posterior
from paceline.plan.calibrate.posterior import Posterior, Predicted, quantile, stretches
from paceline.plan.calibrate.regime import REGIMES
from paceline.plan.calibrate.sensitivity import log_seconds, sensitivity
from paceline.plan.published.cases import case_of
from paceline.plan.published.cut import Unstated
from paceline.plan.published.runs import OPEN, read_runs
from paceline.plan.speed.rates import AS_PUBLISHED, NAMES
from tests.plan.published.rows import row


def one(**changes: object) -> Example:
    return example(case_of(row(**changes)))


def test_releases_of_a_program_are_one_family() -> None:
    assert family("NeMo / Megatron-Bridge 26.04.01") == family("NeMo / Megatron-Bridge 25.11")
    assert engine("NeMo 25.07") == engine("Megatron-LM (Megatron Core)") == "megatron"
    assert engine("llmq (CUDA/C++)") == family("llmq (CUDA/C++)") == "llmq"


def test_shares_are_of_the_step() -> None:
    """Time that is a product of a multiplier changes with it by its share, so shares of times sum to at most 1."""
    _, shares = sensitivity(case_of(row()))
    by_name = dict(zip(NAMES, shares, strict=True))
    assert 0.4 < by_name["matmul"] < 0.9
    assert by_name["nic"] >= 0
    assert by_name["grouped"] == 0
    slopes = {"narrow", "few_tokens"}
    assert 0.8 < sum(share for name, share in by_name.items() if name not in slopes) < 1.2


@pytest.mark.parametrize("name", NAMES)
def test_every_multiplier_lengthens_some_published_step(name: str) -> None:
    """A multiplier that moves nothing would be one that nothing can teach."""
    column = NAMES.index(name)
    assert max(one.shares[column] for one in packaged_examples()) > 0.01


def test_a_run_is_never_predicted_from_its_own_group() -> None:
    """Whatever its group measured, a cold prediction stays the same; with anchors it follows."""
    mine, same = one(id="a", step_time_s=1.3), one(id="b", micro_batch=2, global_batch=128, step_time_s=2.0)
    other = one(id="c", gpu_type="A100-SXM-80GB", step_time_s=4.0)
    wild = replace(same, measured=same.measured + 2.0)  # type: ignore[operator]
    cold = [Posterior([other, b]).predict([mine])[0].mid for b in (same, wild)]
    assert cold[0] == pytest.approx(cold[1], rel=1e-12)
    warm = [Posterior([other, b], anchors=1).predict([mine])[0].mid for b in (same, wild)]
    assert warm[1] > 2 * warm[0]


def test_anchors_never_include_the_run_itself() -> None:
    mine, same = one(id="a"), one(id="b", micro_batch=2, global_batch=128)
    wild = replace(mine, measured=9.9)
    found = [Posterior([same, a], anchors=2).predict([mine])[0].mid for a in (mine, wild)]
    assert found[0] == pytest.approx(found[1], rel=1e-12)


def test_anchors_of_the_table_teach_only_their_own_group() -> None:
    stranger = one(id="s", hidden=2048, step_time_s=1.0)
    far = replace(stranger, measured=5.0)
    base = [one(id="c", gpu_type="A100-SXM-80GB")]
    found = [Posterior(base, anchors=1, pool=[p]).predict([one(id="a")])[0].mid for p in (stranger, far)]
    assert found[0] == pytest.approx(found[1], rel=1e-12)


def test_knowing_nothing_is_the_closed_form_and_unsure() -> None:
    case = case_of(row())
    (found,) = Posterior([]).predict([example(case)])
    assert found.mid == pytest.approx(math.exp(log_seconds(case)))
    (learnt,) = posterior().predict([example(case)])
    assert learnt.deviation < found.deviation
    assert found.low < found.mid < found.high


def test_a_shared_excess_is_learnt() -> None:
    """Everything that one program runs takes half as long again: so will what it has not run yet."""
    runs = [
        row(id=str(n), hidden=hidden, layers=layers, params_b=None, framework="novel", step_time_s=1.0)
        for n, (hidden, layers) in enumerate([(2048, 16), (4096, 32), (5120, 40), (6144, 48)])
    ]
    cases = [case_of(run) for run in runs]
    seen = [replace(example(case), measured=log_seconds(case) + math.log(1.5)) for case in cases]
    (found,) = Posterior(seen[:3]).predict([seen[3]])
    assert found.mid / math.exp(seen[3].predicted) == pytest.approx(1.5, rel=0.1)


def test_stretches_cover_nine_in_ten() -> None:
    base = one()
    examples = [replace(base, id=str(n), vote="x", measured=base.predicted + 0.001 * n) for n in range(4000)]
    guesses = [Predicted(math.exp(base.predicted), 0.5)] * 4000
    factor = stretches(examples, guesses)["several hosts"]
    wide = 0.5 * factor * 1.6449
    assert sum(0.001 * n <= wide for n in range(4000)) / 4000 == pytest.approx(0.9, abs=0.02)


def test_weighted_quantiles() -> None:
    assert quantile([3.0, 1.0, 2.0], [1, 1, 1], 0.5) == 2.0
    assert quantile([1.0, 2.0], [9, 1], 0.5) == 1.0
    assert quantile([1.0, 2.0], [9, 1], 0.95) == 2.0


def test_examples_are_written_and_read_to_six_digits(tmp_path) -> None:  # type: ignore[no-untyped-def]
    some = [one(id="a"), one(id="b", step_time_s=None)]
    write_examples(tmp_path / "x.csv", some)
    back = read_examples(tmp_path / "x.csv")
    for a, b in zip(some, back, strict=True):
        assert (a.id, a.group, a.family, a.hosts) == (b.id, b.group, b.family, b.hosts)
        assert a.predicted == pytest.approx(b.predicted, rel=1e-5)
        assert a.shares == pytest.approx(b.shares, rel=1e-5, abs=1e-9)
        assert (a.measured is None) == (b.measured is None)


def test_the_packaged_calibration_is_what_the_formulas_say_now() -> None:
    """Some of it priced again: a change of a cost formula needs ``plan_accuracy.py --write``."""
    runs = {run.id: run for run in read_runs(OPEN)}
    assert set(packaged_stretch()) == {"cold", "anchored"}
    assert set(packaged_stretch()["cold"]) <= set(REGIMES)
    for kept in packaged_examples()[::37]:
        try:
            now = example(case_of(runs[kept.id]))
        except Unstated:  # pragma: no cover
            pytest.fail(f"{kept.id} is no case any more")
        assert now.predicted == pytest.approx(kept.predicted, abs=1e-4), kept.id
        assert now.shares == pytest.approx(kept.shares, abs=1e-3), kept.id
        assert now.group == kept.group


def test_no_coordinate_names_a_source_or_a_model() -> None:
    """The same run by another publisher, of a model of another name, is predicted alike."""
    other = one(source_id="y", model_name="Another", id="z")
    here, there = posterior().predict([one(), other])
    assert here == there


def test_rates_keep_their_order() -> None:
    assert AS_PUBLISHED.values() == (0.0,) * len(NAMES)
    assert AS_PUBLISHED.moved("link", 0.5).times("link") == pytest.approx(math.exp(0.5))
