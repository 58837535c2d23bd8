"""A checkpoint written anew with other shards, by one process, without the ranks that they are for.

What is written is what a run of the new layout would have saved of this state: the same files, keys and bytes. The
step, the scalars and the identity stay; every byte that is read has its hash compared, every one written is read back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline.recover import manifest, steps, write
from paceline.recover.checkpoint import open_manifest
from paceline.recover.container import Damaged, Item
from paceline.recover.manifest import Manifest, Tensor
from paceline.recover.owners import Holding, key_of, owned
from paceline.recover.pieces import Piece, Snapshot
from paceline.recover.stream import Shards, Source, stream

Held = Callable[[int], Mapping[str, Holding]]
"""rank → what it holds of each tensor."""


@dataclass(frozen=True)
class Resharded:
    """The checkpoint that was written: its folder, its step, bytes of data and shards."""

    path: Path
    step: int
    nbytes: int
    shards: int
    latest: bool


def reshard(
    step_dir: Path,
    into: Path,
    held: Held,
    *,
    layout: str,
    world_size: int,
    groups: list[dict[str, Any]],
    attempt: int = 0,
) -> Resharded:
    """Write the checkpoint ``step_dir`` into the folder of checkpoints ``into``, which may be the one it is in.

    There the step appears whole, by one rename, in the place of one of the same number; ``latest`` goes on to name what
    it named, unless the step is as new. The caller holds the lock of ``into``.

    Args:
        held: what the ranks of the new layout hold. groups: the optimizer's, as rank 0 will have them.

    Raises:
        Failed: (53) a byte is not what was written; (55) the store is full, read-only or gone.
        Refused: (54) the step there is another run's, or a newer Paceline wrote this one.
    """
    table = open_manifest(step_dir)
    steps.check_store(into, table.nbytes)
    to_latest = _is_newest(into, table.step)
    with Shards(step_dir, table) as source:
        parts = (
            part_of(source, table, held(rank), rank, groups=groups, ties=table.ties)
            for rank in range(world_size)
        )
        head = write.head_of(
            Snapshot(0, (), {}, table.scalars, table.ties, groups),
            layout=layout,
            world_size=world_size,
            identity=table.identity,
        )
        nbytes = write.write_alone(into, parts, head, attempt=attempt, to_latest=to_latest)
    return Resharded(into / manifest.step_name(table.step), table.step, nbytes, world_size, to_latest)


def part_of(
    source: Source,
    table: Manifest,
    held: Mapping[str, Holding],
    rank: int,
    *,
    groups: list[dict[str, Any]],
    ties: dict[str, str],
) -> Snapshot:
    """What one rank writes; its bytes are read when they are written."""
    tensors = {name: (table.tensors[name].shape, table.tensors[name].dtype) for name in held}
    pieces = tuple(
        Piece(name, box.starts, _item(source, table.tensors[name], name, number, box))
        for name, mine in owned(held, rank).items()
        for number, box in enumerate(mine)
    )
    return Snapshot(rank, pieces, tensors, table.scalars, ties, groups)


def _item(source: Source, tensor: Tensor, name: str, number: int, box: Any) -> Item:
    return Item(key_of(name, number), tensor.dtype, box.shape, stream(source, name, tensor.dtype, box))


def _is_newest(into: Path, step: int) -> bool:
    """Whether ``latest`` is to name this step there; a `latest` that cannot be read is left alone."""
    try:
        named = steps.read_latest(into)
    except Damaged:
        return False
    if named is not None:
        return step >= (manifest.step_of(named[0]) or 0)
    return all(number <= step for number, _ in steps.published(into))
