"""The product's own rank, slow or dying where it is alone: what a planner that only calculates cannot know."""

from __future__ import annotations

import os
import signal
import time
from typing import Any


def run(payload: dict[str, Any], place: Any, emit: Any, stop: Any) -> dict[str, Any]:
    """``paceline.recipes.rank:run``; a step on one device takes 0.3 s longer."""
    from paceline.recipes import rank
    from paceline.recipes.feed import Feed

    feed = Feed.__call__

    def slow(self: Feed, step: int) -> Any:
        if place.world_size == 1:
            time.sleep(0.3)
        return feed(self, step)

    Feed.__call__ = slow  # type: ignore[method-assign]
    try:
        return rank.run(payload, place, emit, stop)
    finally:
        Feed.__call__ = feed  # type: ignore[method-assign]


def die_alone(payload: dict[str, Any], place: Any, emit: Any, stop: Any) -> dict[str, Any]:
    """``paceline.recipes.rank:run``, killed where it has no peer."""
    from paceline.recipes import rank

    if place.world_size == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return rank.run(payload, place, emit, stop)
