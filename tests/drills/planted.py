"""The product's own rank with one fault planted, by rank and step: ``fault.json`` in the folder of the job says which.

A fault strikes in the first attempt only, unless it says ``always``; it writes a line into ``fired`` first.
"""

from __future__ import annotations

import ctypes
import json
import math
import os
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


def run(payload: dict[str, Any], place: Any, emit: Any, stop: Any) -> dict[str, Any]:
    """``paceline.recipes.rank:run`` with the fault."""
    from paceline.recipes import rank
    from paceline.recipes.brief import Brief

    home = Brief.read(payload).folder.path.parent.parent
    if (home / "fault.json").exists():
        fault = json.loads((home / "fault.json").read_text())
        if place.rank == fault["rank"] and (place.attempt == 0 or fault.get("always")):
            HOW[fault["how"]](_Fault(home, place.attempt, fault))
    return rank.run(payload, place, emit, stop)


class _Fault:
    """Where it strikes, and that it did."""

    def __init__(self, home: Path, attempt: int, given: dict[str, Any]) -> None:
        self.home, self.attempt, self.given, self.step = home, attempt, given, 0
        self.told = False
        from paceline.recipes.feed import Feed

        feed = Feed.__call__

        def known(this: Feed, step: int) -> Any:
            self.step = step
            return feed(this, step)

        Feed.__call__ = known  # type: ignore[method-assign]

    def fires(self) -> bool:
        """True in the step it is planted in, once; ``every_step`` from that step on."""
        due = (
            self.step >= self.given["step"]
            if self.given.get("every_step")
            else self.step == self.given["step"]
        )
        if not due or (self.told and not self.given.get("every_step")):
            return False
        if not self.told:
            self.told = True
            self._wait_for_save()
            row = {"unix_s": time.time(), "attempt": self.attempt, "pid": os.getpid(), "step": self.step}
            with open(self.home / "fired", "a") as file:
                file.write(json.dumps(row) + "\n")
        return True

    def _wait_for_save(self) -> None:
        """Steps of the small job are so short that a save is still being written two steps later; ``saved`` is the
        step whose save has ended before the fault strikes."""
        if (saved := self.given.get("saved")) is None:
            return
        latest = next((self.home / "runs").glob("*/checkpoints")) / "latest"
        until = time.monotonic() + 20
        while not (latest.exists() and latest.read_text().startswith(f"step-{saved:08d}")):
            assert time.monotonic() < until
            time.sleep(0.005)


def _after_forward(fault: _Fault, strike: Callable[[Any], Any]) -> None:
    """Between the forward of a micro-batch and the reduction of its gradients; ``strike`` gets what it gave."""
    from paceline.compute.models.decoder import Decoder

    forward = Decoder.forward

    def planted(self: Decoder, *args: Any, **kwargs: Any) -> Any:
        found = forward(self, *args, **kwargs)
        return strike(found) if fault.fires() else found

    Decoder.forward = planted  # type: ignore[method-assign]


def kill(fault: _Fault) -> None:
    _after_forward(fault, lambda _: os.kill(os.getpid(), signal.SIGKILL))


def segfault(fault: _Fault) -> None:
    _after_forward(fault, lambda _: ctypes.string_at(0))


def raise_(fault: _Fault) -> None:
    def strike(_: Any) -> None:
        raise ValueError("planted in the loss")

    _after_forward(fault, strike)


def freeze(fault: _Fault) -> None:
    def strike(found: Any) -> Any:
        os.kill(os.getpid(), signal.SIGSTOP)
        return found

    _after_forward(fault, strike)


def sleep(fault: _Fault) -> None:
    def strike(found: Any) -> Any:
        time.sleep(fault.given["seconds"])
        return found

    _after_forward(fault, strike)


def hold_the_gil(fault: _Fault) -> None:
    """A regular expression that backtracks for ages: no other thread of this process runs meanwhile."""
    _after_forward(fault, lambda _: re.match(r"(a+)+$", "a" * 60 + "b"))


def out_of_memory(fault: _Fault) -> None:
    """A limit on this rank's address space, a little above what it has, and then an allocation."""

    def strike(_: Any) -> None:
        import resource

        import torch

        now = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
        resource.setrlimit(resource.RLIMIT_AS, (now + (64 << 20), resource.RLIM_INFINITY))
        torch.zeros(1 << 30)

    _after_forward(fault, strike)


