"""The rows and ids that a proof looks at, so that what a layout cuts is met: documents by cp, the vocabulary by tp.

A fault at a border shows only where the data has something there. Documents are *chosen*: a row of the job that has a
border where none of the first step's has one stands in for one of these. Ids are *replaced*: tp cuts the vocabulary
where few texts have a token, and any id will do. What cannot be met is said by name. No torch: the launcher decides.

Legend: T tokens of a row, C = T / (2·cp) of a chunk (``deliver/zigzag.py``), V rows of the vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from paceline.compute.data.batches import Rows
from paceline.compute.data.packing import IGNORE, PackedSet
from paceline.compute.data.touched import Touch, TouchedSet
from paceline.plan.layout import balanced

LOOKED_AT = 1 << 14
"""Document borders of the data among which rows are chosen."""

EDGE, INSIDE = "at the edge", "inside the chunk"
Place = tuple[int, str, int]
"""A place for a document border: cp degree, kind, first token of the chunk that it is at the edge of, or inside."""


@dataclass(frozen=True)
class Met:
    """``touch``: what is changed for it. ``notes``: what is met by which changes, and what is not, a line each."""

    touch: Touch
    notes: tuple[str, ...]


def meet(
    packed: PackedSet, taken: Sequence[int], vocab_size: int, text_ids: int, *, tp: set[int], cp: set[int]
) -> Met:
    """Choose and replace for every degree of ``tp`` and ``cp`` that a proof's layouts have.

    Args:
        packed: the job's rows. taken: those of the first step, in order.
        vocab_size: of the model; tokens are taken modulo it. text_ids: of the tokenizer; what the model has beyond is
            padding.
    """
    rows, said = _documents(packed, list(dict.fromkeys(taken)), cp)
    chosen = TouchedSet(packed, Touch(rows))
    ids, also = _ids(chosen, list(dict.fromkeys(taken)), vocab_size, text_ids, tp)
    return Met(Touch(rows, ids), (*said, *also))


def _documents(
    packed: PackedSet, taken: list[int], degrees: set[int]
) -> tuple[tuple[tuple[int, int], ...], list[str]]:
    length = packed.sequence_length
    wanted = {place for n in degrees if n > 1 and length % (2 * n) == 0 for place in places(n, length)}
    if packed.packing != "masked" or not wanted:
        return (), []
    here = _places_of(packed, wanted)
    needed: set[int] = set()
    missing = set(wanted)
    for row in taken:
        if met := here.get(row, set()) & missing:
            needed.add(row)
            missing -= met
    spare = [row for row in taken if row not in needed]
    instead: list[tuple[int, int]] = []
    others = {row: met for row, met in here.items() if row not in taken}
    while missing and spare and others:
        best = max(others, key=lambda row: len(others[row] & missing))
        if not others[best] & missing:
            break
        missing -= others.pop(best)
        instead.append((spare.pop(0), best))
    return tuple(instead), _said_of_documents(wanted, missing, len(instead))


def places(degree: int, length: int) -> list[Place]:
    """Where a document may begin: at each inner edge of the 2·cp chunks of a row, and inside each chunk."""
    size = length // (2 * degree)
    starts = range(0, length, size)
    inside = [(degree, INSIDE, start) for start in starts] if size > 1 else []
    return [(degree, EDGE, start) for start in starts if start] + inside


def _places_of(packed: PackedSet, wanted: Iterable[Place]) -> dict[int, set[Place]]:
    """Row → the places at which it has a document border."""
    length, degrees = packed.sequence_length, {degree for degree, _, _ in wanted}
    found: dict[int, set[Place]] = {}
    for row, column in zip(*(each.tolist() for each in packed.borders(LOOKED_AT)), strict=True):
        for degree in degrees:
            size = length // (2 * degree)
            kind = INSIDE if column % size else EDGE
            found.setdefault(row, set()).add((degree, kind, column - column % size))
    return found


def _said_of_documents(wanted: set[Place], missing: set[Place], chosen: int) -> list[str]:
    notes = []
    if len(missing) < len(wanted):
        rows = f"{chosen} row{'' if chosen == 1 else 's'} of the first step chosen so that"
        how = rows if chosen else "the first step's rows are such that"
        notes.append(
            f"{how} documents begin at {len(wanted) - len(missing)} of {len(wanted)} places of cp shards"
        )
    for degree in sorted({degree for degree, _, _ in missing}):
        for kind in (EDGE, INSIDE):
            at = sorted(start for n, k, start in missing if (n, k) == (degree, kind))
            if at:
                tokens = ", ".join(map(str, at))
                notes.append(
                    f"not met: a document that begins {kind} at token {tokens} of a row cut by cp={degree}"
                )
    return notes


def _ids(
    rows: Rows, taken: list[int], vocab_size: int, text_ids: int, degrees: set[int]
) -> tuple[tuple[tuple[int, int, int], ...], list[str]]:
    wanted = vocabulary_borders(vocab_size, text_ids, degrees)
    if not wanted:
        return (), []
    seen: set[int] = set()
    aimed: set[int] = set()
    free: list[tuple[int, int]] = []
    for number in taken:
        row = rows.row(number)
        counts = row.targets != IGNORE
        seen |= set((row.tokens[counts] % vocab_size).tolist())
        aimed |= set((row.targets[counts] % vocab_size).tolist())
        # A token after a target that counts is that target.
        columns = np.flatnonzero(counts[:-1] & counts[1:]) + 1
        free += [(number, int(c)) for c in columns if row.tokens[c] % vocab_size not in wanted]
    missing = sorted(wanted - (seen & aimed))
    placed = missing[: len(free)]
    ids = tuple((*free[at * len(free) // max(1, len(placed))], token) for at, token in enumerate(placed))
    return ids, _said_of_ids(placed, missing[len(placed) :])


def vocabulary_borders(vocab_size: int, text_ids: int, degrees: set[int]) -> set[int]:
    """The first and the last row of each tp rank's part of the vocabulary, and of the rows that no text has."""
    cut = [balanced(vocab_size, degree, rank) for degree in degrees if degree > 1 for rank in range(degree)]
    padding = [range(text_ids, vocab_size)] if cut else []
    return {row for part in (*cut, *padding) if part for row in (part.start, part.stop - 1)}


def _said_of_ids(placed: Sequence[int], missing: Sequence[int]) -> list[str]:
    count = f"{len(placed)} id{'' if len(placed) == 1 else 's'} replaced"
    if not missing:
        how = f"{count} so that" if placed else "no id replaced:"
        return [f"{how} every vocabulary border is met"]
    rows = ", ".join(map(str, missing))
    return [f"{count}; not met: vocabulary row{'' if len(missing) == 1 else 's'} {rows}, for want of places"]
