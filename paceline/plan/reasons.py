"""Why the search stopped where it stopped, and what would make another layout win, in words with numbers."""

from __future__ import annotations

from collections.abc import Mapping

from paceline.plan import money
from paceline.plan.answer import Candidate
from paceline.plan.decide import Judged
from paceline.plan.digits import three
from paceline.plan.layout import Layout
from paceline.plan.weigh import Question


def reason(
    question: Question, best: Candidate, scopes: Mapping[str, Candidate], judged: Judged, wanted: Layout
) -> str:
    """Where the decision stopped on its way device → host → cluster, and why."""
    if not wanted.auto:
        return "as asked" + _idle(question, best)
    if best.scope == "device":
        wider = next((scopes[s] for s in ("host", "cluster") if s in scopes), None)
        if wider is None:
            return "one device: nothing wider was possible here"
        shared = _why_shared(question) if objective(question, wider) > objective(question, best) else ""
        return f"one device: {bare(wider)} is {_times(question, wider, best)} here{shared}"
    device = scopes.get("device")
    if device is not None:
        why = f"{bare(device)} is {_times(question, device, best)}"
    else:
        single = min(
            (r for r in judged.rejected if r.layout.world_size == 1), key=lambda r: r.value, default=None
        )
        why = "one device is not enough"
        if single is not None and single.limit:
            over = {"memory": "does not fit one device", "deadline": "is late on one device"}
            why = f"it {over.get(single.kind, 'is too dear on one device')}"
            why += f" ({three(single.value)} of {three(single.limit)} {single.unit})"
    if best.scope == "cluster" and "host" in scopes:
        why += f"; one host ({bare(scopes['host'])}) is {_times(question, scopes['host'], best)}"
    place = "one host, no cluster needed" if best.scope == "host" else f"{best.layout.world_size} devices"
    return f"{place}: {why}{_idle(question, best)}"


def bare(candidate: Candidate) -> str:
    return str(candidate.layout.cut)


def _times(question: Question, other: Candidate, best: Candidate) -> str:
    ratio = objective(question, other) / objective(question, best)
    word = {"memory": "larger", "cost": "dearer"}.get(question.objective, "slower")
    if ratio >= 1.02:
        return f"{ratio:.2g}× {word}" if ratio < 10 else f"{ratio:.0f}× {word}"
    less = {"larger": "smaller", "dearer": "cheaper", "slower": "faster"}[word]
    return f"not surely {less}" if ratio > 0.98 else f"perhaps {100 * (1 - ratio):.0f} % {less}, not surely,"


def _why_shared(question: Question) -> str:
    if not question.cluster.is_cpu:
        return ""
    cores = question.cluster.devices
    return f": {'both' if cores == 2 else f'all {cores}'} cores share one memory bus" if cores > 1 else ""


def _idle(question: Question, best: Candidate) -> str:
    world, devices = best.layout.world_size, question.cluster.world
    if question.cluster.is_cpu or world >= devices:
        return ""
    return f"; {devices - world} of {devices} devices idle"


def objective(question: Question, candidate: Candidate) -> float:
    if question.objective == "memory":
        return candidate.memory_gib[2]
    world = candidate.layout.world_size
    return candidate.step_s[1] * (
        money.weight(question.cluster, world) if question.objective == "cost" else 1
    )


def wins_when(candidate: Candidate, best: Candidate) -> str:
    """What would make a slower candidate win: less communication, or a smaller micro-batch's memory."""
    if candidate.step_s[1] < best.step_s[1]:
        return "wins when a measurement says so: it is not surely faster"
    rest = candidate.step_s[1] - candidate.terms["deliver_s"]
    if candidate.terms["deliver_s"] > 0 and rest < best.step_s[1]:
        need = candidate.terms["deliver_s"] / max(best.step_s[1] - rest, 1e-9)
        return f"wins when communication is {need:.1f}× faster"
    if candidate.layout.cut == best.layout.cut:
        return f"wins when memory allows only mbs={candidate.layout.mbs}"
    return "wins when the other layouts do not fit"
