"""What this process holds in memory: now, and at most so far.

Linux says both of the process as it is. ``getrusage``, which is asked elsewhere, does not start anew when a program is
started: the peak of a small rank that a large process launched is that of the launcher.
"""

from __future__ import annotations

import resource
import sys
from pathlib import Path


def resident_bytes() -> int:
    """Now; where the kernel does not say, the most it ever held."""
    return _status("VmRSS") or _usage()


def peak_bytes() -> int:
    """At most, since this program began."""
    return _status("VmHWM") or _usage()


def _status(name: str) -> int:
    """A size in ``/proc/self/status``; 0 where there is none."""
    try:
        lines = Path("/proc/self/status").read_text(encoding="utf-8", errors="replace").splitlines()
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith(f"{name}:"))
    except (OSError, StopIteration, IndexError, ValueError):
        return 0


def _usage() -> int:
    unit = 1 if sys.platform == "darwin" else 1 << 10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
