"""The process that writes a rank's part of each save, while the rank trains on.

It gets orders as lines of JSON and answers in the same way; the bytes lie in shared memory. It is started as a
program of its own, not forked: a rank has computed with several threads, and such a process must not be forked. It
imports no torch, so it starts in a fraction of a second and is small. It lives no longer than its rank: a save of a
rank that is gone could be published after the next attempt has chosen where to go on from.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
import sys
import threading
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any, BinaryIO

from paceline.recover import steps
from paceline.recover.buffer import Buffer
from paceline.recover.container import Item
from paceline.recover.peers import Peers
from paceline.recover.pieces import Piece, Snapshot
from paceline.recover.together import as_paceline
from paceline.recover.write import write

NICE = 5  # training has the cores first
ALIVE_S = 1.0  # between two signs of life
_PR_SET_PDEATHSIG = 1


def order(taken: Snapshot, places: list[int], **how: Any) -> dict[str, Any]:
    """The order to write a snapshot whose pieces lie at ``places`` in the buffer; ``how`` as :func:`_obey` reads it."""
    pieces = [
        [p.tensor, p.starts, p.item.key, p.item.dtype, p.item.shape, at]
        for p, at in zip(taken.pieces, places, strict=False)
    ]
    told = {"rank": taken.rank, "tensors": taken.tensors, "scalars": taken.scalars}
    return {"pieces": pieces, **told, "ties": taken.ties, "groups": taken.groups, **how}


def main(fd: int, parent: int) -> None:
    """Obey until the rank closes its end."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(
            number, signal.SIG_IGN
        )  # they go to the whole terminal; the rank decides what they mean
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)  # it ended before the line above could tie us to it
    os.nice(NICE)
    buffer = Buffer(fd)
    orders = sys.stdin.buffer
    while line := orders.readline():
        asked = json.loads(line)
        try:
            if "reserve" in asked:
                buffer.reserve(int(asked["reserve"]))
                _tell({"ready": True})
            else:
                _tell({"saved": _obey(asked, buffer, _Signs(orders))})
                if asked["rank"] == 0:
                    # Beside the next order, which would else wait, and a rank with it once the pipe is full.
                    threading.Thread(target=steps.sweep, args=(Path(asked["folder"]),)).start()
        except Exception as error:
            _tell({"failed": as_paceline(error, asked.get("rank", 0)).to_dict()})


def _obey(asked: dict[str, Any], buffer: Buffer, signs: _Signs) -> dict[str, Any]:
    folder, rank, attempt = Path(asked["folder"]), int(asked["rank"]), int(asked["attempt"])
    meet = steps.hidden(folder, int(asked["scalars"]["step"]), "meet", f"{attempt}-{asked['token']}")
    with steps.store_errors(meet):
        peers = Peers(meet, rank, int(asked["size"]), signs.waiting)
        saved = write(
            folder,
            _snapshot(asked, buffer),
            peers,
            layout=asked["layout"],
            identity=asked["identity"],
            keep=asked["keep"],
            keep_every=asked["keep_every"],
            attempt=attempt,
            moved=signs.moved,
        )
        peers.leave()
    return {**asdict(saved), "path": str(saved.path)}


def _snapshot(asked: dict[str, Any], buffer: Buffer) -> Snapshot:
    pieces = []
    for tensor, starts, key, dtype, shape, at in asked["pieces"]:
        empty = Item(key, dtype, tuple(shape), buffer.bytes(0, 0))
        data = buffer.bytes(at, empty.nbytes)
        pieces.append(Piece(tensor, tuple(starts), Item(key, dtype, tuple(shape), data)))
    tensors = {name: (tuple(shape), dtype) for name, (shape, dtype) in asked["tensors"].items()}
    told = (asked["scalars"], asked["ties"], asked["groups"])
    return Snapshot(int(asked["rank"]), tuple(pieces), tensors, *told)


class _Signs:
    """Signs of life to the rank, and of the rank."""

    def __init__(self, orders: BinaryIO) -> None:
        self._orders, self._told_s = orders, time.monotonic()

    def moved(self) -> None:
        """A block has been written or read."""
        now_s = time.monotonic()
        if now_s - self._told_s >= ALIVE_S:
            self._told_s = now_s
            _tell({"alive": True})

    def waiting(self) -> None:
        """Others are waited for. An order cannot come now: what can be read is the end."""
        if select.select([self._orders], [], [], 0)[0]:
            os._exit(1)


def _tell(row: dict[str, Any]) -> None:
    try:
        sys.stdout.write(json.dumps(row) + "\n")
        sys.stdout.flush()
    except BrokenPipeError:
        os._exit(1)
