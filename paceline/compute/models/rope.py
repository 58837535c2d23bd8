"""Rotary position embedding (Su et al. 2021, arXiv:2104.09864), in Hugging Face's half-split layout.

The tables are an fp32 island: angles in float64, tables in float32 (float64 for proofs), kept outside the
module's buffers so that no cast of the model, no wrapper and no longer input can lower their precision.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

Rotation = tuple[Tensor, Tensor]
"""cos and sin of each token's angles, [B or 1, T, 1, head_dim]."""


def inverse_frequencies(head_dim: int, theta: float, scaling: Mapping[str, Any] | None) -> Tensor:
    """``theta^(-2i/head_dim)`` for i < head_dim/2, float64 on CPU, after Hugging Face's ``rope_scaling``.

    Supported scalings: ``linear`` (positions divided by ``factor``) and ``llama3`` (Llama 3.1: wavelengths
    above the original context divided by ``factor``, a smooth ramp between the two frequency factors).
    """
    # the model is built on the meta device; this table is not a weight
    freq = theta ** (-torch.arange(0, head_dim, 2, dtype=torch.float64, device="cpu") / head_dim)
    kind = None if not scaling else scaling.get("rope_type", scaling.get("type"))
    if kind in (None, "default"):
        return freq
    assert scaling is not None
    factor = float(scaling["factor"])
    if kind == "linear":
        return freq / factor
    if kind != "llama3":
        raise ValueError(f"rope_scaling type {kind!r}: the job's schema should have refused it")
    low, high = float(scaling["low_freq_factor"]), float(scaling["high_freq_factor"])
    context = float(scaling["original_max_position_embeddings"])
    turns = context * freq / (2 * math.pi)
    keep = ((turns - low) / (high - low)).clamp(0.0, 1.0)
    return freq * (keep + (1 - keep) / factor)


class RotaryTables:
    """cos and sin [positions, head_dim] for a device and dtype, grown on demand and always exact."""

    def __init__(self, head_dim: int, theta: float, scaling: Mapping[str, Any] | None) -> None:
        self._freq = inverse_frequencies(head_dim, theta, scaling)
        self._kept: dict[tuple[torch.device, torch.dtype], tuple[Tensor, Tensor]] = {}

    def get(self, length: int, device: torch.device, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """cos, sin [>= length, head_dim] in float32, or float64 when ``dtype`` is float64."""
        wide = torch.promote_types(dtype, torch.float32)
        kept = self._kept.get((device, wide))
        if kept is None or kept[0].shape[0] < length:
            angle = torch.outer(torch.arange(length, dtype=torch.float64, device="cpu"), self._freq)
            angle = torch.cat((angle, angle), dim=-1)
            kept = (angle.cos().to(device, wide), angle.sin().to(device, wide))
            self._kept[(device, wide)] = kept
        return kept

    def at(self, positions: Tensor, dtype: torch.dtype, longest: int | None = None) -> tuple[Tensor, Tensor]:
        """cos, sin [*positions.shape, head_dim] of the positions, all below ``longest`` where that is known."""
        if longest is not None:
            cos, sin = self.get(longest, positions.device, dtype)
            return cos[positions], sin[positions]
        wide = torch.promote_types(dtype, torch.float32)
        angle = positions[..., None].to(torch.float64) * self._freq.to(positions.device)
        angle = torch.cat((angle, angle), dim=-1)
        return angle.cos().to(wide), angle.sin().to(wide)


def rotate(x_BTHK: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate the head vectors of [B, T, heads, head_dim]; cos, sin broadcast as [.., T, 1, head_dim]."""
    wide = x_BTHK.to(cos.dtype)
    first, second = wide.chunk(2, dim=-1)
    return (wide * cos + torch.cat((-second, first), dim=-1) * sin).to(x_BTHK.dtype)
