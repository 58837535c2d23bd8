"""Reads a job: the file over the defaults, under ``--set``, with the origin of every value."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from paceline.job.job import Job
from paceline.job.sets import Sets
from paceline.job.stack import stack

__all__ = ["Job", "Loaded", "load"]

BUILT_IN = "built-in default"


@dataclass(frozen=True)
class Loaded:
    """A job and where it came from.

    Attributes:
        origins: for every key of the resolved job: ``job.toml:14``, ``--set``, ``file stem``,
            ``environment``, a defaults file with its line, or ``built-in default``.
        warnings: what is set and has no effect, one sentence each.
        base_folder: folder of the job file, absolute.
        files: the job file and its bases, base first: what ``source/`` keeps as given.
    """

    job: Job
    origins: dict[str, str]
    warnings: tuple[str, ...]
    base_folder: Path
    files: tuple[Path, ...]

    @property
    def path(self) -> Path:
        """The job file."""
        return self.files[-1]

    @property
    def where(self) -> str:
        """The job file, as an error names it; empty for a job that was made in Python."""
        return str(self.path) if self.files else ""


def load(
    path: str | Path,
    *,
    sets: Sets = (),
    defaults_files: Iterable[str | Path] | None = None,
    environment: Mapping[str, object] | None = None,
    hub: Path | None = None,
) -> Loaded:
    """The job at ``path`` (a file, a run's folder, or a published ``config.json``).

    Args:
        sets: ``[("train.steps", "200")]`` or ``["train.steps=200"]`` as typed, or a mapping of values.
        defaults_files: instead of ``/etc/paceline/defaults.toml`` and ``~/.config/paceline/defaults.toml``.
        environment: values that variables stand for, as flat keys (``{"run.root": …}``).
        hub: Hugging Face's cache folder; None = its default place.

    Raises:
        Refused: exit code 2, with key, file and line.
    """
    joined = stack(path, sets, defaults_files=defaults_files, environment=environment, hub=hub)
    job = Job.of(joined.merged)
    given = joined.merged.origins
    origins = {key: given.get(key, BUILT_IN) for key in job.flat()}
    base = joined.files[-1].resolve().parent
    return Loaded(job, origins, tuple(_without_effect(job, given)), base, tuple(joined.files))


def _without_effect(job: Job, given: Mapping[str, str]) -> Iterable[str]:
    """Settings that this job does not use: said, since they are not wrong."""
    used_by = {
        "optimizer.betas": ("optimizer.name", "adamw"),
        "optimizer.eps": ("optimizer.name", "adamw"),
        "optimizer.momentum": ("optimizer.name", "sgd"),
        "optimizer.decay_steps": ("optimizer.schedule", "wsd"),
    }
    flat = job.flat()
    for key, (switch, value) in used_by.items():
        if key in given and flat[switch] != value:
            yield f'{key} has no effect: {switch} = "{flat[switch]}" ({given[key]})'
