"""What the launcher tells the ranks of the memory that outlives them. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from paceline.recover.live.words import Finished

MEMORY = "memory"
"""Key of the error of a rank that cannot hold what is there."""


@dataclass(frozen=True)
class Alive:
    """How the memory is opened, and what is in it.

    Attributes:
        words, arenas: paths, of the rows of all ranks and of each rank's tensors.
        step: finished steps of the state that is there; None for none.
        sources: paths of the memories that are whole at ``step``; a rank whose own is among them keeps it.
        finished: the last steps, oldest first; the last of them is ``step``.
        attempt: that finished them.
        saved: step of the newest checkpoint, 0 for none: a save that the dead rank had begun is not among them.
    """

    words: str
    arenas: tuple[str, ...]
    step: int | None = None
    sources: tuple[str, ...] = ()
    finished: tuple[Finished, ...] = ()
    attempt: int = 0
    saved: int = 0

    def to_dict(self) -> dict[str, Any]:
        """As JSON values."""
        return asdict(self)

    @classmethod
    def read(cls, row: Mapping[str, Any]) -> Alive:
        """What :meth:`to_dict` wrote."""
        finished = tuple(
            Finished(**one | {"remembered": tuple(one["remembered"])}) for one in row["finished"]
        )
        arenas, sources = tuple(row["arenas"]), tuple(row["sources"])
        return cls(row["words"], arenas, row["step"], sources, finished, row["attempt"], row["saved"])

    @property
    def scalars(self) -> dict[str, Any]:
        """The run's numbers after ``step``, by the names that a checkpoint has."""
        last = self.finished[-1]
        return {
            "step": last.step,
            "position": int(last.position),
            "tokens": last.tokens,
            "samples": last.samples,
            "remembered": list(last.remembered),
        }
