"""Initialisation as a pure function of (seed, parameter name, global index).

Each rank fills its own shard without communication and any slice is bit-equal to the same slice of the whole,
on any layout. ``torch.nn.init`` cannot do that: on a sharded tensor it repeats rows in silence on CPU.

Recipe: splitmix64 (Steele, Lea & Flood 2014, doi:10.1145/2660193.2660195) on the counter → 53-bit uniform →
inverse error function in float64 → scale → cast.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from paceline.job.presets import ModelWidths

_CHUNK = 1 << 18  # elements a pass: keeps the int64 and float64 temporaries inside the cache
_GAMMA, _MIX_1, _MIX_2 = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


@dataclass(frozen=True)
class Fill:
    """What a parameter starts as: ``constant`` everywhere, or a normal of this ``std`` when std > 0."""

    constant: float = 0.0
    std: float = 0.0


def fill_rule(name: str, widths: ModelWidths) -> Fill:
    """GPT-2's rule (Radford et al. 2019): std 0.02, residual outputs divided by sqrt(2 · layers).

    Learned positions and routers are weights like the others. Residual outputs are those of attention, of the dense
    feed-forward and of every expert, whose weights are stacked under the name of the projection itself.
    """
    parts = name.split(".")
    kind = parts.pop() if parts[-1] in ("weight", "bias") else "weight"
    if kind == "bias":
        return Fill()
    if parts[-1].endswith("norm"):
        return Fill(constant=1.0)
    if parts[-1] in ("o_proj", "down_proj"):
        return Fill(std=0.02 / math.sqrt(2 * widths.num_hidden_layers))
    return Fill(std=0.02)


def stream(seed: int, name: str) -> int:
    """The 64-bit start of a parameter's random stream; signed, as torch's int64 wants it."""
    digest = hashlib.blake2b(f"{seed}\0{name}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True)


@torch.no_grad()
def fill_slice(
    out: Tensor, rule: Fill, *, seed: int, name: str, shape: Sequence[int], offsets: Sequence[int]
) -> None:
    """Fill ``out``, the slice of a parameter of global ``shape`` that starts at ``offsets``, in place.

    Args:
        out: any shape that fits inside ``shape`` at ``offsets``; may be empty.
        rule: see :func:`fill_rule`.
        seed: the job's ``train.seed``.
        name: the parameter's name in the model, without wrappers; a tied weight has one name.
        shape: global shape, elements.
        offsets: global index of ``out[0, 0, …]``.
    """
    if rule.std == 0.0:
        out.fill_(rule.constant)
        return
    index = _global_index(out.shape, shape, offsets, out.device)
    flat = torch.empty(out.numel(), dtype=out.dtype, device=out.device)
    start = stream(seed, name)
    for lo in range(0, flat.numel(), _CHUNK):
        part = index[lo : lo + _CHUNK]
        flat[lo : lo + _CHUNK] = (_normal(part, start) * rule.std).to(out.dtype)
    out.copy_(flat.view(out.shape))


def _global_index(
    local: Sequence[int], shape: Sequence[int], offsets: Sequence[int], device: torch.device
) -> Tensor:
    """Row-major index in the whole parameter of each element of the slice, flattened, int64."""
    index = torch.zeros(1, dtype=torch.int64, device=device)
    for extent, size, offset in zip(local, shape, offsets, strict=True):
        along = torch.arange(offset, offset + extent, dtype=torch.int64, device=device)
        index = (index[:, None] * size + along[None, :]).reshape(-1)
    return index


def _normal(index: Tensor, start: int) -> Tensor:
    """Standard normal values, float64, of counters ``index`` in the stream that begins at ``start``."""
    bits = _splitmix64(index, start)
    uniform = (_shift(bits, 11).to(torch.float64) + 0.5) * 2.0**-53  # never 0 nor 1
    return torch.erfinv(2.0 * uniform - 1.0) * math.sqrt(2.0)


def _splitmix64(index: Tensor, start: int) -> Tensor:
    z = (index + 1) * _signed(_GAMMA) + start  # int64 wraps modulo 2^64, as the generator wants
    z = (z ^ _shift(z, 30)) * _signed(_MIX_1)
    z = (z ^ _shift(z, 27)) * _signed(_MIX_2)
    return z ^ _shift(z, 31)


def _shift(x: Tensor, bits: int) -> Tensor:
    """Logical right shift; torch's is arithmetic on int64."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def _signed(value: int) -> int:
    return value - (1 << 64) if value >= 1 << 63 else value
