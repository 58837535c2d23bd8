"""Balance of experts that does not depend on the layout: by the global counts of the step before.

The term of a layer, added to the loss with the coefficient c (``router_aux_loss_coef``), is the expert-level
balance loss of DeepSeek-V2 (arXiv:2405.04434, §2.2.3; for one expert a token it is Switch Transformer's,
arXiv:2101.03961, eq. 4)::

    aux = c · E · Σ_i f_i · P_i        P_i = 1/N Σ_t p_ti        f_i = choices of expert i / (K · N)

    N tokens of the global batch that have a target, K experts a token, E experts
    p_ti  score of expert i for token t; a sigmoid's is divided by the token's sum (arXiv:2412.19437, eq. 19)

Title of the hard why: *f is the last step's*. f has no gradient, yet it multiplies every gradient, so f of this batch
is known only when all its forwards are done: before that no backward could start, which accumulation and pipelines
rule out. f of a micro-batch instead makes the loss depend on how the batch was cut (the router's gradient is wrong by
45 % on four micro-batches). With f of the step before (uniform at the first), aux is a plain sum over tokens,
``Σ_t c · E/N · Σ_i f_i p_ti``, so any cut of the batch over micro-batches, ranks, sequence and stages gives the same
gradient to rounding, without communication. f comes from integers that are summed over all ranks of a stage: equal
bits on every layout. It is a buffer of the router, so a checkpoint carries it.

Counted are the choices before anything could be dropped (nothing is: dropless), of tokens with a target only, in
forwards that train: gradients on, module in training mode, and not the second time where a forward is recomputed.

A sigmoid router also has a bias that only the choice sees, moved after each step by the sign of its expert's lack of
tokens (auxiliary-loss-free balancing, Wang et al. 2024, arXiv:2408.15664, algorithm 1).

Legend: N tokens, K experts a token, E experts, L layers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from paceline.compute.models.replay import Replay
from paceline.job.presets import ModelWidths

BIAS_STEP = 1e-3  # γ of arXiv:2412.19437, §4.2
SumOverStage = Callable[[Tensor], Tensor]
"""Sum of a float64 tensor over all ranks that hold the same layers; in place is fine."""


class Gate(Protocol):
    """What balance needs of a router: its buffers, [E] each."""

    fraction: Tensor
    e_score_correction_bias: Tensor | None

    def reset_buffers(self) -> None: ...


class Balance:
    """The balance of all routers of one model, or of one stage of it.

    Args:
        widths: of the model; the coefficient, E and K are read.

    Attributes:
        scale: by what the term's gradient is multiplied; whatever the summed loss is multiplied by (1 / valid tokens
            of the global batch). Set it before the forward.
        counts: by layer, choices of each expert since the last settling, int64 [E].
        aux_sum: the term of this rank's tokens since then, not yet divided by N, float64.
        replay: records the routing, or puts another run's in its place.
    """

    def __init__(self, widths: ModelWidths) -> None:
        self.coefficient, self.top_k = widths.router_aux_loss_coef, widths.num_experts_per_tok
        self.scale: Tensor | float = 1.0
        self.counts: dict[int, Tensor] = {}
        self.aux_sum: Tensor | None = None
        self.replay: Replay | None = None
        self.gates: dict[int, Gate] = {}

    def attach(self, layer: int, gate: Gate) -> None:
        """A router makes itself known; ``layer`` is its global number."""
        self.gates[layer] = gate

    def reset(self) -> None:
        """Buffers as at the first step: after ``to_empty``, whose memory holds anything."""
        for gate in self.gates.values():
            gate.reset_buffers()
        self.forget()

    def forget(self) -> None:
        """Drop what was counted, as after a step that did not touch the weights."""
        self.counts.clear()
        self.aux_sum = None

    def watch(
        self, layer: int, weights_NK: Tensor, p_NE: Tensor, choice_NK: Tensor, counted_N: Tensor | None
    ) -> Tensor:
        """Count a training forward and put the term's gradient into its backward; returns the weights unchanged.

        Args:
            layer: global number.
            weights_NK: routing weights; any tensor whose backward is sure to run would do.
            p_NE: scores that sum to one over the experts, with their graph.
            choice_NK: the experts chosen.
            counted_N: which tokens have a target; None = all.
        """
        if counted_N is None:
            counted_N = torch.ones(p_NE.shape[0], dtype=torch.bool, device=p_NE.device)
        factor_E = self.gates[layer].fraction.to(p_NE.dtype) * (self.coefficient * p_NE.shape[1])
        if not is_recomputed():
            self._count(layer, p_NE.detach(), choice_NK, counted_N, factor_E)
        if self.coefficient == 0.0:
            return weights_NK
        pull_E = factor_E * self.scale
        return _Pull.apply(weights_NK, p_NE, pull_E.to(p_NE.dtype), counted_N)

    def _count(
        self, layer: int, p_NE: Tensor, choice_NK: Tensor, counted_N: Tensor, factor_E: Tensor
    ) -> None:
        if layer not in self.counts:
            self.counts[layer] = choice_NK.new_zeros(p_NE.shape[1])
        if self.aux_sum is None:
            self.aux_sum = p_NE.new_zeros((), dtype=torch.float64)
        ones = counted_N[:, None].expand_as(choice_NK).reshape(-1).to(torch.int64)
        self.counts[layer].scatter_add_(0, choice_NK.reshape(-1), ones)
        p_E = (p_NE * counted_N[:, None]).sum(0, dtype=torch.float64)
        self.aux_sum += p_E @ factor_E.to(torch.float64)


class Balances:
    """The balances of all stages that a rank holds, as a step sees them.

    Attributes:
        aux_loss: what the balance adds to the loss at the last settled step, over this stage's layers, float64 scalar;
            None before the first. load_max: the busiest expert's share of a layer's tokens, 1 = even, the largest
            over these layers. Over several stages: the sum, and the maximum.
    """

    def __init__(self, balances: Sequence[Balance]) -> None:
        self.balances = [balance for balance in balances if balance.gates]
        self.aux_loss: Tensor | None = None
        self.load_max: Tensor | None = None
        self._packed: Tensor | None = None

    def weigh(self, scale: Tensor) -> None:
        """Before the forward: ``scale`` is 1 / valid tokens of the global batch."""
        for balance in self.balances:
            balance.scale = scale

    def forget(self) -> None:
        """The step did not touch the weights: its counts do not count."""
        self._packed = None
        for balance in self.balances:
            balance.forget()

    @torch.no_grad()
    def add_up(self, sum_over_stage: SumOverStage) -> None:
        """Before the update: the counts of all ranks of the stage, each of which calls it.

        One sum, of float64 that holds the counts exactly (to 2^53) and the term.
        """
        if self.balances:
            self._packed = sum_over_stage(torch.cat([_pack(balance) for balance in self.balances]))

    @torch.no_grad()
    def settle(self) -> None:
        """With the update: the global counts become the next step's fractions and move the bias. No message is sent."""
        packed, self._packed = self._packed, None
        if packed is None:
            return
        terms, loads = [], []
        at = 0
        for balance in self.balances:
            for _, gate in sorted(balance.gates.items()):
                counts_E = packed[at : at + gate.fraction.numel()]
                at += gate.fraction.numel()
                loads.append(_settle(gate, counts_E))
            tokens = counts_E.sum() / balance.top_k  # each layer routes every token
            terms.append(packed[at] / tokens.clamp(min=1.0))
            at += 1
        self.forget()
        self.aux_loss, self.load_max = torch.stack(terms).sum(), torch.stack(loads).max()


