"""How a fault gets into a rank: what stands in for a function of the product while a case runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, ExitStack
from functools import wraps
from importlib import import_module
from typing import Any
from unittest.mock import patch

from paceline.plan.layout import Layout
from paceline.recipes import prove

Patches = Iterable[AbstractContextManager[Any]]
Plant = Callable[[Layout, int], Patches]


def planted(plant: Plant) -> Callable[..., dict[str, Any]]:
    """The rank entry that runs every case with what ``plant(layout, rank)`` patches."""

    @wraps(plant)
    def run(payload: dict[str, Any], place: Any, emit: Any, stop: Any) -> dict[str, Any]:
        run_case = prove.run_case

        def case(case: Any, *rest: Any) -> Any:
            with ExitStack() as held:
                for change in plant(Layout.parse(case.layout), place.rank):
                    held.enter_context(change)
                return run_case(case, *rest)

        with patch.object(prove, "run_case", case):
            return prove.run(payload, place, emit, stop)

    return run


def instead(path: str, new: Callable[..., Any]) -> AbstractContextManager[Any]:
    """``paceline.<path>`` is ``new``, which is handed the original first."""
    module, *inside = path.split(":")
    owner: Any = import_module(f"paceline.{module}")
    *outer, name = inside[0].split(".")
    for each in outer:
        owner = getattr(owner, each)
    original = getattr(owner, name)

    def replaced(*args: Any, **named: Any) -> Any:
        return new(original, *args, **named)

    return patch.object(owner, name, replaced)


def without_sum(of: Callable[[str], bool]) -> Patches:
    """The parameters of these names are forgotten by what sums gradients at the end of a backward."""

    def forgetful(original: Any, named: Any, *rest: Any) -> Any:
        return original([(name, p) for name, p in named if not of(name)], *rest)

    yield instead("deliver.axes:summation", forgetful)
