"""What a rank entry is given beside its payload: where it sits, how it speaks, how it is told to stop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from paceline.deliver.wire.world import Seat

Emit = Callable[[dict[str, Any]], None]
Stop = Callable[[], str | None]


class Place(Seat, Protocol):
    """Where the rank sits (:class:`paceline.launch.place.Place` is one)."""

    @property
    def local_rank(self) -> int: ...
    @property
    def threads(self) -> int: ...
    @property
    def timeout_s(self) -> float: ...
    @property
    def slot(self) -> str | None: ...
