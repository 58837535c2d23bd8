"""Whether a process that a file names is still the same living process."""

from __future__ import annotations

import os
import socket
import subprocess
from pathlib import Path


def host() -> str:
    """This machine's name, as written into locks and status files."""
    return socket.gethostname()


def start_time(pid: int) -> str:
    """When ``pid`` began, an opaque text that differs when the number is used again; "" when it is dead."""
    try:
        fields = (
            Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        )
        return "" if fields[0] in ("Z", "X") else fields[19]  # a zombie has ended
    except (OSError, IndexError):
        pass
    if Path("/proc/self/stat").exists():
        return ""
    try:  # no /proc: macOS and the BSDs
        done = subprocess.run(
            ["ps", "-o", "lstart=", "-p", str(pid)], capture_output=True, text=True, timeout=5, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip()


def is_alive(pid: int, started: str = "") -> bool:
    """``pid`` lives on this host, and began when ``started`` says (if it says anything)."""
    if not 0 < pid < 1 << 31:  # no system counts further; os.kill would overflow
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass  # another user's process: it lives
    now = start_time(pid)
    return bool(now) and (not started or now == started)
