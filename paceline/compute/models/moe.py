"""Mixture of experts: a router, experts without a capacity limit, and shared experts that see every token.

Names are those of Hugging Face's DeepSeek-V3 and Qwen3-MoE (``mlp.gate``, ``mlp.experts``, ``mlp.shared_experts``),
the experts' weights stacked. The router has no noise, so there is no random state to lose (B013).

Legend: B batch, P tokens of this rank's part of the stream, D hidden, N = B · P tokens, E experts, K experts a token.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from paceline.compute.models.balance import Balance, is_recomputed
from paceline.compute.models.experts import Experts
from paceline.compute.models.mlp import MLP
from paceline.compute.seams import Seams
from paceline.job.presets import ModelWidths


class Router(nn.Module):
    """Scores of all experts for each token; an fp32 island (float64 for float64).

    The weight [E, D] meets the activation's dtype first, as every weight does, so that one that arrives already cast
    gives the same bits.

    Attributes:
        fraction: share of the choices that each expert had at the last step [E], persistent.
        e_score_correction_bias: of a sigmoid router [E], persistent; else None.
    """

    fraction: Tensor
    e_score_correction_bias: Tensor | None

    def __init__(self, widths: ModelWidths) -> None:
        super().__init__()
        count = widths.num_experts
        self.top_k = widths.num_experts_per_tok
        self.sigmoid = widths.scoring_func == "sigmoid"
        self.normalise, self.factor = widths.norm_topk_prob, widths.routed_scaling_factor
        self.weight = nn.Parameter(torch.empty(count, widths.hidden_size))
        self.register_buffer("fraction", torch.empty(count))
        self.register_buffer("e_score_correction_bias", torch.empty(count) if self.sigmoid else None)
        self.reset_buffers()

    def reset_buffers(self) -> None:
        """As at the first step: even fractions, no bias."""
        self.fraction.fill_(1.0 / self.fraction.numel())
        if self.e_score_correction_bias is not None:
            self.e_score_correction_bias.zero_()

    def forward(self, x_ND: Tensor) -> Tensor:
        """Scores [N, E], softmax or sigmoid of the logits, in the wide dtype."""
        wide = torch.promote_types(x_ND.dtype, torch.float32)
        logits_NE = F.linear(x_ND.to(wide), self.weight.to(x_ND.dtype).to(wide))
        return logits_NE.sigmoid() if self.sigmoid else logits_NE.softmax(-1)

    def choose(self, scores_NE: Tensor) -> Tensor:
        """The K experts [N, K] of the highest scores, highest first; of equals, the lowest index.

        A sigmoid router chooses by score + bias (DeepSeek-V3, arXiv:2412.19437, eq. 16). Never ``topk``: which of
        equals it takes is arbitrary.
        """
        scores_NE = scores_NE.detach()
        if self.e_score_correction_bias is not None:
            scores_NE = scores_NE + self.e_score_correction_bias.to(scores_NE.dtype)
        order_NE = torch.sort(scores_NE, dim=-1, descending=True, stable=True).indices
        return order_NE[:, : self.top_k]

    def weigh(self, scores_NE: Tensor, choice_NK: Tensor) -> Tensor:
        """Weights [N, K] of the chosen experts: raw scores, made to sum to one where the widths say so."""
        weights_NK = scores_NE.gather(1, choice_NK)
        if self.normalise:
            weights_NK = weights_NK / (weights_NK.sum(-1, keepdim=True) + 1e-20)
        return weights_NK * self.factor

    def shares(self, scores_NE: Tensor) -> Tensor:
        """The p of the balance term: scores that sum to one over the experts."""
        return scores_NE / (scores_NE.sum(-1, keepdim=True) + 1e-20) if self.sigmoid else scores_NE


class MoE(nn.Module):
    """Σ_k weight_k · expert_k(x), plus the shared experts of x.

    Args:
        widths: of the model.
        layer_number: global.
        seams: ``dispatch`` takes tokens to experts; ``stream`` is for the shared experts only, since a token of the
            stream is routed by the rank that has it.
        balance: of the model; counts, and adds the balance term's gradient.
    """

    def __init__(self, widths: ModelWidths, layer_number: int, seams: Seams, balance: Balance) -> None:
        super().__init__()
        self.layer_number, self.num_experts = layer_number, widths.num_experts
        self.dispatch, self.balance = seams.dispatch, balance
        self.gate = Router(widths)
        self.experts = Experts(widths)
        shared = widths.n_shared_experts * widths.moe_intermediate_size
        self.shared_experts = MLP(widths, shared, seams.stream) if shared else None
        balance.attach(layer_number, self.gate)

    def forward(self, x_BPD: Tensor, counted_BP: Tensor | None = None) -> Tensor:
        """y [B, P, D]; ``counted_BP`` says which tokens have a target (None = all) and matters to balance only."""
        x_ND = x_BPD.reshape(-1, x_BPD.shape[-1])
        scores_NE = self.gate(x_ND)
        choice_NK = self.gate.choose(scores_NE)
        if self.balance.replay is not None:
            choice_NK = self.balance.replay(self.layer_number, choice_NK, counted_BP, is_recomputed())
        weights_NK = self.gate.weigh(scores_NE, choice_NK)
        if self.training and torch.is_grad_enabled():
            counted_N = None if counted_BP is None else counted_BP.reshape(-1)
            shares_NE = self.gate.shares(scores_NE)
            weights_NK = self.balance.watch(self.layer_number, weights_NK, shares_NE, choice_NK, counted_N)
        y_NKD = self.dispatch(x_ND, choice_NK, self.experts, self.num_experts)
        y_ND = (y_NKD.to(weights_NK.dtype) * weights_NK[..., None]).sum(1).to(x_ND.dtype)
        y_BPD = y_ND.view_as(x_BPD)
        return y_BPD if self.shared_experts is None else y_BPD + self.shared_experts(x_BPD)
