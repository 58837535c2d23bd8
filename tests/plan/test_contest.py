"""Of layouts that were run, what was measured decides; what cannot be told apart goes to the simplest."""

from __future__ import annotations

import pytest

from paceline.job import Job
from paceline.ledger.outcome import Exit, Refused
from paceline.plan.answer import Plan
from paceline.plan.cluster import parse_cluster
from paceline.plan.contest import Timing, chance_faster, contestants, decided
from paceline.plan.layout import Layout
from paceline.plan.search import plan
from paceline.plan.show import table

JOB = {
    "model.preset": "llama-3.1-8b",
    "data.train": "python-stdlib",
    "data.sequence_length": 4096,
    "train.global_batch_size": 64,
    "train.steps": 1000,
}


@pytest.fixture(scope="module")
def planned() -> Plan:
    return plan(Job().replace(JOB), cluster=parse_cluster("8xH100-SXM-80GB"), measured=None, top=3)


def around(seconds: float, spread: float = 0.01) -> Timing:
    return Timing(tuple(seconds * (1 + spread * (i % 5 - 2)) for i in range(10)), memory_gib=50.0)


def timings(planned: Plan, *seconds: float) -> dict[Layout, Timing]:
    return {c.layout: around(s) for c, s in zip(planned.candidates, seconds, strict=False)}


def test_the_fastest_measured_is_chosen_whatever_was_predicted(planned: Plan) -> None:
    found = decided(planned, timings(planned, 9.0, 8.0, 6.0))
    last = planned.candidates[2]
    assert found.best.layout == last.layout
    assert found.best.step_s[1] == pytest.approx(6.0)
    assert found.best.predicted_s == last.step_s
    assert [c.verdict for c in found.candidates] == ["chosen", "slower", "slower"]
    assert [c.step_s[1] for c in found.candidates] == pytest.approx([6.0, 8.0, 9.0])
    assert "measured 6 s a step over 10 steps" in found.reason.replace("6.00", "6")


def test_hours_money_and_rate_follow_the_measured_step(planned: Plan) -> None:
    found = decided(planned, timings(planned, 4.0, 5.0, 6.0)).best
    assert found.hours is not None
    assert found.hours[1] == pytest.approx(4.0 * 1000 / 3600 / planned.best.goodput)
    assert found.tokens_per_s == pytest.approx(64 * 4096 / 4.0)
    assert found.usd == pytest.approx(found.hours[1] * 8 * planned.cluster.usd_per_device_hour)
    assert found.to_dict()["kind_of_evidence"] == "measured"
    assert found.to_dict()["measured_gib"] == 50.0
    assert "kind_of_evidence" in planned.best.to_dict()
    assert planned.best.to_dict()["kind_of_evidence"] == "calculated"


def test_a_tie_goes_to_the_simplest(planned: Plan) -> None:
    many = Layout.parse("fsdp=4,tp=2,mbs=1")
    one = plan(Job().replace(JOB), cluster=planned.cluster, measured=None, layout="fsdp=8,mbs=1").best
    other = plan(Job().replace(JOB), cluster=planned.cluster, measured=None, layout=str(many)).best
    from dataclasses import replace

    two = replace(planned, best=other, candidates=[other, one], scopes={"host": other})
    near = {other.layout: around(5.00, 0.05), one.layout: around(5.02, 0.05)}
    assert decided(two, near).best.layout == one.layout
    far = {other.layout: around(4.5), one.layout: around(5.02)}
    assert decided(two, far).best.layout == other.layout


def test_one_that_failed_is_told_and_not_chosen(planned: Plan) -> None:
    first, second, third = (c.layout for c in planned.candidates)
    found = decided(
        planned,
        {first: Timing(failed="failed: out of memory (exit 23)"), second: around(5), third: around(6)},
    )
    assert found.best.layout == second
    [broken] = [c for c in found.candidates if c.layout == first]
    assert broken.verdict == "failed: out of memory (exit 23)"
    assert broken.predicted_s is None


def test_none_that_runs_is_a_refusal(planned: Plan) -> None:
    with pytest.raises(Refused) as refused:
        decided(planned, {planned.best.layout: Timing(failed="failed: a rank died (exit 58)")})
    with pytest.raises(Refused) as caught:
        decided(planned, {planned.best.layout: Timing(failed="failed: loss = nan (exit 41)", code=41)})
    assert caught.value.exit_code == 41
    assert refused.value.exit_code == Exit.MEMORY
    assert "a rank died" in refused.value.seen


def test_the_measured_time_is_held_to_the_deadline(planned: Plan) -> None:
    from dataclasses import replace

    hurried = replace(planned, job=planned.job.replace({"layout.deadline": "90min"}))
    least = planned.best.goodput  # 90 minutes of 1000 steps are 5.4 s a step, failures and saves aside
    assert decided(hurried, timings(planned, 7.0, 5.0, 6.0)).best.step_s[1] == pytest.approx(5.0)
    assert least > 5.0 / 5.4
    with pytest.raises(Refused) as refused:
        decided(hurried, timings(planned, 7.0, 5.6, 6.0))
    assert refused.value.exit_code == Exit.DEADLINE
    assert "5.6" in refused.value.seen


def test_the_cheapest_is_chosen_when_cost_is_the_objective(planned: Plan) -> None:
    from dataclasses import replace

    job = Job().replace(JOB | {"layout.objective": "cost", "model.preset": "tiny"})
    small = plan(job, cluster=parse_cluster("8xH100-SXM-80GB"), measured=None, top=4)
    by_world = {c.layout.world_size: c for c in (*small.candidates, *small.scopes.values())}
    one, wide = by_world[1], max(by_world.values(), key=lambda c: c.layout.world_size)
    two = replace(small, best=one, candidates=[one, wide], scopes={})
    found = decided(two, {one.layout: around(1.0), wide.layout: around(0.8)})
    assert found.best.layout == one.layout
    assert found.candidates[1].verdict == "dearer"


def test_the_chosen_and_every_scope_run_first(planned: Plan) -> None:
    assert [c.layout for c in contestants(planned, 1)] == [planned.best.layout]
    ran = [c.layout for c in contestants(planned, 3)]
    assert len(set(ran)) == 3
    assert {c.layout for c in planned.scopes.values()} <= set(ran)


def test_the_chance_counts_what_repeats() -> None:
    assert chance_faster([1.0, 1.1, 0.9], [2.0, 2.1, 1.9]) == 1.0
    assert chance_faster([2.0, 2.1, 1.9], [1.0, 1.1, 0.9]) == 0.0
    assert chance_faster([1.0, 1.0], [1.0, 1.0]) == 0.5
    same = [1.0, 1.2, 0.8, 1.1, 0.9]
    assert 0.2 < chance_faster(same, same[::-1]) < 0.8


def test_the_table_shows_both(planned: Plan) -> None:
    text = table(decided(planned, timings(planned, 9.0, 8.0, 6.0)), width=110)
    head = next(line for line in text.splitlines() if line.startswith(" #"))
    assert "step s" in head
    assert "predicted" in head
    assert "verdict" in head
