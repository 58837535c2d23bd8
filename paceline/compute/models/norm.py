"""RMSNorm (Zhang & Sennrich 2019, arXiv:1910.07467) and LayerNorm (Ba et al. 2016, arXiv:1607.06450).

Both are fp32 islands: the statistics are taken in float32 (float64 for a float64 input) whatever the activation's
dtype; the result returns to that dtype before it meets weight and bias, as every other activation does.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class RMSNorm(nn.Module):
    """``x / sqrt(mean(x²) + eps) · w`` over the last dim [D]."""

    def __init__(self, hidden_size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(hidden_size))
        self.eps = eps

    def forward(self, x_BTD: Tensor) -> Tensor:
        wide = torch.promote_types(x_BTD.dtype, torch.float32)
        if x_BTD.dtype == wide:
            return F.rms_norm(x_BTD, x_BTD.shape[-1:], self.weight.to(wide), self.eps)
        normed = F.rms_norm(x_BTD.to(wide), x_BTD.shape[-1:], None, self.eps).to(x_BTD.dtype)
        return normed * self.weight.to(x_BTD.dtype)


class LayerNorm(nn.Module):
    """``(x - mean(x)) / sqrt(var(x) + eps) · w + b`` over the last dim [D]."""

    def __init__(self, hidden_size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(hidden_size))
        self.bias = nn.Parameter(torch.empty(hidden_size))
        self.eps = eps

    def forward(self, x_BTD: Tensor) -> Tensor:
        wide = torch.promote_types(x_BTD.dtype, torch.float32)
        if x_BTD.dtype == wide:
            weight, bias = self.weight.to(wide), self.bias.to(wide)
            return F.layer_norm(x_BTD, x_BTD.shape[-1:], weight, bias, self.eps)
        normed = F.layer_norm(x_BTD.to(wide), x_BTD.shape[-1:], None, None, self.eps).to(x_BTD.dtype)
        return normed * self.weight.to(x_BTD.dtype) + self.bias.to(x_BTD.dtype)


NORMS: dict[str, type[RMSNorm] | type[LayerNorm]] = {"rmsnorm": RMSNorm, "layernorm": LayerNorm}
