"""SwiGLU feed-forward (Shazeer 2020, arXiv:2002.05202)."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from paceline.compute.models.linear import Linear


class SwiGLU(nn.Module):
    """``down(silu(gate(x)) · up(x))``, hidden D → intermediate F → D."""

    def __init__(self, hidden_size: int, intermediate_size: int) -> None:
        super().__init__()
        self.gate_proj = Linear(hidden_size, intermediate_size)
        self.up_proj = Linear(hidden_size, intermediate_size)
        self.down_proj = Linear(intermediate_size, hidden_size)

    def forward(self, x_BTD: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x_BTD)) * self.up_proj(x_BTD))
