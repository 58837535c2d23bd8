"""What a glob names. As ``glob.glob``, but ``**`` enters each real folder once, however many links lead to it."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator


def match(pattern: str) -> list[str]:
    """The names that an absolute pattern matches; hidden folders and files only where it says so.

    ``glob.glob`` follows a link to a folder above again and again, until the system refuses the path: forty
    copies of each file. Here a folder that several links lead to is entered by its own name where the walk
    meets that, else by the first link.
    """
    parts = pattern.split(os.sep)
    if "**" not in parts:
        return glob.glob(pattern)
    at = parts.index("**")
    tail = os.sep.join(parts[at + 1 :]) or "*"
    found: dict[str, None] = {}
    for base in sorted(glob.glob(os.sep.join(parts[:at]) or os.sep)):
        for folder in _folders(base):
            found.update(dict.fromkeys(match(os.path.join(glob.escape(folder), tail))))
    return list(found)


def _folders(base: str) -> Iterator[str]:
    """``base`` and every folder below it: real ones first, then those that links add, each once."""
    entered: set[str] = set()
    waiting = [base]
    while waiting:
        for folder, below, _ in os.walk(waiting.pop(0)):
            real = os.path.realpath(folder)
            if real in entered:
                below.clear()
                continue
            entered.add(real)
            below[:] = sorted(name for name in below if not name.startswith("."))
            waiting += [path for name in below if os.path.islink(path := os.path.join(folder, name))]
            yield folder
