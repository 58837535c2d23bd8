"""Where the planner says that it does not know (exit 14), and names the measurement that would settle it.

Three cases, and no others: inside an ordinary interval the simplest layout stands, which is an answer too.

* A device whose rate no data sheet and no measurement says: nothing can be priced.
* A deadline or a budget inside an interval so wide that it says neither yes nor no. (Inside a narrower one the run is
  refused with 12, since a limit is promised at the upper end.)
* Devices between which nobody said what the link is, where a slow and a fast one lead to different scopes, and the
  wrong one costs a lot.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NoReturn

from paceline.ledger.outcome import Exit, Refused
from paceline.plan import chance
from paceline.plan.answer import Candidate, Plan, Rejection
from paceline.plan.decide import price
from paceline.plan.digits import three
from paceline.plan.layout import Layout
from paceline.plan.speed.cpu import CpuSpeeds
from paceline.plan.weigh import Question

if TYPE_CHECKING:
    from paceline.plan.assumptions import Assumption
    from paceline.plan.sensitivity import Leading

HOPELESS = 5.0
"""From here on the upper end of an interval over its lower one says neither yes nor no."""
STAKES = 1.5
"""Times as long, or as dear, that the wrong scope must at least take: for less a guess is good enough."""
SLOWEST, FASTEST = 0.1, 40.0
"""Times the rate that is taken where none is known: 1 to 400 Gbit/s between hosts, 0.1 to 40 GB/s inside one."""


def check_rate(question: Question) -> None:
    """Whether the devices' rate is known at all.

    Raises:
        Refused: 14, it is not.
    """
    sheet = question.cluster.accelerator
    if question.cluster.is_cpu or sheet.peak_flops.get("bf16") or sheet.peak_flops.get("fp16"):
        return
    raise Refused(
        f"how fast {sheet.name} multiplies is not known: nothing can be priced",
        exit_code=Exit.ABSTAIN,
        key="cluster.accelerator",
        seen=f"{sheet.name} has neither a bf16 nor an fp16 peak",
        rule="a price rests on a rate that was measured, or that a data sheet states",
        use="an accelerator of `paceline cluster list`; or on that machine a few steps: paceline train JOB --layout L",
    )


def check_limit(question: Question, least: Rejection) -> None:
    """Whether the run that comes nearest to its deadline or budget is surely over it, or only perhaps.

    Raises:
        Refused: 14, its interval holds the limit and is wider than ``HOPELESS``.
    """
    low, high = _ends(question, least)
    if not (low < least.limit and high / low > HOPELESS):
        return
    word = "deadline" if least.kind == "deadline" else "budget"
    raise Refused(
        f"whether the {word} can be met is not known",
        exit_code=Exit.ABSTAIN,
        key="layout.deadline" if least.kind == "deadline" else "layout.budget_usd",
        seen=f"{least.layout}: {three(low)} to {three(high)} {least.unit} (90 %) of {three(least.limit)}; "
        f"{100 * inside(question, least):.0f} % likely to be inside it",
        rule=f"an interval whose ends are more than {HOPELESS:.0f} times apart decides nothing that lies inside it",
        use=_measurement(question),
    )


def inside(question: Question, one: Rejection) -> float:
    """Probability that a layout keeps the limit that it was rejected for."""
    low, high = _ends(question, one)
    return 1.0 - chance.exceeds(math.sqrt(low * high), one.limit, math.log(high / low) / (2 * chance.NINETY))


def _ends(question: Question, one: Rejection) -> tuple[float, float]:
    """Both ends of its interval in the unit of the limit; ``value`` is the upper one."""
    low, _, high = price(question, one.layout).step_s
    return one.value * low / high, one.value


def _measurement(question: Question) -> str:
    speeds = question.speeds
    if isinstance(speeds, CpuSpeeds) and speeds.busy:
        return "paceline cluster measure, while nothing else runs here"
    if question.cluster.visible:
        return "paceline cluster measure"
    return "on that machine: paceline cluster measure --out lab.toml; then --cluster lab.toml"


def check_link(plan: Plan) -> None:
    """Whether the scope hangs on a link that nobody stated.

    Raises:
        Refused: 14, a slow and a fast one lead to different scopes, ``STAKES`` apart.
    """
    question = plan.question
    if question is None or not plan.auto or question.objective == "memory" or question.cluster.is_cpu:
        return
    cluster = question.cluster
    unknown = {"link.inter": not cluster.nic_bytes_per_s, "link.intra": not cluster.link_bytes_per_s}
    if not any(unknown.values()):
        return
    # Why late: of an ordinary cluster every link is stated, and a plan is made in half a second.
    from paceline.plan.assumptions import assumptions
    from paceline.plan.sensitivity import Leading

    for one in assumptions(question):
        if unknown.get(one.name):
            _check_one(question, Leading(question, plan), one)


def _check_one(question: Question, leading: Leading, one: Assumption) -> None:
    slow, fast = (one.changed(question, factor) for factor in (SLOWEST, FASTEST))
    with_slow, with_fast = leading.choice(slow), leading.choice(fast)
    if with_slow is None or with_fast is None or with_slow.scope == with_fast.scope:
        return
    # What the layout for the one link takes on the other: a wrong guess, either way.
    too_wide = _ratio(slow, with_fast.layout, with_slow)
    too_narrow = _ratio(fast, with_slow.layout, with_fast)
    if max(too_wide, too_narrow) >= STAKES:
        _abstain(one, with_slow, with_fast, max(too_wide, too_narrow))


def _ratio(question: Question, layout: Layout, right: Candidate) -> float:
    wrong = price(question, layout)
    weights = (wrong, right) if question.objective == "cost" else ()
    sizes = [candidate.layout.world_size for candidate in weights] or [1, 1]
    return wrong.step_s[1] * sizes[0] / (right.step_s[1] * sizes[1])


def _abstain(one: Assumption, slow: Candidate, fast: Candidate, stakes: float) -> NoReturn:
    told = [
        f"at {one.text(factor)} {found.layout.cut}, {three(found.step_s[1])} s a step"
        for factor, found in ((SLOWEST, slow), (FASTEST, fast))
    ]
    between = "hosts" if one.name == "link.inter" else "devices of a host"
    raise Refused(
        f"{_SCOPE[slow.scope]} or {_SCOPE[fast.scope]}: that hangs on the link between {between}, which nobody stated",
        exit_code=Exit.ABSTAIN,
        key=f"cluster.{one.name}",
        seen="; ".join(told),
        rule=f"a wrong guess would take {three(stakes)} times as long; from {STAKES} times on nothing is guessed",
        allowed=f"what an all-gather between two {between} reaches when it is measured, or what was bought",
        use=f"--set cluster.{one.name}={round(8 * one.value) if one.unit == 'GB/s' else round(one.value)}Gbit",
    )


_SCOPE = {"device": "one device", "host": "one host", "cluster": "several hosts"}
