"""Saving while training goes on: a snapshot into shared memory, written and verified by another process.

A rank waits for the copy of its own part and for nothing else: no message is sent, and no file is touched. One save
is under way at a time; the next one waits for it, so that the memory is bounded (one copy of the rank's part) and two
writers never meet in one place. That a save failed is told by the first call after it.
"""

from __future__ import annotations

import json
import os
import random
import select
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import paceline
from paceline.ledger.outcome import Exit, Failed, from_dict
from paceline.recover.agree import Ranks
from paceline.recover.buffer import Buffer, offsets
from paceline.recover.save import save
from paceline.recover.shards import snapshot, snapshot_bytes
from paceline.recover.state import TrainState
from paceline.recover.write import Saved
from paceline.recover.writer import order

_PROGRAM = (
    "import sys; sys.path.insert(0, sys.argv[1]); from paceline.recover.writer import main; "
    "main(int(sys.argv[2]), int(sys.argv[3]))"
)
READY_S = 120.0
SWEEP_S = 60.0


class Background:
    """Saves of one rank. Every rank of ``ranks`` makes one, and begins the same saves.

    Args:
        keep, keep_every, identity, attempt: as :func:`paceline.recover.write.write` takes them.
    """

    def __init__(
        self,
        folder: Path,
        ranks: Ranks,
        *,
        layout: str,
        identity: Mapping[str, str],
        keep: int = 2,
        keep_every: int | None = None,
        attempt: int = 0,
    ) -> None:
        self.folder, self.ranks = folder, ranks
        self._how: dict[str, Any] = {
            "layout": layout,
            "identity": dict(identity),
            "keep": keep,
            "keep_every": keep_every,
            "attempt": attempt,
        }
        # One number that no earlier save of this folder had; rank 0's, since a sum with zeros is a broadcast.
        self._token = ranks.total(random.SystemRandom().getrandbits(40) if ranks.rank == 0 else 0)
        self._buffer = Buffer()
        self._process: subprocess.Popen[bytes] | None = None
        self._heard = b""
        self._ready: bool | None = None  # None: the writer has not said whether there is memory
        self._saves, self._apart, self._busy = 0, True, False
        self._done: list[Saved] = []
        self.waited_s = 0.0

    def start(self, state: TrainState) -> None:
        """Start the writer, and let it ask for the memory of a snapshot; returns at once. ``begin`` does it, too."""
        if self._process is not None or self._ready is False:
            return
        nbytes = snapshot_bytes(state, rank=self.ranks.rank, world_size=self.ranks.size)
        home = str(Path(paceline.__file__).parent.parent)
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _PROGRAM, home, str(self._buffer.fd), str(os.getpid())],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                pass_fds=(self._buffer.fd,),
            )
            self._send({"reserve": nbytes})
        except (OSError, Failed):  # no process, no memory for one, or it has ended already
            self._ready = False

    def begin(self, state: TrainState, alive: Callable[[], None] = lambda: None) -> None:
        """Take what this rank holds of a state, to be saved under its scalar ``step``. Called by every rank.

        Waits for an earlier save first (``waited_s`` says how long). Without the memory for a copy, the whole save is
        done here and now.

        Raises:
            Failed: the earlier save failed, or, where the save is done here, this one.
        """
        began = time.monotonic()
        self.wait(alive)
        self.waited_s = time.monotonic() - began
        if self._saves == 0:
            self._apart = self._all_ready(state)
        self._saves += 1
        rank, size = self.ranks.rank, self.ranks.size
        if not self._apart:
            world, device = self.ranks.group, self.ranks.device
            self._done.append(save(self.folder, state, world=world, device=device, **self._how))
            return
        taken = snapshot(state, rank=rank, world_size=size, into=self._buffer)
        places = offsets([piece.item.nbytes for piece in taken.pieces])
        token = f"{self._token:x}-{self._saves}"
        self._send(order(taken, places, folder=str(self.folder), size=size, token=token, **self._how))
        self._busy = True

    def poll(self) -> list[Saved]:
        """The saves that have ended since the last call. Raises Failed where one failed."""
        if self._busy:
            self._listen(0.0)
        done, self._done = self._done, []
        return done

    def wait(self, alive: Callable[[], None] = lambda: None) -> None:
        """Until the save under way is named and verified; ``alive`` is called as long as it moves.

        Raises:
            Failed: it failed.
        """
        while self._busy:
            if self._listen(1.0):
                alive()

    def close(self) -> None:
        """End the writer. A save that is still under way is given up; the last one stands."""
        process, self._process = self._process, None
        if process is not None:
            if self._busy:
                process.kill()
            self._busy = False
            assert process.stdin is not None
            assert process.stdout is not None
            with suppress(BrokenPipeError):  # an order that nobody read
                process.stdin.close()
            try:
                process.wait(SWEEP_S)  # it may still be deleting what was put aside
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            process.stdout.close()
        self._buffer.close()

    def _all_ready(self, state: TrainState) -> bool:
        """Whether every rank has a writer and the memory for a snapshot."""
        self.start(state)
        limit_s = time.monotonic() + READY_S
        while self._ready is None and time.monotonic() < limit_s:
            self._listen(1.0)
        return self.ranks.total(0 if self._ready else 1) == 0

    def _send(self, row: dict[str, Any]) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(row).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self._gone() from None

    def _listen(self, timeout_s: float) -> bool:
        """What the writer has said by now; whether it said anything."""
        assert self._process is not None
        assert self._process.stdout is not None
        pipe = self._process.stdout.fileno()
        if not select.select([pipe], [], [], timeout_s)[0]:
            return False
        more = os.read(pipe, 1 << 16)
        if not more and self._ready is None:  # it ended over the memory that it asked for
            self._ready = False
            return True
        if not more:
            raise self._gone()
        *lines, self._heard = (self._heard + more).split(b"\n")
        for line in lines:
            self._hear(json.loads(line))
        return True

    def _hear(self, row: dict[str, Any]) -> None:
        if "saved" in row:
            told = row["saved"]
            told |= {"path": Path(told["path"]), "dropped": tuple(told["dropped"])}
            self._done.append(Saved(**told))
            self._busy = False
        elif "ready" in row:
            self._ready = True
        elif "failed" in row and self._ready is None:
            self._ready = False
        elif "failed" in row:
            self._busy = False
            raise from_dict(row["failed"])

    def _gone(self) -> Failed:
        self._busy = False
        code = None
        if self._process is not None:
            with suppress(subprocess.TimeoutExpired):
                code = self._process.wait(1)
        return Failed(
            "checkpoint not saved: the process that writes it has ended",
            exit_code=Exit.STORE,
            key="checkpoint.store",
            seen=f"exit code {code} of rank {self.ranks.rank}'s writer",
            rule="a checkpoint is complete or not there; the last good one is untouched",
            use="if memory is short (exit code -9): fewer ranks on this host, or a layout with smaller shards",
            where=str(self.folder),
        )
