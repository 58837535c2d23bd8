"""Tensors of one device in a folder, and how far a rank's blocks are from them.

The relative error of a tensor is ``max |a - b| / max(max |a|, floor * largest)``, where ``a`` is the reference, and
``largest`` the largest value of its kind in the whole model: a key bias has gradient zero in mathematics, and its
rounding may not be held against it (DESIGN §4).

Beside the error of a block come figures from which ``evidence/cause.py`` tells what is wrong without seeing a
tensor: the best factor ``<a, b> / <a, a>`` and what it leaves over, where the wrong elements lie, and three
projections of a and b on fixed directions, which are linear, so that they tell whether partial sums of several ranks
add up to the right value.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from paceline.ledger.atomic import read_json, write_json
from paceline.recipes.trial import Part

INDEX = "reference.json"
ANGLES = (0.7071, 1.3819, 2.2361)
"""Of the fixed directions: element (i, j, …) of direction k weighs Π cos((i+1)·angle_k + dim)."""


class Reference:
    """What one device got, on disk: a file of tensors a kind, and an index with the largest value of each."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.index: dict[str, Any] = read_json(folder / INDEX)

    @staticmethod
    def write_kind(folder: Path, kind: str, parts: Iterable[Part]) -> dict[str, float]:
        """Write the whole tensors of a kind (``gradient-1``, ``state``); the largest magnitude of each."""
        tensors: dict[str, Tensor] = {}
        for part in parts:
            if tuple(part.block.shape) != part.shape:
                raise ValueError(f"{part.name}: a reference holds whole tensors")
            tensors[part.name] = part.block.detach().to("cpu", torch.float64).contiguous()
        folder.mkdir(parents=True, exist_ok=True)
        save_file(tensors, folder / f"{kind}.safetensors")
        return {name: _most(tensor) for name, tensor in tensors.items()}

    @staticmethod
    def write_index(folder: Path, index: dict[str, Any]) -> None:
        """The numbers beside the tensors; written last."""
        write_json(folder / INDEX, index)

    def compare(self, kind: str, parts: Iterable[Part], floor: float) -> Iterator[dict[str, Any]]:
        """One row for each block, see :func:`compared`; a block whose tensor is not in the reference says so."""
        most: dict[str, float] = self.index["most"][kind]
        with safe_open(self.folder / f"{kind}.safetensors", "pt") as file:
            for part in parts:
                size = part.block.shape
                row: dict[str, Any] = {"name": part.name, "starts": list(part.starts), "shape": list(size)}
                if part.name not in most or tuple(self.index["shapes"][kind][part.name]) != part.shape:
                    yield {**row, "error": math.inf, "unknown": True}
                    continue
                at = tuple(slice(a, a + n) for a, n in zip(part.starts, size, strict=True))
                whole = file.get_slice(part.name)
                ours = whole[at] if part.shape else file.get_tensor(part.name)
                yield row | compared(ours, part.block, _scale(most, part.name, floor), part.starts)


def _scale(most: dict[str, float], name: str, floor: float) -> float:
    """What an error of this tensor is divided by; second moments are squares, and so is their floor."""
    family = family_of(name)
    largest = max(value for other, value in most.items() if family_of(other) == family)
    return max(most[name], (floor * floor if family == "exp_avg_sq" else floor) * largest)


def family_of(name: str) -> str:
    """``optimizer/…/exp_avg`` → ``exp_avg``; ``model/…`` → ``model``; a bare name (a gradient) → empty."""
    head, slash, rest = name.partition("/")
    if head == "optimizer":
        return rest.rpartition("/")[2]
    return head if slash else ""


def compared(ours: Tensor, theirs: Tensor, scale: float, starts: Iterable[int]) -> dict[str, Any]:
    """How ``theirs`` differs from the same block of the reference.

    Returns:
        ``error`` (infinite where a value is not finite), ``bad`` (values that are not finite), ``factor`` and
        ``rest`` (error that the factor leaves), ``ours`` and ``theirs`` (projections), and, where anything differs
        by more than a millionth of the error, ``wrong`` of ``of`` elements between ``low`` and ``high``.
    """
    a, b = ours.to(torch.float64), theirs.detach().to("cpu", torch.float64)
    scale = scale or 1.0
    bad = int((~torch.isfinite(b)).sum())
    row: dict[str, Any] = {"bad": bad, "of": a.numel()}
    if bad:
        return row | {"error": math.inf} | _where(~torch.isfinite(b), starts)
    away = (a - b).abs()
    error = _most(away) / scale
    squares = float((a * a).sum())
    factor = float((a * b).sum()) / squares if squares else 0.0
    row |= {"error": error, "factor": factor, "rest": _most(b - factor * a) / scale}
    row |= {"ours": project(a, starts), "theirs": project(b, starts)}
    return row | (_where(away > max(1e-3 * error, 1e-12) * scale, starts) if error > 1e-12 else {})


def project(values: Tensor, starts: Iterable[int]) -> list[float]:
    """Inner products with the fixed directions; those of the blocks of a tensor add up to the tensor's."""
    begins = list(starts)
    found = []
    for angle in ANGLES:
        left = values
        for dim, begin in enumerate(begins):
            index = torch.arange(begin + 1, begin + 1 + values.shape[dim], dtype=torch.float64)
            left = torch.tensordot(torch.cos(index * angle + dim), left, dims=([0], [0]))
        found.append(float(left))
    return found


def _where(wrong: Tensor, starts: Iterable[int]) -> dict[str, Any]:
    """How many elements, and the smallest block around them, in indices of the whole tensor."""
    count = int(wrong.sum())
    if not count or not wrong.ndim:
        return {"wrong": count}
    at = wrong.nonzero()
    begin = torch.tensor(list(starts))
    low, high = (at.min(0).values + begin).tolist(), (at.max(0).values + 1 + begin).tolist()
    return {"wrong": count, "low": low, "high": high}


def _most(values: Tensor) -> float:
    return float(values.abs().max()) if values.numel() else 0.0
