"""``paceline`` and ``python -m paceline``: the entry of the command line."""

from __future__ import annotations

import os
import sys
from typing import NoReturn


def main() -> NoReturn:
    """Runs the command line and ends the process with a code of interface §8."""
    if sys.platform == "win32":
        print(
            "error  Windows is not supported: use WSL 2 (`wsl --install`), and Paceline inside it",
            file=sys.stderr,
        )
        sys.exit(2)  # said here, since what imports the usual way of saying it needs POSIX
    from paceline.cli.streams import open_closed

    open_closed()
    from paceline.cli.app import run

    _leave(run(sys.argv[1:]))


def _leave(code: int) -> NoReturn:
    """Ends the process; one that only read and answered ends without being taken apart.

    The interpreter takes the objects of imported schemas apart one by one, which is a fifth of the time of
    ``paceline plan``. A process that trained, or started others, has things to close and ends as usual.
    """
    from paceline.cli.streams import settle
    from paceline.ledger.outcome import Exit

    if not settle() and code == Exit.DONE:
        code = Exit.STORE
    if "torch" in sys.modules or "multiprocessing" in sys.modules or "concurrent.futures" in sys.modules:
        sys.exit(code)
    os._exit(code)


if __name__ == "__main__":
    main()
