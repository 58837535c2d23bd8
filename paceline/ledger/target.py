"""A file that a command will write at its end, tried before its work begins."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable
from pathlib import Path
from shlex import quote

from paceline.ledger.outcome import Exit, Failed, Refused


def check_target(path: Path, flag: str, read: Iterable[Path] = ()) -> None:
    """Whether a file can be written there, and that it is none of those that are read.

    Args:
        flag: the option that names it, for the message.
        read: files that the command reads.

    Raises:
        Refused: (2) it is one of ``read``. Failed: (55) nothing can be written there.
    """
    if path.exists() and any(one.exists() and path.samefile(one) for one in read):
        other = path.with_name(f"{path.stem}-predicted{path.suffix}")
        raise Refused(
            f"{flag} would write over {path}, which is read",
            exit_code=Exit.USAGE,
            key=flag,
            seen=f"{flag} {path}",
            rule="what is read stays as it is",
            use=f"{flag} {quote(str(other))}",
        )
    try:
        if path.exists():
            os.close(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC))
        with tempfile.NamedTemporaryFile(dir=path.absolute().parent, prefix=".paceline-"):
            pass
    except OSError as error:
        raise Failed(
            f"{path} cannot be written",
            exit_code=Exit.STORE,
            key=flag,
            seen=f"{error.strerror} at {path.absolute().parent}",
            rule="a file is written at the end, and its place is tried before",
            use=f"{flag} {quote(path.name)}",
        ) from error
