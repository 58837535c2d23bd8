"""The inside of a rank process: its log, its pipe to the launcher, its errors in one form."""

from __future__ import annotations

import faulthandler
import json
import logging
import os
import signal
import socket
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from paceline.launch.cause import from_exception
from paceline.launch.forkserver import find, settle_in
from paceline.launch.place import Place

STACK_SIGNAL = signal.SIGUSR1  # a rank writes its stacks into its log, even when it hangs in a collective
_WARNED_AT_MOST = 1000


class Line:
    """A rank's end of the pipe. JSON both ways: nothing is unpickled after the start.

    ``emit`` may be called from any thread. ``stop`` is polled once a step; it costs a system call.
    """

    def __init__(self, pipe: Connection) -> None:
        self._pipe, self._lock, self._reason = pipe, threading.Lock(), ""

    def emit(self, row: dict[str, Any]) -> None:
        data = json.dumps(row, separators=(",", ":")).encode()
        with self._lock:
            self._pipe.send_bytes(data)

    def stop(self) -> str | None:
        try:
            while not self._reason and self._pipe.poll(0):
                self._reason = str(json.loads(self._pipe.recv_bytes()).get("stop", ""))
        except (EOFError, OSError) as error:
            # The launcher is gone: where the kernel did not say so, the pipe does.
            os.write(2, f"the launcher's end of the pipe is closed: {error!r}\n".encode())
            os._exit(128 + signal.SIGKILL)
        return self._reason or None


def live(
    pipe: Connection, listener: socket.socket | None, place: Place, entry: str, payload: str, log: str
) -> None:
    """A rank process, from its first line to its last. The exit code is 0 when the launcher knows how it
    ended."""
    settle_in()
    line = Line(pipe)
    try:
        open_log(Path(log), place)
        forward_warnings(line.emit, place)
        if listener is not None:
            place = replace(place, store_fd=listener.detach())
        run = find(entry)
        set_threads(place.threads)
        line.emit({"kind": "result", "value": run(json.loads(payload), place, line.emit, line.stop)})
    except BaseException as error:
        with suppress(OSError):  # on a full disk the log takes no more; the launcher is told all the same
            traceback.print_exc()
        if isinstance(error, SystemExit):
            flush_and_leave(error.code if isinstance(error.code, int) else 1)
        told = from_exception(error, place.rank, place.host, place.world_size)
        line.emit({"kind": "error", "rank": place.rank, "error": told.to_dict()})
    # Not through the interpreter's end: groups whose peers have failed can hang or abort in their
    # destructors.
    flush_and_leave(0)


def open_log(path: Path, place: Place) -> None:
    """From here on stdout and stderr of this process are the rank's log, C++ included; one header an
    attempt."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "ab", buffering=0) as file:
        file.write(header(place).encode())
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        for descriptor in (1, 2):
            os.dup2(file.fileno(), descriptor)
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True, errors="backslashreplace")  # type: ignore[union-attr]
    faulthandler.enable()
    faulthandler.register(STACK_SIGNAL, all_threads=True)


def header(place: Place) -> str:
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    where = f"rank {place.rank} of {place.world_size} on {place.host}"
    return f"=== attempt {place.attempt} · {where} · pid {os.getpid()} · {now}\n"


def set_threads(count: int) -> None:
    """Torch's compute threads, if the entry has loaded torch (this package never does)."""
    torch: Any = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(count)


def forward_warnings(emit: Callable[[dict[str, Any]], None], place: Place) -> None:
    """Warnings stay in the rank's log and also go to the launcher, with the rank in front, each text once."""
    seen: set[str] = set()

    def tell(text: str) -> None:
        first = text.strip().splitlines()[0] if text.strip() else ""
        if first and first not in seen and len(seen) < _WARNED_AT_MOST:
            seen.add(first)
            try:
                emit({"kind": "warn", "rank": place.rank, "host": place.host, "text": first})
            except OSError:
                pass

    original = warnings.showwarning

    def show(message: Warning | str, category: type[Warning], filename: str, lineno: int, *rest: Any) -> None:
        original(message, category, filename, lineno, *rest)
        tell(f"{category.__name__}: {message}")

    warnings.showwarning = show  # type: ignore[assignment]
    handler = _Forward(tell)
    handler.setLevel(logging.WARNING)
    logging.getLogger().addHandler(handler)
    logging.getLogger().addHandler(logging.StreamHandler())


class _Forward(logging.Handler):
    def __init__(self, tell: Callable[[str], None]) -> None:
        super().__init__()
        self._tell = tell

    def emit(self, record: logging.LogRecord) -> None:
        self._tell(record.getMessage())


def flush_and_leave(code: int) -> None:
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            pass
    os._exit(code)
