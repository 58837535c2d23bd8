"""A part of ``make prove`` in the test suite: the combinations of three and four axes, and a case of each family.

What is not in this version is skipped by name, and never passes; ``make prove`` ends with 61 for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from paceline.api.prove_all import Case, Planned, Proofs
from paceline.plan.combinations import MUST
from paceline.plan.layout import Layout
from tests.prove.families import FAMILIES
from tests.prove.matrix import must, prove_matrix

CASES = 12
SEED = 1


def chosen(planned: Sequence[Planned]) -> Sequence[Planned]:
    """One case for each required combination, then the most axes at once for each family not seen yet."""
    first = list(planned[: len(must()) : 2])
    seen = {p.subject.split()[0] for p in first}
    plain = [p for p in planned[len(must()) :] if p.layout.compile == "off" and 1 < p.layout.world_size <= 4]
    for each in sorted(plain, key=lambda p: (bool(p.absent), -_axes(p.layout), p.layout.world_size)):
        if len(first) == CASES:
            break
        if each.subject.split()[0] not in seen or len(seen) == len(FAMILIES):
            first.append(each)
            seen.add(each.subject.split()[0])
    return first


def _axes(layout: Layout) -> int:
    return sum(layout.degree(axis) > 1 for axis in ("dp", "fsdp", "tp", "pp", "cp", "ep"))


@pytest.fixture(scope="module")
def proofs(tmp_path_factory: pytest.TempPathFactory, cache: str) -> Proofs:
    found = prove_matrix(
        tmp_path_factory.mktemp("prove"), ranks=4, least=0, seed=SEED, steps=3, chosen=chosen
    )
    assert isinstance(found, Proofs)
    return found


def case_of(proofs: Proofs, number: int) -> Case:
    if number >= len(proofs.cases):
        pytest.fail("there are fewer cases than there should be")
    return proofs.cases[number]


@pytest.mark.parametrize("number", range(CASES))
def test_a_combination_trains_the_same_model(proofs: Proofs, number: int) -> None:
    case = case_of(proofs, number)
    named = f"{case.planned.subject} {case.planned.layout}"
    assert case.verdict == "equal", f"{named}: {case.verdict} {case.why}"
    assert case.errors is not None
    assert case.errors["fp64"] < 1e-9


def test_the_required_combinations_are_in_it(proofs: Proofs) -> None:
    layouts = [case.planned.layout for case in proofs.cases]
    for axes in MUST:
        assert any(all(x.degree(axis) == n for axis, n in axes.items()) for x in layouts), axes
    assert {case.planned.subject.split()[0] for case in proofs.cases} == set(FAMILIES)
    assert len(layouts) == CASES


def test_what_has_not_run_is_not_proven(proofs: Proofs, tmp_path: Path) -> None:
    assert proofs.proven == all(case.verdict == "equal" for case in proofs.cases)
    assert proofs.exit_code == (0 if proofs.proven else 61)
