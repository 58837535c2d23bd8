"""``status.json``: what a run is doing now, replaced atomically and never older than its heartbeat.

Readers never raise: a run of another user, of a newer version or caught between two writes shows as far as
it can be read.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from paceline.ledger import atomic, process

STATES = ("preparing", "running", "stopping", "done", "preempted", "failed")
LIVE_STATES = ("preparing", "running", "stopping")
BEAT_S = 10.0
LOST_AFTER_S = 30.0
GONE_AFTER_S = 0.5  # a status this new may be older than the process that it is about to name
YEAR_10000_S = 253_402_300_800.0
LOST_AFTER_ELSEWHERE_S = 300.0


@dataclass(frozen=True)
class Status:
    """The state of a run. ``steps`` is the goal, 0 when not known yet; times are Unix seconds.

    ``layouts`` is the layout of each attempt by its number as text, kept from one write to the next.
    """

    state: str = "preparing"
    step: int = 0
    steps: int = 0
    attempt: int = 0
    kind: str = "train"
    layout: str = ""
    host: str = field(default_factory=process.host)
    pid: int = field(default_factory=os.getpid)
    process_start: str = ""
    engine_id: str = ""
    exit_code: int | None = None
    message: str = ""
    started_s: float = 0.0
    updated_s: float = 0.0
    layouts: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.state not in STATES:
            raise ValueError(f"{self.state!r} is not a state of a run: {', '.join(STATES)}")

    def write(self, path: Path | str) -> Status:
        """Replaces the file and returns what was written: ``updated_s`` and the process's start filled in."""
        own = self.pid == os.getpid() and not self.process_start
        now = time.time()
        written = replace(
            self,
            updated_s=now,
            started_s=self.started_s or now,
            process_start=process.start_time(self.pid) if own else self.process_start,
            layouts=self._layouts(path),
        )
        atomic.write_json(path, {"schema": 1, **asdict(written)})
        return written

    def _layouts(self, path: Path | str) -> dict[str, str]:
        """Those of this run so far: a resume starts a status anew, and what was before must not be forgotten."""
        before = None if self.layouts or not self.attempt else Status.read(path)
        known = dict(before.layouts) if before is not None else dict(self.layouts)
        if before is not None and before.layout:
            known.setdefault(str(before.attempt), before.layout)
        return {**known, str(self.attempt): self.layout} if self.layout else known

    @classmethod
    def read(cls, path: Path | str) -> Status | None:
        """The file's content; ``None`` when it is absent, unreadable or not a status."""
        found = atomic.read_json_or(path, None)
        if not isinstance(found, dict):
            return None
        defaults = cls()
        known: dict[str, Any] = {}
        for f in fields(cls):
            value = found.get(f.name)
            if _fits(value, getattr(defaults, f.name), f.name):
                known[f.name] = value
        if known.get("state") not in STATES:
            return None
        return cls(**{"host": "", "pid": 0, **known})

    def shown_state(self, now_s: float | None = None) -> str:
        """``state``; ``proven`` where a proof is done; or ``lost``: it says that it lives, but its process is gone.

        On its own host a process that is named with its start is known to be gone, and the run is lost at once.
        Where the start is not known, or on another host, its heartbeat must be old too.
        """
        if self.state == "done" and self.kind == "prove":
            return "proven"
        if self.state not in LIVE_STATES:
            return self.state
        age_s = (time.time() if now_s is None else now_s) - self.updated_s
        if self.host == process.host():
            gone = not process.is_alive(self.pid, self.process_start)
            after_s = GONE_AFTER_S if self.process_start else LOST_AFTER_S
            return "lost" if gone and age_s > after_s else self.state
        return "lost" if age_s > LOST_AFTER_ELSEWHERE_S else self.state


class Heartbeat:
    """Keeps a run's status file fresh without writing it every step.

    A change of ``state`` is written at once; anything else at most every ``every_s`` seconds. ``with heartbeat:``
    beats from a thread of its own, until the end of the block.
    """

    def __init__(
        self,
        path: Path | str,
        status: Status | None = None,
        *,
        every_s: float = BEAT_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._path = Path(path) / "status.json" if Path(path).is_dir() else Path(path)
        self._clock, self._every_s = clock, every_s
        self.status = status or Status.read(self._path) or Status()
        self._last: float | None = None
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Heartbeat:
        """Beats by itself from now on: a step may take longer than the heartbeat allows."""
        self._thread = threading.Thread(target=self._go_on, name="heartbeat", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        if self._thread is not None:
            self._thread.join()

    def _go_on(self) -> None:
        while not self._over.wait(self._every_s / 2):
            with suppress(OSError):  # a full disk is told by who needs it, not by the pulse
                self.beat()

    def beat(self, step: int | None = None, state: str | None = None, **changes: Any) -> bool:
        """Takes the news, and writes it when it is due. Returns whether it was written."""
        with self._lock:
            return self._beat(step, state, changes)

    def _beat(self, step: int | None, state: str | None, changes: dict[str, Any]) -> bool:
        before = self.status.state
        news = {k: v for k, v in {"step": step, "state": state, **changes}.items() if v is not None}
        self.status = replace(self.status, **news)
        now = self._clock()
        due = self._last is None or now - self._last >= self._every_s or self.status.state != before
        if due:
            self.status = self.status.write(self._path)
            self._last = now
        return due

    def end(self, state: str, exit_code: int, message: str = "") -> None:
        """The last word on a run, written at once."""
        with self._lock:
            last = replace(self.status, state=state, exit_code=exit_code, message=message)
            self.status = last.write(self._path)


def _fits(value: Any, default: Any, name: str) -> bool:
    """Whether a value read for this field is of its type and in its range: the file may be damaged."""
    if isinstance(value, bool):
        return False
    if name == "exit_code":
        return value is None or (isinstance(value, int) and 0 <= value <= 255)
    if isinstance(default, float):
        return isinstance(value, int | float) and 0 <= value < YEAR_10000_S  # NaN is in no range
    if isinstance(default, int):
        return isinstance(value, int) and 0 <= value < 1 << (31 if name == "pid" else 53)
    if isinstance(default, dict):
        return isinstance(value, dict) and all(n.isdecimal() and isinstance(v, str) for n, v in value.items())
    return isinstance(value, type(default))
