"""The experts of a layer: as many gated MLPs as there are, over rows that are sorted by expert; none is dropped.

Title of the hard why: *an expert without tokens has a gradient of zero*. Not none, which would stop a reduction that
others wait in, and not NaN: so an empty product is computed like any other, and every output row is written.

A grouped GEMM is used where the installed torch has one for the device and dtype (bfloat16 on CUDA) and it passes a
trial; everywhere else, and for widths that it does not take, a loop. On a CPU torch's grouped GEMM is a loop too
(measured on 2.13: 2–6 % apart, float64 refused, gradients must be contiguous), so it is not used there.

Legend: M rows (token, choice), E experts here, D hidden, F intermediate, I in, O out.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from paceline.compute.models.mlp import ACTIVATIONS
from paceline.job.presets import ModelWidths

_grouped_mm: Any = getattr(F, "grouped_mm", None) or getattr(torch, "_grouped_mm", None)
_ALIGNED = 16  # bytes that a row of each operand must be a multiple of


class Experts(nn.Module):
    """``down_e(act(gate_e(x)) · up_e(x))`` for the rows of each expert e; without ``gated_mlp`` no gate, no biases.

    Weights are [E, F, D] and [E, D, F]; E and F are read from them, so a cut weight just works (along F the result is
    a partial sum).
    """

    def __init__(self, widths: ModelWidths) -> None:
        super().__init__()
        count, hidden, wide = widths.num_experts, widths.hidden_size, widths.moe_intermediate_size
        gated = widths.gated_mlp
        self.gate_proj = nn.Parameter(torch.empty(count, wide, hidden)) if gated else None
        self.up_proj = nn.Parameter(torch.empty(count, wide, hidden))
        self.down_proj = nn.Parameter(torch.empty(count, hidden, wide))
        self.act = ACTIVATIONS[widths.hidden_act]

    def forward(self, x_MD: Tensor, counts_E: Tensor) -> Tensor:
        """y [M, D] of x [M, D] sorted by expert, of which ``counts_E`` [E] (int64, summing to M) belong to each."""
        up, down = self.up_proj.to(x_MD.dtype), self.down_proj.to(x_MD.dtype)
        gate = None if self.gate_proj is None else self.gate_proj.to(x_MD.dtype)
        if fits_grouped(x_MD, up):
            ends_E = counts_E.cumsum(0).to(torch.int32)
            product = self.act(grouped(x_MD, up if gate is None else gate, ends_E))
            hidden = product if gate is None else product * grouped(x_MD, up, ends_E)
            return grouped(hidden, down, ends_E)
        gates = [None] * up.shape[0] if gate is None else gate.unbind(0)
        rows = x_MD.split(counts_E.tolist())  # the one wait for the device in here
        each = zip(rows, gates, up.unbind(0), down.unbind(0), strict=True)
        return torch.cat([self._expert(*parts) for parts in each])

    def _expert(self, x_MD: Tensor, gate_FD: Tensor | None, up_FD: Tensor, down_DF: Tensor) -> Tensor:
        up_MF = F.linear(x_MD, up_FD)
        hidden_MF = self.act(up_MF) if gate_FD is None else self.act(F.linear(x_MD, gate_FD)) * up_MF
        return F.linear(hidden_MF, down_DF)


def grouped(x_MI: Tensor, weight_EOI: Tensor, ends_E: Tensor) -> Tensor:
    """x of each expert times its weight's transpose [M, O], in one kernel; ``ends_E`` int32, the last one is M.

    Rows behind the last end would not be written; there are none.
    """
    product: Tensor = _grouped_mm(x_MI, weight_EOI.transpose(1, 2), offs=ends_E)
    return product


def fits_grouped(x_MD: Tensor, weight_EFD: Tensor) -> bool:
    """Whether the grouped GEMM takes these operands; decided by the host alone."""
    if _grouped_mm is None or x_MD.device.type != "cuda" or x_MD.dtype != torch.bfloat16 or not len(x_MD):
        return False
    if any(size * x_MD.element_size() % _ALIGNED for size in weight_EFD.shape[1:]):
        return False
    return _works(x_MD.device)


@cache
def _works(device: torch.device) -> bool:
    """One trial for each device, forward and backward, with experts that have no rows, against the loop."""
    try:
        rows = [0, 3, 0, 5]
        ends_E = torch.tensor(rows, device=device).cumsum(0).to(torch.int32)
        x = (torch.arange(8 * 16, device=device) % 7 - 3).to(torch.bfloat16).view(8, 16)
        w = (torch.arange(4 * 16 * 16, device=device) % 5 - 2).to(torch.bfloat16).view(4, 16, 16)
        with torch.enable_grad():
            a, b = (x.clone().requires_grad_(), w.clone().requires_grad_())
            y = grouped(a, b, ends_E)
            found = (y, *torch.autograd.grad(y, (a, b), y.detach().clone()))
            c, d = (x.clone().requires_grad_(), w.clone().requires_grad_())
            z = torch.cat([F.linear(r, e) for r, e in zip(c.split(rows), d.unbind(0), strict=True)])
            wanted = (z, *torch.autograd.grad(z, (c, d), z.detach().clone()))
        return all(torch.allclose(f, g, rtol=2e-2) for f, g in zip(found, wanted, strict=True))
    except (RuntimeError, NotImplementedError, TypeError):
        return False
