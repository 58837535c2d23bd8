"""A proof as text (interface §10): the headline, a line for each thing compared, and the verdict."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from paceline.evidence.cause import WHERE, Difference
from paceline.evidence.parity import Row
from paceline.plan.layout import Layout

WHAT, WORST = 26, 37
INDENT = " " * 9


def headline(name: str, said: str, layout: Layout, steps: int, legs: Sequence[str]) -> str:
    """Two lines: what runs, and on what."""
    ranks = layout.world_size
    precision = "float64" if legs[:1] == ("fp64",) or "fp64" in legs else ""
    also = [leg for leg in legs if leg != "fp64"]
    how = " and ".join([*([precision] if precision else []), *also])
    small = f"shrunk to {said}" if said else "in its own size"
    return (
        f"prove    {name} {small} · your data · {how} · {steps} steps\n"
        f"{INDENT}single (1 rank) against {layout} ({ranks} rank{'s' if ranks > 1 else ''}); "
        "fresh buffers filled with NaN"
    )


def table(rows: Sequence[Row]) -> str:
    """One line a row: what, worst error, where, limit, verdict."""
    return "\n".join(line(row) for row in rows)


def line(row: Row) -> str:
    """`` gradients, 57 parameters   4.4e-13   layers.2.mlp.down_proj.weight   limit 1e-9   equal``."""
    worst = row.worst if len(row.worst) <= WORST - 2 else "…" + row.worst[-(WORST - 3) :]
    count = f" ({row.differ} of {row.of})" if row.of > 1 else ""
    verdict = "equal" if row.equal else f"DIFFERS{count}"
    error = f"{row.error:.1e}" if math.isfinite(row.error) else "not finite"
    return f" {row.what:<{WHAT}} {error:<9} {worst:<{WORST}}limit {power(row.limit):<6} {verdict}"


def power(value: float) -> str:
    """``1e-9``, ``3.1e-5``."""
    head, _, exponent = f"{value:.1e}".partition("e")
    return f"{head.removesuffix('.0')}e{int(exponent)}"


def verdict(
    layout: Layout, proven: bool, first: Difference | None, seconds: float, path: str, exit_code: int
) -> str:
    """``PROVEN …`` on one line, or ``FAILED …`` on two."""
    if proven:
        return f"PROVEN   {layout} trains the same model · {seconds:.0f} s · {path}"
    assert first is not None
    where = f"belongs to {belonging(first)} · " if belonging(first) else ""
    return f"FAILED   first: {first.headline}\n{INDENT}{where}{path}/evidence/prove.json · exit {exit_code}"


def belonging(first: Difference) -> str:
    """``axis tp (deliver/tp.py)``; where it takes several, which."""
    named = (
        f"axis {first.axis}" if first.axis in ("dp", "fsdp", "tp", "pp", "cp", "ep", "etp") else first.axis
    )
    file = f" ({WHERE[first.axis]})" if first.axis in WHERE else ""
    if len(first.together) > 1:
        needs = " and ".join(first.together)
        return f"{named}{file}, and fails only with {needs} together" if named else f"{needs} together"
    return f"{named}{file}" if named else ""


def case_line(case: Mapping[str, Any], number: int, of: int) -> str:
    """One layout of many: `` 12/64  fsdp=2,tp=2,mbs=3  masked  fp64 4.4e-13 · fp32 3.1e-7  equal``."""
    errors = " · ".join(
        f"{leg} {error:.1e}" if math.isfinite(error) else f"{leg} not finite"
        for leg, error in case["errors"].items()
    )
    why = f"  {case['why']}" if case["why"] else ""
    place = f"{number}/{of}".rjust(2 * len(str(of)) + 1)
    named = " · ".join(
        word for word in (case["subject"], case["features"]) if word and word != case["subject"]
    )
    named = case["subject"] + (f" · {named}" if named else "")
    return f" {place}  {case['layout']:<44} {named:<22} {errors:<30} {case['verdict']}{why}".rstrip()


def summary(proofs: Mapping[str, Any]) -> str:
    """The last lines of ``--all``: how many, and of each that differs the first difference."""
    cases = proofs["cases"]
    verdicts = [case["verdict"] for case in cases]
    counts = [f"{verdicts.count('equal')} of {len(cases)} layouts train the same model"]
    for word, text in (("DIFFERS", "differ"), ("ENDED", "ended with an error"), ("NOT RUN", "did not run")):
        if word in verdicts:
            counts.append(f"{verdicts.count(word)} {text}")
    counts.append(f"{proofs['pairs_refused']} pairs of features are refused by the rule book")
    head = "PROVEN  " if proofs["proven"] else "FAILED  "
    tail = "" if proofs["proven"] else " · exit 61"
    line = f"{head} {' · '.join(counts)} · {proofs['seconds']:.0f} s · {proofs['path']}/evidence/prove.json{tail}"
    return "\n".join([*(f"{INDENT}{note}" for note in proofs["notes"]), line])
