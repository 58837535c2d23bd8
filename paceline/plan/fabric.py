"""The network between hosts where it is not the same everywhere: pods of hosts, and less bandwidth between them.

A pod's hosts reach each other at the full rate of their NICs; what leaves it shares uplinks of a part of the sum of
those rates, ``1 / oversubscription``. A ring (all-gather, reduce-scatter, all-reduce) of a group with r ranks in a pod
leaves it once, while the pod's other devices have rings of their own: each gets r / oversubscription of a NIC, and is
no slower with r ≥ oversubscription. An all-to-all sends to every rank alike, so the part that leaves the pod is held up
whole; so is a send to a rank of another pod.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from paceline.ledger.outcome import Exit, Refused

KEYS = ("pod_hosts", "oversubscription")


@dataclass(frozen=True)
class Fabric:
    """``pod_hosts``: hosts below one switch. ``oversubscription``: a pod's NIC rates over its uplinks'."""

    pod_hosts: int
    oversubscription: float

    def share(self, op: str, ranks: int, apart: int, devices: int) -> float:
        """Of a NIC's rate, what a collective of ``ranks``, ``apart`` from each other, gets; ``devices`` of a host."""
        pod = self.pod_hosts * devices
        inside = min(ranks, max(1, pod // max(1, apart)))
        if inside >= ranks:
            return 1.0
        if op in ("all_to_all", "send"):
            leaving = 1.0 if op == "send" else 1 - inside / ranks
            return min(1.0, 1 / (self.oversubscription * leaving))
        return min(1.0, inside / self.oversubscription)


def fabric_of(table: object, where: str) -> Fabric:
    """The ``[fabric]`` table of a cluster file.

    Raises:
        Refused: 2, it is no table, a key is missing or unknown, or a value is not possible.
    """
    if not isinstance(table, Mapping) or set(table) != set(KEYS):
        seen = ", ".join(sorted(map(str, table))) if isinstance(table, Mapping) else str(table)
        _refuse("[fabric] is not what a fabric is", seen or "no key", where)
    hosts, over = table["pod_hosts"], table["oversubscription"]
    whole = isinstance(hosts, int) and not isinstance(hosts, bool) and hosts >= 1
    number = isinstance(over, int | float) and not isinstance(over, bool) and 1 <= over < math.inf
    if not whole or not number:
        _refuse(
            "[fabric] has a value that is not possible",
            f"pod_hosts = {hosts}, oversubscription = {over}",
            where,
        )
    return Fabric(hosts, float(over))


def _refuse(message: str, seen: Any, where: str) -> NoReturn:
    raise Refused(
        message,
        exit_code=Exit.USAGE,
        key="fabric",
        seen=seen,
        rule="pod_hosts is a number of hosts from 1, oversubscription the NICs' rates over the uplinks', at least 1",
        use="[fabric]\npod_hosts = 32\noversubscription = 4",
        where=where,
    )
