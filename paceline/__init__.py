"""Paceline trains PyTorch models on one device or on many, and shows its work.

The public names (interface §12) are found on first use, so that ``import paceline`` costs milliseconds and
never imports torch. A name of the interface that has not arrived is there, and refuses by name when called.
Their types are in ``__init__.pyi``.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import Any

__version__ = "0.1.0"

_HOME = {
    "Job": "paceline.job:Job",
    "Layout": "paceline.plan.layout:Layout",
    "train": "paceline.api.train:train",
    "load": "paceline.api.load:load",
    "sample": "paceline.api.sample:sample",
    "Run": "paceline.api.runs:Run",
    "runs": "paceline.api.runs:runs",
    "compare": "paceline.api.compare:compare",
    "PacelineError": "paceline.ledger.outcome:PacelineError",
    "Refused": "paceline.ledger.outcome:Refused",
    "Failed": "paceline.ledger.outcome:Failed",
    "Preempted": "paceline.ledger.outcome:Preempted",
    "prove": "paceline.api.prove:prove",
    "claim": "paceline.api.absent:claim",
    "evaluate": "paceline.api.absent:evaluate",
    "diagnose": "paceline.api.absent:diagnose",
}

__all__ = ["__version__", "plan", *_HOME]


class _PlanPackage(ModuleType):
    """``paceline.plan`` is phase 1's package and, by interface §12, a function: the package can be called."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return import_module("paceline.api.plan").plan(*args, **kwargs)


class _Paceline(ModuleType):
    """This module: it sees the import system bind ``plan``, and makes the package callable at that moment."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "plan" and isinstance(value, ModuleType):
            value.__class__ = _PlanPackage
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Paceline


def __getattr__(name: str) -> Any:
    if name == "plan":
        return import_module("paceline.plan")
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module 'paceline' has no attribute {name!r}; it has {', '.join(__all__)}")
    module, _, attribute = home.partition(":")
    value = getattr(import_module(module), attribute)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
