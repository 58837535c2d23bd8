"""A mixture of experts the long way: every expert on every token, masked. Imports nothing of Paceline."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def chosen(values_E: list[float], count: int) -> list[int]:
    """Highest first, of equals the lowest index, by plain Python."""
    return sorted(range(len(values_E)), key=lambda i: (-values_E[i], i))[:count]


def mixture(
    x_ND: Tensor,
    weights: dict[str, Tensor],
    *,
    top_k: int,
    sigmoid: bool = False,
    normalise: bool = True,
    factor: float = 1.0,
    bias_E: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Output [N, D], the choice as a 0/1 mask [N, E], and the scores [N, E]; all with their graph."""
    logits_NE = x_ND @ weights["gate.weight"].T
    scores_NE = torch.sigmoid(logits_NE) if sigmoid else torch.softmax(logits_NE, -1)
    ranked_NE = scores_NE if bias_E is None else scores_NE + bias_E
    mask_NE = torch.zeros_like(scores_NE)
    for token, row in enumerate(ranked_NE.tolist()):
        mask_NE[token, chosen(row, top_k)] = 1.0
    routing_NE = scores_NE * mask_NE
    if normalise:
        routing_NE = routing_NE / routing_NE.sum(-1, keepdim=True)
    out_ND = torch.zeros_like(x_ND)
    for e in range(scores_NE.shape[1]):
        gate, up = x_ND @ weights["experts.gate_proj"][e].T, x_ND @ weights["experts.up_proj"][e].T
        y_ND = (F.silu(gate) * up) @ weights["experts.down_proj"][e].T
        out_ND = out_ND + factor * routing_NE[:, e : e + 1] * y_ND
    if "shared_experts.up_proj.weight" in weights:
        gate = x_ND @ weights["shared_experts.gate_proj.weight"].T
        up = x_ND @ weights["shared_experts.up_proj.weight"].T
        out_ND = out_ND + (F.silu(gate) * up) @ weights["shared_experts.down_proj.weight"].T
    return out_ND, mask_NE, scores_NE
