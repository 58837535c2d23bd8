"""A name for a process group that its members agree on.

Title of the hard why: *torch names a group by how many groups this process has made*. The meeting point of a group
that only its members make (``use_local_synchronization``) is its name, which torch 2.13 hashes from the ranks and
that number. Ranks of a pipeline make different numbers of groups (only the first and the last stage share a tied
weight), so two members could wait for each other under two names, for ever. The name here counts only the groups of
these very ranks, which all of them make, in one order.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from torch.distributed import distributed_c10d as c10d

_HOOK = "_hash_ranks_to_str"  # torch's own; tests/deliver/wire/test_naming.py notices when it goes


class Names:
    """The names of one world's groups."""

    def __init__(self) -> None:
        self._made: Counter[tuple[int, ...]] = Counter()

    @contextmanager
    def next_of(self, ranks: Sequence[int]) -> Iterator[str]:
        """While it is open, torch names a new group of ``ranks`` as told."""
        key = tuple(ranks)
        text = "_".join(map(str, key)) + f"#{self._made[key]}"
        name = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()
        self._made[key] += 1
        original = getattr(c10d, _HOOK)
        setattr(c10d, _HOOK, lambda _: name)
        try:
            yield name
        finally:
            setattr(c10d, _HOOK, original)
