"""The places that a job's values come from, joined in their order; what ``Job`` and ``load`` start from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from paceline.job.around import config_of, config_values
from paceline.job.families.place import in_hub, is_hub_id
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
    hub: Path | None = None,
) -> Stack:
    """Read and join every layer of the job at ``path``: a job file, a run's folder, or a published config.

    A run's ``job.toml`` is resolved: it holds every key, so no defaults file and no variable lies under it.

    Args:
        environment: values that a variable stands for (``{"run.root": …}`` for PACELINE_RUNS), over the
            defaults files and under the job file.
        hub: Hugging Face's cache folder, where a hub id in ``model.hf`` is looked for; None = its default place.
    """
    path = Path(path)
    config = config_of(path, hub)
    name = str(path)
    resolved = False
    if config is not None:
        pass
    elif path.is_dir():
        path, resolved = path / "job.toml", True
        name = str(path)
    elif path.name == "job.toml" and (path.parent / "manifest.json").is_file():
        resolved = True
    joined = Stack()
    if not resolved:
        for layer in read_defaults(DEFAULTS_FILES if defaults_files is None else defaults_files):
            joined.merged.lay(layer)
        joined.merged.lay(checked(Layer(ENVIRONMENT, dict(environment or {}))))
    if config is not None:
        joined.merged.lay(checked(Layer(name, config_values(config))))
        joined.files.append(config)
    for file, layer in read_file(path, name) if config is None else ():
        joined.merged.lay(layer)
        joined.files.append(file)
    for layer in from_sets(sets):
        joined.merged.lay(layer)
    _name(joined.merged, path, resolved)
    _find(joined.merged, hub)
    return joined


def _find(merged: Merged, hub: Path | None) -> None:
    """A hub id becomes the file that the cache has of it: exactly that revision is what the job means then."""
    word = merged.values.get("model.hf")
    if hub is not None and isinstance(word, str) and is_hub_id(word) and not Path(word).exists():
        merged.values["model.hf"] = str(in_hub(word, hub) or word)


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
