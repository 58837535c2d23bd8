"""A decoder-only transformer, written as if one device existed.

Parameter names are those of Hugging Face's Llama without the ``model.`` prefix, so that checkpoints and error
messages read as users expect. Nothing is initialised here: ``init.py`` fills every parameter, or any slice of
one, from (seed, name, index).

Legend: B batch, T sequence, D hidden, V vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from paceline.compute.models.attention import GroupedQueryAttention
from paceline.compute.models.linear import Embedding, Linear
from paceline.compute.models.mlp import SwiGLU
from paceline.compute.models.norm import RMSNorm
from paceline.compute.models.rope import RotaryTables
from paceline.compute.seams import Attention, Look, plain_attention
from paceline.job.presets import ModelWidths


class Block(nn.Module):
    """Pre-norm attention and feed-forward, each on the residual stream."""

    def __init__(self, widths: ModelWidths, attend: Attention) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(widths.hidden_size, widths.rms_norm_eps)
        self.self_attn = GroupedQueryAttention(widths, attend)
        self.post_attention_layernorm = RMSNorm(widths.hidden_size, widths.rms_norm_eps)
        self.mlp = SwiGLU(widths.hidden_size, widths.intermediate_size)

    def forward(self, x_BTD: Tensor, cos: Tensor, sin: Tensor, look: Look) -> Tensor:
        x_BTD = x_BTD + self.self_attn(self.input_layernorm(x_BTD), cos, sin, look)
        return x_BTD + self.mlp(self.post_attention_layernorm(x_BTD))


class Decoder(nn.Module):
    """tokens [B, T] → logits [B, T, V] in ``dtype``, the compute dtype (float64, float32 or bfloat16).

    Args:
        widths: shape of the model, named as in ``config.json``.
        dtype: dtype of activations and of weights where they are used; parameters keep their own.
        attend: the attention seam.
    """

    def __init__(
        self, widths: ModelWidths, dtype: torch.dtype = torch.float32, attend: Attention = plain_attention
    ) -> None:
        super().__init__()
        self.widths = widths
        self.dtype = dtype
        self.embed_tokens = Embedding(widths.vocab_size, widths.hidden_size)
        self.layers = nn.ModuleList(Block(widths, attend) for _ in range(widths.num_hidden_layers))
        self.norm = RMSNorm(widths.hidden_size, widths.rms_norm_eps)
        self.lm_head = Linear(widths.hidden_size, widths.vocab_size)
        self.tie_weights()
        self.rotary = RotaryTables(widths.head_dim, widths.rope_theta, widths.rope_scaling)

    def tie_weights(self) -> None:
        """Make head and embedding one parameter where the widths say so; ``to_empty`` splits them, so again then."""
        if self.widths.tie_word_embeddings:
            self.lm_head.weight = self.embed_tokens.weight

    def forward(
        self, tokens_BT: Tensor, positions_BT: Tensor | None = None, segments_BT: Tensor | None = None
    ) -> Tensor:
        """Logits [B, T, V].

        Args:
            tokens_BT: token ids, int64.
            positions_BT: position of each token in its document, int; None = 0 … T-1.
            segments_BT: document of each token, int; attention stays inside a document. None = one document.
        """
        x_BTD = self.embed_tokens(tokens_BT, self.dtype)
        cos, sin = self._rotation(tokens_BT, positions_BT)
        look = Look(segments_BT)
        for layer in self.layers:
            x_BTD = layer(x_BTD, cos, sin, look)
        return self.lm_head(self.norm(x_BTD))

    def _rotation(self, tokens_BT: Tensor, positions_BT: Tensor | None) -> tuple[Tensor, Tensor]:
        length = tokens_BT.shape[1]
        cos, sin = self.rotary.get(length, tokens_BT.device, self.dtype)
        if positions_BT is None:
            return cos[None, :length, None], sin[None, :length, None]
        return cos[positions_BT][:, :, None], sin[positions_BT][:, :, None]
