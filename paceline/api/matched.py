"""Which keys of another program's weights are which of our tensors: by our own names, or by a published family's."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from paceline.job.families.outward import Outward, Unmapped, outward
from paceline.ledger.outcome import Exit, Refused
from paceline.ledger.plural import many
from paceline.recover.foreign import FLOATS, Weights, same

if TYPE_CHECKING:
    from paceline.job.presets import ModelWidths
    from paceline.recipes.beginning import Beginning

Keys = dict[str, tuple[tuple[str, int | None], ...]]
"""Our tensor → (their key, the index of dim 0 that it holds; None = all of it)."""


def matched(weights: Weights, widths: ModelWidths, start: Beginning) -> tuple[Keys, str]:
    """What holds each of our tensors, and whose names they are: ``own`` or a family's.

    Strict in both directions: every key is one of ours, and every parameter has its keys. A tied weight may stand under
    both of its names, if it holds the same.

    Raises:
        Refused: (54) with every key that is missing, unexpected, misshapen, or not of floats.
    """
    own: Keys = {name: ((name, None),) for name in (*start.parameters, *start.buffers)}
    ways: list[tuple[str, Keys]] = [("own", own)]
    try:
        family = outward(widths)
        ways.append((family.family, _by_family(family, start)))
    except Unmapped:
        pass
    whose, keys = max(ways, key=lambda way: len(_wanted(way[1]) & set(weights.keys)))
    _refuse(weights, start, keys, whose)
    return keys, whose


def _by_family(family: Outward, start: Beginning) -> Keys:
    shapes = start.parameters | {name: shape for name, (shape, _) in start.buffers.items()}
    found = {name: tuple(family.keys(name, shape)) for name, shape in shapes.items()}
    return {name: keys for name, keys in found.items() if keys}


def _wanted(keys: Keys) -> set[str]:
    return {key for found in keys.values() for key, _ in found}


def _refuse(weights: Weights, start: Beginning, keys: Keys, whose: str) -> None:
    wanted, there = _wanted(keys), set(weights.keys)
    again = {alias: first for alias, first in _tied(start, keys).items() if alias in there}
    told = [
        _listed("missing", sorted(wanted - there)),
        _listed("unexpected", sorted(there - wanted - set(again))),
        _listed("shape", _misshapen(weights, start, keys)),
        _listed("not of floats", [f"{k} {weights.keys[k][1].dtype}" for k in sorted(wanted & there)
                                  if weights.keys[k][1].dtype not in FLOATS]),
        _listed("tied here, and not the same there",
                [f"{a}, {f}" for a, f in again.items() if f in there and not same(weights, a, f)]),
    ]  # fmt: skip
    if not any(told):
        return
    names = "the model's own names" if whose == "own" else f"the names of {whose}"
    raise Refused(
        "weights and job do not match",
        exit_code=Exit.MISMATCH,
        key="--job",
        seen="\n".join(line for line in told if line),
        rule=f"every parameter of the job's model is there once, with its shape, and nothing else ({names})",
        use="a job with the widths of these weights (their config.json says them: model.hf), and its tokenizer",
        where=str(weights.path),
    )


def _tied(start: Beginning, keys: Keys) -> dict[str, str]:
    """Their other key of a tied weight → the first."""
    return {alias: keys[name][0][0] for alias, name in start.ties.items() if name in keys}


def _misshapen(weights: Weights, start: Beginning, keys: Keys) -> list[str]:
    found = []
    for name, parts in keys.items():
        shape = start.parameters[name] if name in start.parameters else start.buffers[name][0]
        for key, at in parts:
            ours = shape if at is None else shape[1:]
            if key in weights.keys and weights.keys[key][1].shape != ours:
                found.append(f"{key} {list(weights.keys[key][1].shape)}, the job's model has {list(ours)}")
    return found


def _listed(what: str, names: list[str]) -> str:
    return f"{what}, {many(len(names), 'key')}: {', '.join(names)}" if names else ""


def rounded(weights: Weights, dtype: str) -> list[str]:
    """Keys that hold more digits than the run will keep."""
    return sorted(key for key, (_, place) in weights.keys.items() if place.dtype == "F64" and dtype == "F32")


def said_of(path: Path) -> str:
    """What the manifest says that a run started from; no path of a machine."""
    return f"imported: {path.name}; their hashes are those of checkpoint step 0"
