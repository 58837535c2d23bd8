"""The real command line in a process of its own, with an environment that says nothing unless a test does."""

from __future__ import annotations

import json
import os
import pty
import select
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 60.0
_KEPT = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "VIRTUAL_ENV")


@dataclass(frozen=True)
class Done:
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def object(self) -> dict[str, Any]:
        """The one JSON object on stdout."""
        lines = self.out.splitlines()
        assert len(lines) == 1, f"one object expected, got {lines}\n{self.err}"
        found = json.loads(lines[0])
        assert isinstance(found, dict)
        return found


def environment(**variables: str) -> dict[str, str]:
    """A small environment: no colour, no terminal, no CI."""
    kept = {name: os.environ[name] for name in _KEPT if name in os.environ}
    return {**kept, "PYTHONPATH": str(ROOT), "PYTHONUTF8": "1", "OMP_NUM_THREADS": "1", **variables}


def paceline(*args: str, cwd: Path | None = None, limit_s: float = LIMIT_S, **variables: str) -> Done:
    """Runs ``paceline ARGS`` with stdout and stderr apart."""
    done = subprocess.run(
        [sys.executable, "-m", "paceline", *args],
        cwd=cwd,
        env=environment(**variables),
        capture_output=True,
        encoding="utf-8",
        timeout=limit_s,
        check=False,
    )
    return Done(done.returncode, done.stdout, done.stderr)


def in_process(capsys: pytest.CaptureFixture[str], *args: str) -> Done:
    """The same command line without a process of its own: for wide tables of cases."""
    from paceline.cli.app import run

    code = run(args)
    shown = capsys.readouterr()
    return Done(code, shown.out, shown.err)


def on_terminal(
    code: str, *, limit_s: float = LIMIT_S, cwd: Path | None = None, **variables: str
) -> tuple[int, str]:
    """Runs Python ``code`` on a pseudo-terminal of 90 columns; returns (exit code, what it showed)."""
    import fcntl
    import struct
    import termios

    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 90, 0, 0))
    child = subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=slave,
        stdout=slave,
        stderr=slave,
        cwd=cwd,
        env=environment(**{"TERM": "xterm-256color", **variables}),
    )
    os.close(slave)
    shown, until = b"", time.monotonic() + limit_s
    try:
        while time.monotonic() < until:
            if select.select([master], [], [], 0.1)[0]:
                try:
                    part = os.read(master, 65536)
                except OSError:
                    break
                if not part:
                    break
                shown += part
            elif child.poll() is not None:
                break
        code_ = child.wait(timeout=max(0.1, until - time.monotonic()))
    finally:
        if child.poll() is None:
            child.kill()
            child.wait()
        os.close(master)
    return code_, shown.decode("utf-8", "replace")
