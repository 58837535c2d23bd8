"""Measures this machine on first use: some seconds, once, in processes of their own."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

from paceline.api.surroundings import cache_folder
from paceline.launch.local import run_ranks
from paceline.launch.machine import Machine, is_quiet
from paceline.launch.signals import Stopper
from paceline.ledger.outcome import Exit, Refused
from paceline.ledger.plural import many
from paceline.plan.measured import Measured, machine_key, measurement_path, worlds

ENTRY = "paceline.recipes.measure:run"


def measured_or_measure(machine: Machine, say: Callable[[str, str], None]) -> Measured | None:
    """The cached measurement of this machine; taken now when there is none, or when it was busy then and is not now."""
    path, key = _place(machine)
    found = Measured.read(path, key)
    if found is not None and not (found.busy and is_quiet(machine.cores)):
        return found
    return measure_now(machine, say)


def measure_now(machine: Machine, say: Callable[[str, str], None], rounds: int = 1) -> Measured | None:
    """Whatever the cache holds; the new figures replace it.

    Args:
        rounds: how often each figure is taken, some seconds apart, and more shapes of blocks with more than one.
    """
    path, key = _place(machine)
    wait = "once, about 30 s" if rounds == 1 else f"{rounds} times over, about {30 * rounds} s"
    say("machine", f"measuring {many(machine.cores, 'core')} of {machine.cpu_model} {wait} …")
    _make_room(path)
    return take(machine, path, key, rounds)


def _place(machine: Machine) -> tuple[Path, str]:
    key = machine_key(machine.cpu_model, machine.cores, machine.memory_bytes)
    return measurement_path(cache_folder(), key), key


def take(machine: Machine, path: Path, key: str, rounds: int = 1) -> Measured | None:
    """Measure with one rank, two, and four, each in processes of their own; the file is complete or absent.

    Raises:
        KeyboardInterrupt, SystemExit: 143, when a signal came: nothing has been started that could be saved.
    """
    with tempfile.TemporaryDirectory(dir=path.parent) as scratch, Stopper() as stopper:
        partial = Path(scratch) / path.name
        for ranks, threads, compute in worlds(machine.cores):
            taken = Measured.read(partial, key)
            busy = taken is not None and taken.busy
            payload = {"file": str(partial), "key": key, "compute": compute, "busy": busy, "rounds": rounds}
            logs = Path(scratch) / "logs"
            run_ranks(
                ENTRY,
                payload,
                world_size=ranks,
                logs=logs,
                threads_per_rank=threads,
                stop=lambda: _leave_at_once(stopper),
            )
        partial.replace(path)
    return Measured.read(path, key)


def _leave_at_once(stopper: Stopper) -> None:
    """Raise for a signal, from inside the watch over the ranks: a measurement has nothing to finish or to save."""
    if stopper() == "SIGTERM":
        raise SystemExit(143)
    if stopper() is not None:
        raise KeyboardInterrupt


def _make_room(path: Path) -> None:
    """The cache must be writable before half a minute is spent on what goes into it."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        raise Refused(
            "the cache cannot be written",
            exit_code=Exit.STORE,
            key="PACELINE_CACHE",
            seen=str(error),
            rule="prepared data and the machine's measurement are kept in the cache",
            use="PACELINE_CACHE=FOLDER, a folder that is yours",
            where=str(path.parent),
        ) from error
