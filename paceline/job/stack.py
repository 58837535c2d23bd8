"""The places that a job's values come from, joined in their order; what ``Job`` and ``load`` start from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from paceline.job.files import DEFAULTS_FILES, read_defaults, read_file
from paceline.job.layers import Layer, Merged, checked
from paceline.job.sets import Sets, from_sets
from paceline.ledger.outcome import Refused

ENVIRONMENT = "environment"


@dataclass
class Stack:
    """Joined layers of one job, and the files that they were read from (base first, the job file last)."""

    merged: Merged = field(default_factory=Merged)
    files: list[Path] = field(default_factory=list)


def stack(
    path: str | Path,
    sets: Sets = (),
    *,
    defaults_files: Iterable[str | Path] | None = None,
    environment: Mapping[str, object] | None = None,
) -> Stack:
    """Read and join every layer of the job at ``path``: a job file, or a run's folder.

    A run's ``job.toml`` is resolved: it holds every key, so no defaults file and no variable lies under it.

    Args:
        environment: values that a variable stands for (``{"run.root": …}`` for PACELINE_RUNS), over the
            defaults files and under the job file.
    """
    path = Path(path)
    name = str(path)
    resolved = False
    if path.is_dir():
        path, resolved = path / "job.toml", True
        name = str(path)
    elif path.name == "job.toml" and (path.parent / "manifest.json").is_file():
        resolved = True
    joined = Stack()
    if not resolved:
        for layer in read_defaults(DEFAULTS_FILES if defaults_files is None else defaults_files):
            joined.merged.lay(layer)
        joined.merged.lay(checked(Layer(ENVIRONMENT, dict(environment or {}))))
    for file, layer in read_file(path, name):
        joined.merged.lay(layer)
        joined.files.append(file)
    for layer in from_sets(sets):
        joined.merged.lay(layer)
    _name(joined.merged, path, resolved)
    return joined


def _name(merged: Merged, path: Path, resolved: bool) -> None:
    """``run.name`` is the file's stem unless given; a stem that is no run name is refused."""
    from paceline.ledger.folder import check_run_name  # loads what only a run needs

    if "run.name" in merged.values:
        return
    stem = path.parent.resolve().name if resolved else path.stem
    try:
        merged.values["run.name"] = check_run_name(stem)
    except Refused as error:
        error.where = str(path)
        raise
    merged.origins["run.name"] = "file stem"
