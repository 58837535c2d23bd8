"""Completion: run names, job files, layout axes, ``--set`` keys, catalogue names. Never raises."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

AXES = ("single", "auto", "dp=", "fsdp=", "tp=", "pp=", "cp=", "ep=", "etp=")
OPTIONS = ("mbs=", "vpp=", "recompute=", "offload=", "compile=")
ZERO = (":zero1", ":zero2", ":zero3")


def _silent(source: Callable[[str], Iterable[str]]) -> Callable[[str], list[str]]:
    """A completion that fails offers nothing: a shell prompt is no place for an error."""

    def complete(incomplete: str) -> list[str]:
        try:
            return [word for word in source(incomplete) if word.startswith(incomplete)]
        except Exception:
            return []

    complete.__name__ = source.__name__
    return complete


@_silent
def run_names(incomplete: str) -> Iterable[str]:
    from paceline.api.runs import runs

    yield "last"
    yield from (run.name for run in runs())


@_silent
def job_words(incomplete: str) -> Iterable[str]:
    above, slash, _ = incomplete.rpartition("/")
    folder, prefix = Path(above + slash), above + slash
    if folder.is_dir():
        for entry in sorted(folder.iterdir()):
            if entry.is_dir() and not entry.name.startswith("."):
                yield f"{prefix}{entry.name}/"
            elif entry.suffix.lower() == ".toml":
                yield prefix + entry.name
    yield from run_names(incomplete)


@_silent
def layouts(incomplete: str) -> Iterable[str]:
    done, comma, last = incomplete.rpartition(",")
    axis, equals, _ = last.partition("=")
    if equals and axis == "fsdp" and ":" in last:
        return (done + comma + last.split(":")[0] + zero for zero in ZERO)
    used = {part.split("=")[0] for part in done.split(",") if part}
    words = [word for word in AXES + OPTIONS if word.split("=")[0] not in used]
    return (done + comma + word for word in words)


@_silent
def set_keys(incomplete: str) -> Iterable[str]:
    from paceline.job.schema import leaves

    return (f"{name}=" for name, leaf in leaves().items() if not leaf.arrives)


@_silent
def job_keys(incomplete: str) -> Iterable[str]:
    from paceline.job.schema import leaves, table_names

    return [*sorted(table_names()), *leaves()]


@_silent
def cluster_names(incomplete: str) -> Iterable[str]:
    from paceline.api.clusters import names

    return names()
