"""How many hosts and devices a cluster's name says, and the limits that they have in a name as in ``[cluster]``."""

from __future__ import annotations

from collections.abc import Callable

from paceline.ledger.outcome import Exit, Refused

MOST_HOSTS, MOST_DEVICES = 2**20, 2**16
"""As ``cluster.hosts`` and ``cluster.devices`` (a test holds the two to each other): what lies above is a slip."""
LONGEST_SEEN = 60


def counts(
    name: str, hosts: str, devices: str, repaired: Callable[[int, int], str], where: str
) -> tuple[int, int]:
    """Hosts and devices a host, as numbers.

    Args:
        name: as written. hosts, devices: its digits.
        repaired: the name with other numbers.

    Raises:
        Refused: (2) one of them is 0, or beyond its limit, which is named.
    """
    found = _number(hosts), _number(devices)
    near = min(max(1, found[0]), MOST_HOSTS), min(max(1, found[1]), MOST_DEVICES)
    if near == found:
        return found
    seen = shown(name)
    large = "hosts" if near[0] < found[0] else "devices a host"
    raise Refused(
        "a cluster of nothing" if 0 in found else f"{seen} has too many {large}",
        exit_code=Exit.USAGE,
        key="cluster.use",
        seen=seen,
        rule=f"a cluster has 1 to {MOST_HOSTS} hosts, and a host 1 to {MOST_DEVICES} devices",
        use=f"--cluster {repaired(*near)}",
        where=where,
    )


def shown(name: str) -> str:
    """A name in an error: as much of it as tells what it is."""
    return name if len(name) <= LONGEST_SEEN else f"{name[:LONGEST_SEEN]}…"


def _number(digits: str) -> int:
    """Python refuses to read a number of thousands of digits; beyond every limit all are alike."""
    digits = digits.lstrip("0") or "0"
    return int(digits) if len(digits) < 12 else 10**12
