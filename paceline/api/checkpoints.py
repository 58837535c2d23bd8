"""The checkpoints of a run as values, and what one holds. No torch."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from paceline.ledger.folder import RunFolder
from paceline.recover import checkpoint as saved


@dataclass(frozen=True)
class Checkpoint:
    """One step's folder. ``complete``: its manifest is whole and its files are there at their sizes."""

    step: int
    path: Path
    complete: bool
    latest: bool
    bytes: int = 0
    layout: str = ""
    world_size: int = 0
    created: str = ""
    problem: str = ""

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "path": str(self.path)}


def checkpoints_of(folder: RunFolder) -> list[Checkpoint]:
    """Every step folder of a run, oldest first, damaged ones too."""
    names = set(Checkpoint.__dataclass_fields__)
    rows = saved.list_checkpoints(folder.checkpoints) if folder.checkpoints.is_dir() else []
    return [
        Checkpoint(**{**{k: v for k, v in row.items() if k in names}, "path": Path(row["path"])})
        for row in rows
    ]


def verify(path: Path) -> dict[str, Any]:
    """Reads every byte and compares it with its hash.

    Raises:
        Failed: (53) the first damage, by file and tensor, and how many more there are.
    """
    problems = saved.verify(path)
    if problems:
        error = saved.damaged(path, problems[0])
        if len(problems) > 1:
            error.seen += f" (and {len(problems) - 1} more)"
        raise error
    held = saved.inspect(path)
    size = sum(held["files"].values())
    return {"path": str(path), "step": held["step"], "tensors": len(held["tensors"]), "bytes": size}
