"""Where a rank sits: plain values that its launcher gives it."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Place:
    """One rank's place in a run.

    Attributes:
        rank, local_rank: its number in the world, and on its host.
        world_size, local_world_size: how many there are.
        host: name of its host, for messages.
        store_host, store_port: where the ranks meet.
        threads: compute threads of this rank.
        timeout_s: for the meeting and for each collective.
        slot: path of the shared file of last calls (:mod:`paceline.deliver.wire.slot`), or ``None``.
        store_fd: rank 0's listening socket, bound by the launcher; ``None`` elsewhere.
        attempt: 0 for the first start; each restart meets under names of its own.
    """

    rank: int
    local_rank: int
    world_size: int
    local_world_size: int
    host: str
    store_host: str
    store_port: int
    threads: int
    timeout_s: float
    slot: str | None = None
    store_fd: int | None = None
    attempt: int = 0

    @property
    def prefix(self) -> str:
        """``host:rank|``, in front of what a rank says on the console."""
        return f"{self.host}:{self.rank}|"

    @staticmethod
    def alone(host: str, threads: int, timeout_s: float, attempt: int = 0) -> Place:
        """The only rank of a run: it meets nobody."""
        return Place(0, 0, 1, 1, host, "", 0, threads, timeout_s, attempt=attempt)

    def at(self, rank: int) -> Place:
        """The same run's place of another rank on this host."""
        return replace(self, rank=rank, local_rank=rank)