def is_recomputed() -> bool:
    """Whether this forward is an activation recompute: autograd is running a backward around it.

    Nothing else runs a forward inside a backward; torch's own checkpoint tells its recomputes by the same number.
    """
    return torch._C._current_graph_task_id() != -1


def _pack(balance: Balance) -> Tensor:
    """Counts of all layers in order, zeros where nothing was counted, then the term."""
    parts = []
    for layer, gate in sorted(balance.gates.items()):
        zero = torch.zeros(gate.fraction.numel(), dtype=torch.float64, device=gate.fraction.device)
        parts.append(balance.counts.get(layer, zero).to(torch.float64))
    parts.append(parts[0].new_zeros(1) if balance.aux_sum is None else balance.aux_sum.view(1))
    return torch.cat(parts)


def _settle(gate: Gate, counts_E: Tensor) -> Tensor:
    """Set the buffers of a router; returns E · max f. Where nothing was counted, everything stays as it was."""
    total = counts_E.sum()
    share_E = counts_E / total.clamp(min=1.0)
    gate.fraction.copy_(torch.where(total > 0, share_E, gate.fraction.to(torch.float64)))
    if gate.e_score_correction_bias is not None:
        lack_E = total - counts_E * counts_E.numel()  # its sign is exact: whole numbers
        gate.e_score_correction_bias.add_(BIAS_STEP * lack_E.sign())
    return share_E.max() * share_E.numel()


class _Pull(torch.autograd.Function):
    """Identity on the routing weights whose backward adds the gradient of the term through p: no path to the loss
    is needed, so a stage of a pipeline that never sees the loss is as good as any."""

    @staticmethod
    def forward(ctx: Any, weights_NK: Tensor, p_NE: Tensor, pull_E: Tensor, counted_N: Tensor) -> Tensor:
        ctx.save_for_backward(pull_E, counted_N)
        return weights_NK.view_as(weights_NK)

    @staticmethod
    def backward(ctx: Any, grad_NK: Tensor) -> tuple[Tensor, Tensor, None, None]:
        pull_E, counted_N = ctx.saved_tensors
        return grad_NK, counted_N[:, None] * pull_E, None, None
