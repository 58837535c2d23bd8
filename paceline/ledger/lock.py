"""One writer a run: the lock names host, process and its start; a holder that is gone is recognised."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Protocol

from paceline.ledger import process
from paceline.ledger.outcome import Exit, Refused


class Lockable(Protocol):
    """What has a lock file: a run folder."""

    @property
    def name(self) -> str: ...
    @property
    def lock(self) -> Path: ...


class Lock:
    """``with Lock(folder):`` or :meth:`acquire` and :meth:`release`."""

    def __init__(self, folder: Lockable) -> None:
        self._folder = folder
        self._held = False

    def acquire(self) -> Lock:
        """Takes the lock, or refuses (56) naming the holder."""
        text = f"{process.host()}\n{os.getpid()}\n{process.start_time(os.getpid())}\n"
        for _ in range(3):
            try:
                # Written apart and linked into place: a reader never sees an empty lock.
                own = self._folder.lock.with_name(f".lock.{process.host()}.{os.getpid()}")
                own.write_text(text, encoding="utf-8")
                try:
                    os.link(own, self._folder.lock)
                finally:
                    own.unlink(missing_ok=True)
                self._held = True
                return self
            except FileExistsError:
                self._remove_if_stale()
            except OSError as error:
                raise self._unwritable(error) from error
        raise self._locked()

    def release(self) -> None:
        """Gives the lock back; without holding it, nothing happens."""
        if self._held:
            self._held = False
            self._folder.lock.unlink(missing_ok=True)

    def __enter__(self) -> Lock:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()

    def holder(self) -> tuple[str, int, str] | None:
        """(host, pid, start) of the process named in the file; ``None`` when there is no file to read."""
        try:
            text = self._folder.lock.read_text(encoding="utf-8", errors="replace")
        except OSError:
            return None
        host, pid, start, *_ = [*text.splitlines(), "", "", ""]
        return host, int(pid) if pid.isascii() and pid.isdigit() and len(pid) < 10 else 0, start

    def is_stale(self) -> bool:
        """There is a lock, and the process that it names is provably gone; a torn lock names nobody."""
        holder = self.holder()
        if holder is None:
            return False
        host, pid, start = holder
        return not host or (host == process.host() and not process.is_alive(pid, start))

    def refuse_if_held(self) -> None:
        """Refuses (56) while somebody may hold the lock; nothing is written."""
        if os.path.lexists(self._folder.lock) and not self.is_stale():
            raise self._locked()

    def _remove_if_stale(self) -> None:
        if os.path.lexists(self._folder.lock):
            self.refuse_if_held()
            self._folder.lock.unlink(missing_ok=True)

    def _locked(self) -> Refused:
        host, pid, _ = self.holder() or ("?", 0, "")
        return Refused(
            f"run {self._folder.name} is in use",
            exit_code=Exit.LOCKED,
            seen=f"{self._folder.lock}: process {pid} on {host}",
            rule="one process writes a run",
            use=f"paceline runs stop {self._folder.name}"
            + ("" if host == process.host() else f", or remove the file when {host} is gone"),
        )

    def _unwritable(self, error: OSError) -> Refused:
        return Refused(
            f"run {self._folder.name} cannot be locked",
            exit_code=Exit.STORE,
            seen=str(error),
            rule="the run folder must exist and be writable",
            use=f"ls -ld {self._folder.lock.parent}",
        )
