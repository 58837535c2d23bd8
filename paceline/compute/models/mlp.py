"""The dense feed-forward: gated (SwiGLU and its kin, Shazeer 2020, arXiv:2002.05202) or plain, as in GPT-2.

Legend: B batch, T tokens, P of them in this part of the residual stream, D hidden, F intermediate features that
are here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import torch.nn.functional as F
from torch import Tensor, nn

from paceline.compute.models.linear import Linear
from paceline.compute.seams import Stream, WholeStream
from paceline.job.presets import ModelWidths

_gelu_tanh = partial(F.gelu, approximate="tanh")
ACTIVATIONS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_new": _gelu_tanh,  # GPT-2's name for it
    "gelu_pytorch_tanh": _gelu_tanh,
    "relu": F.relu,
}


class MLP(nn.Module):
    """``down(act(gate(x)) · up(x))``, or ``down(act(up(x)))`` without a gate; D → F → D.

    Args:
        widths: hidden size, activation, gate and biases are read.
        intermediate_size: of the whole, F where nothing is cut.
        stream: the seam around a sub-layer that may be cut.
    """

    def __init__(self, widths: ModelWidths, intermediate_size: int, stream: Stream | None = None) -> None:
        super().__init__()
        hidden, bias = widths.hidden_size, widths.mlp_bias
        if widths.gated_mlp:
            self.gate_proj = Linear(hidden, intermediate_size, bias=bias)
        self.up_proj = Linear(hidden, intermediate_size, bias=bias)
        self.down_proj = Linear(intermediate_size, hidden, bias=bias)
        self.gated = widths.gated_mlp
        self.act = ACTIVATIONS[widths.hidden_act]
        self.stream = stream or WholeStream()

    def forward(self, x_BPD: Tensor, counted_BP: Tensor | None = None) -> Tensor:
        """``counted_BP`` is for a mixture of experts, which stands in the same place."""
        x_BTD = self.stream.gather(x_BPD)
        if self.gated:
            inner_BTF = self.act(self.gate_proj(x_BTD)) * self.up_proj(x_BTD)
        else:
            inner_BTF = self.act(self.up_proj(x_BTD))
        y_BPD = self.stream.spread(self.down_proj.product(inner_BTF))
        return self.down_proj.add_bias(y_BPD)
