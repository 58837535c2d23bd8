"""A rank that sleeps where it is told: the product's own entry, with a sleep of known size planted in six places."""

from __future__ import annotations

import time
from typing import Any

SLEEP_S = 0.4
LATE_S = 1.2  # what the others wait is this, more or less the difference of two ranks' own work
PLANTED = {"data": (4, 5), "forward": (6, 7), "collective": (8, 9), "optimizer": (10, 11), "late": (12, 13)}
CHECKPOINT_STEP, STEPS = 14, 15
CLEAN = (2, 3)


def run(payload: dict[str, Any], place: Any, emit: Any, stop: Any) -> dict[str, Any]:
    """``paceline.recipes.rank:run`` with the sleeps."""
    from paceline.compute.models.decoder import Decoder
    from paceline.deliver.wire import world
    from paceline.recipes import rank
    from paceline.recipes.feed import Feed
    from paceline.recover import background
    from paceline.update import every_step

    now = {"step": 0, "slept": -1}

    def sleep_once(kind: str) -> None:
        """One sleep a step, in the first call of its kind."""
        if now["step"] in PLANTED[kind] and now["slept"] != now["step"]:
            now["slept"] = now["step"]
            time.sleep(LATE_S if kind == "late" else SLEEP_S)

    feed = Feed.__call__

    def planted_feed(self: Feed, step: int) -> Any:
        now["step"] = step
        sleep_once("data")
        return feed(self, step)

    forward = Decoder.forward

    def planted_forward(self: Decoder, *args: Any, **kwargs: Any) -> Any:
        sleep_once("forward")
        if place.rank == 1:
            sleep_once("late")
        return forward(self, *args, **kwargs)

    scale = every_step.scale_gradients

    def planted_scale(*args: Any) -> None:
        sleep_once("optimizer")
        scale(*args)

    snapshot = background.snapshot

    def planted_snapshot(*args: Any, **kwargs: Any) -> Any:
        if now["step"] == CHECKPOINT_STEP:
            time.sleep(LATE_S)  # training waits for the copy, and not for the disk
        return snapshot(*args, **kwargs)

    Feed.__call__ = planted_feed  # type: ignore[method-assign]
    Decoder.forward = planted_forward  # type: ignore[method-assign]
    every_step.scale_gradients = planted_scale
    background.snapshot = planted_snapshot
    _slow_backend(world, sleep_once)
    return rank.run(payload, place, emit, stop)


def _slow_backend(world: Any, sleep_once: Any) -> None:
    """The backend under the wire is slow, as a link would be: both ranks have arrived, the bytes take their time."""
    make_group = world.World.make_group

    class Slow:
        def __init__(self, inner: Any) -> None:
            self._inner = inner

        def __getattr__(self, name: str) -> Any:
            return getattr(self._inner, name)

        def allreduce(self, *args: Any, **kwargs: Any) -> Any:
            sleep_once("collective")
            return self._inner.allreduce(*args, **kwargs)

    def planted_group(self: Any, *args: Any, **kwargs: Any) -> Any:
        group = make_group(self, *args, **kwargs)
        group.inner = Slow(group.inner)
        return group

    world.World.make_group = planted_group
