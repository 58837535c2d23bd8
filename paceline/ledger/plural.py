"""How many of a thing, in words: ``1 rank``, ``2 ranks``, ``1 micro-batch``, ``0 micro-batches``."""

from __future__ import annotations


def many(count: int, word: str) -> str:
    """``count`` and ``word``, which gets its plural's ending unless there is one."""
    return (
        f"{count} {word}"
        if count == 1
        else f"{count} {word}{'es' if word.endswith(('ch', 's', 'x')) else 's'}"
    )
