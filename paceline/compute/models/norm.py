"""RMSNorm (Zhang & Sennrich 2019, arXiv:1910.07467): statistics in float32 or better, an fp32 island."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class RMSNorm(nn.Module):
    """``x / sqrt(mean(x²) + eps) · w`` over the last dim [D].

    The statistics are taken in float32 (float64 for a float64 input) whatever the activation's dtype; the
    result returns to that dtype before it meets the weight, as every other weight does.
    """

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
