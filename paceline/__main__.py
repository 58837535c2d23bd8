"""``paceline`` and ``python -m paceline``: the entry of the command line."""

from __future__ import annotations

import sys


def main() -> None:
    """Runs the command line and ends the process with a code of interface §8."""
    if sys.platform == "win32":
        sys.exit("error  Paceline does not run on Windows (no fork server, no POSIX signals): use WSL 2")
    from paceline.cli.app import run

    sys.exit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()