def scale_output(fault: _Fault) -> None:
    """What the forward gave, times ``factor`` (NaN, infinity, a thousand)."""
    factor = {"nan": math.nan, "inf": math.inf}.get(fault.given["factor"], fault.given["factor"])

    def strike(found: Any) -> Any:
        return found * factor

    _after_forward(fault, strike)


def spoil_gradient(fault: _Fault) -> None:
    """The loss is right; what is derived from it on this rank is not finite."""

    def strike(found: Any) -> Any:
        found.register_hook(lambda gradient: gradient * math.nan)
        return found

    _after_forward(fault, strike)


def flip_a_bit(fault: _Fault) -> None:
    """One bit of one weight of this rank, where nobody writes."""
    from paceline.compute.models.decoder import Decoder

    forward = Decoder.forward

    def planted(self: Decoder, *args: Any, **kwargs: Any) -> Any:
        if fault.fires():
            import torch

            weight = next(p for name, p in self.named_parameters() if name.endswith("q_proj.weight"))
            local = weight.to_local() if hasattr(weight, "to_local") else weight
            local.detach().view(-1).view(torch.int32)[5] ^= 1 << 12
        return forward(self, *args, **kwargs)

    Decoder.forward = planted  # type: ignore[method-assign]


def no_room(fault: _Fault) -> None:
    """The first attempt dies; the one that would go on from its memory cannot have as much."""
    if fault.attempt == 0:
        return kill(fault)
    if fault.attempt == 1:
        from paceline.recipes import shared_state

        def full(*args: Any, **kwargs: Any) -> None:
            with open(fault.home / "fired", "a") as file:
                file.write(json.dumps({"unix_s": time.time(), "attempt": 1, "pid": os.getpid()}) + "\n")
            raise OSError(28, "No space left on device")

        shared_state.move = full


def skip_a_collective(fault: _Fault) -> None:
    """The gradients of this rank are not reduced: it goes on without its peers."""
    import torch.distributed as dist

    plain = dist.all_reduce

    def skipping(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        return None if fault.fires() else plain(tensor, *args, **kwargs)

    dist.all_reduce = skipping


def another_clock(fault: _Fault) -> None:
    """The wall clock of this rank: ``ahead_s`` off from the first line on, and set back ``back_s`` at the step."""
    plain, off = time.time, {"s": float(fault.given["ahead_s"])}

    def shifted() -> float:
        return plain() + off["s"]

    def strike(found: Any) -> Any:
        off["s"] -= fault.given["back_s"]
        return found

    time.time = shifted
    _after_forward(fault, strike)


def save_fails(fault: _Fault) -> None:
    """The process that writes is given a folder that nobody can make."""
    from paceline.recover import background

    plain = background.Background._send

    def spoiled(self: Any, row: dict[str, Any]) -> None:
        if "pieces" in row and fault.fires():  # the first save at or after the step
            row = {**row, "folder": "/proc/nowhere/checkpoints"}
        plain(self, row)

    background.Background._send = spoiled  # type: ignore[method-assign]


def slow_save(fault: _Fault) -> None:
    """The process that writes waits before each block is on the disk."""
    from paceline.recover import background

    start = "from paceline.recover.writer import main; "
    slow = (
        "import os, time; fsync = os.fsync; "
        f"os.fsync = lambda fd: (time.sleep({fault.given['seconds']}), fsync(fd))[1]; "
    )
    assert start in background._PROGRAM
    background._PROGRAM = background._PROGRAM.replace(start, start + slow)
    _after_forward(fault, lambda found: found)


HOW: dict[str, Callable[[_Fault], None]] = {
    "kill": kill,
    "segfault": segfault,
    "raise": raise_,
    "freeze": freeze,
    "sleep": sleep,
    "gil": hold_the_gil,
    "memory": out_of_memory,
    "scale": scale_output,
    "gradient": spoil_gradient,
    "flip": flip_a_bit,
    "no_room": no_room,
    "skip": skip_a_collective,
    "clock": another_clock,
    "save_fails": save_fails,
    "slow_save": slow_save,
}
