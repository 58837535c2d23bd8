"""What surrounds a command: the environment, read once, and this machine. Below, values."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path

from paceline.launch.environment import Environment, read


@cache
def environment() -> Environment:
    """The environment of this process, as it was when first asked for."""
    return read()


def cache_folder() -> Path:
    """``PACELINE_CACHE``, else ``paceline`` in the XDG cache."""
    return environment().cache_folder


def hub_folder() -> Path:
    """Where Hugging Face's libraries keep what they downloaded."""
    return environment().hub_folder


def runs_folder() -> Path:
    """``PACELINE_RUNS``, else ``runs``."""
    return environment().runs_folder


def job_values() -> dict[str, object]:
    """The keys of a job that variables stand for; empty when none is set."""
    found = environment()
    return {"run.root": str(found.runs_folder)} if "PACELINE_RUNS" in found.shown else {}


def terminal_variables() -> Mapping[str, str]:
    """The colour and terminal variables that are set."""
    return environment().terminal
