"""A decoder-only transformer, written as if one device existed.

Parameter names are those of Hugging Face's Llama without the ``model.`` prefix, so that checkpoints and error
messages read as users expect. Nothing is initialised here: ``init.py`` fills every parameter, or any slice of
one, from (seed, name, index).

Legend: B batch, T sequence, P of its tokens in this part of the residual stream, D hidden, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from paceline.compute.loss import IGNORED, linear_cross_entropy, soft_cap
from paceline.compute.models.attention import GroupedQueryAttention
from paceline.compute.models.balance import Balance
from paceline.compute.models.latent import LatentAttention
from paceline.compute.models.linear import Embedding, Linear
from paceline.compute.models.mlp import MLP
from paceline.compute.models.moe import MoE
from paceline.compute.models.norm import NORMS
from paceline.compute.models.recompute import recomputed
from paceline.compute.models.rope import RotaryTables, Rotation
from paceline.compute.seams import Look, Seams, plain_attention
from paceline.job.presets import ModelWidths


@dataclass(frozen=True)
class Part:
    """A stage of a pipeline: some layers by their global number, and whether embedding and head are here."""

    layers: range
    embeds: bool
    predicts: bool

    @classmethod
    def whole(cls, widths: ModelWidths) -> Part:
        """All of it."""
        return cls(range(widths.num_hidden_layers), embeds=True, predicts=True)


class Block(nn.Module):
    """Pre-norm attention and feed-forward, each on the residual stream."""

    def __init__(
        self, widths: ModelWidths, layer: int, seams: Seams, recompute: str, balance: Balance | None
    ) -> None:
        super().__init__()
        norm = NORMS[widths.norm]
        self.input_layernorm = norm(widths.hidden_size, widths.rms_norm_eps)
        self.self_attn = attention_of(widths, seams)
        self.post_attention_layernorm = norm(widths.hidden_size, widths.rms_norm_eps)
        self.mlp = feed_forward_of(widths, layer, seams, balance)
        self.window = window_of(widths, layer)
        self.recompute = recompute

    def forward(
        self, x_BPD: Tensor, rotation: Rotation | None, look: Look, counted_BP: Tensor | None
    ) -> Tensor:
        return recomputed(self.recompute, self._forward, x_BPD, rotation, look, counted_BP)

    def _forward(
        self, x_BPD: Tensor, rotation: Rotation | None, look: Look, counted_BP: Tensor | None
    ) -> Tensor:
        x_BPD = x_BPD + self.self_attn(self.input_layernorm(x_BPD), rotation, look)
        return x_BPD + self.mlp(self.post_attention_layernorm(x_BPD), counted_BP)


def attention_of(widths: ModelWidths, seams: Seams) -> nn.Module:
    """The attention of a layer: grouped-query, or latent where the widths compress keys and values."""
    if widths.kv_lora_rank is not None:
        return LatentAttention(widths, seams)
    return GroupedQueryAttention(widths, seams)


def feed_forward_of(widths: ModelWidths, layer: int, seams: Seams, balance: Balance | None) -> nn.Module:
    """The feed-forward of a layer: dense, or a mixture of experts."""
    if balance is not None and has_experts(widths, layer):
        return MoE(widths, layer, seams, balance)
    return MLP(widths, widths.intermediate_size, seams.stream)


def has_experts(widths: ModelWidths, layer: int) -> bool:
    """Whether a layer is a mixture of experts."""
    return widths.num_experts > 0 and layer >= widths.first_k_dense_replace


def window_of(widths: ModelWidths, layer: int) -> int | None:
    """How many tokens a layer looks back, itself included; None = all. A window without a list slides everywhere."""
    kinds = widths.layer_types
    return None if kinds is not None and kinds[layer] == "full_attention" else widths.sliding_window


class Decoder(nn.Module):
    """A decoder in ``dtype``, the compute dtype (float64, float32 or bfloat16), or a part of one.

    Args:
        widths: shape of the whole model, named as in ``config.json``.
        dtype: dtype of activations and of weights where they are used; parameters keep their own.
        seams: where distribution plugs in.
        part: the stage of a pipeline that this is; None = the whole.
        recompute: ``none``, ``selective`` or ``full``, see ``recompute.py``.

    Attributes:
        balance: load of the experts (``moe.py``), None without experts. Not a module.
        watch: gets the gradient of what enters the first layer, in every backward; None = nobody looks.
    """

    def __init__(
        self,
        widths: ModelWidths,
        dtype: torch.dtype = torch.float32,
        seams: Seams = Seams(),
        part: Part | None = None,
        recompute: str = "none",
    ) -> None:
        super().__init__()
        self.widths, self.dtype, self.seams = widths, dtype, seams
        self.part = part or Part.whole(widths)
        self.balance = Balance(widths) if widths.num_experts else None
        self.watch: Callable[[Tensor], None] | None = None
        tied = widths.tie_word_embeddings
        if self.part.embeds or (self.part.predicts and tied):
            self.embed_tokens = Embedding(widths.vocab_size, widths.hidden_size)
        if self.part.embeds and widths.position_embedding_type == "absolute":
            self.embed_positions = Embedding(widths.max_position_embeddings, widths.hidden_size)
        self.layers = nn.ModuleDict(
            {str(i): Block(widths, i, seams, recompute, self.balance) for i in self.part.layers}
        )
        if self.part.predicts:
            self.norm = NORMS[widths.norm](widths.hidden_size, widths.rms_norm_eps)
            self.lm_head = Linear(widths.hidden_size, widths.vocab_size)
        self.tie_weights()
        self.rotary = None
        if widths.position_embedding_type == "rope":
            self.rotary = RotaryTables(rotary_dim(widths), widths.rope_theta, widths.rope_scaling)

    def tie_weights(self) -> None:
        """Make head and embedding one parameter where the widths say so; ``to_empty`` splits them, so again then."""
        if self.part.predicts and self.widths.tie_word_embeddings:
            self.lm_head.weight = self.embed_tokens.weight

    def forward(
        self,
        x: Tensor,
        positions: Tensor | None = None,
        segments: Tensor | None = None,
        targets: Tensor | None = None,
    ) -> Tensor:
        """What the part makes of ``x``.

        Args:
            x: token ids [B, T], int64, of a part that embeds; else the residual stream [B, P, D].
            positions: of each token in its document [B, T], int; None = 0 … T-1.
            segments: document of each token of the whole row, int; attention stays inside one. None = one.
            targets: token to predict [B, T], -100 = none. Inner parts with experts read only which are valid.

        Returns:
            The residual stream [B, P, D] of a part that does not predict; else with targets the sum of their
            losses, nats, scalar; else logits [B, T, V] (of the rows of the vocabulary that are here).
        """
        # a part of the stream may be shorter than the row's tokens, of which there is a target each
        length = x.shape[1] if targets is None else targets.shape[1]
        x_BPD = self._embed(x, positions) if self.part.embeds else x
        if self.watch is not None and x_BPD.requires_grad:
            x_BPD.register_hook(self.watch)
        rotation = self._rotation(length, x.device, positions, segments)
        counted_BP = self._counted(targets)
        looks = self._looks(segments, length, x.device)
        for layer in self.layers.values():
            x_BPD = layer(x_BPD, rotation, looks[layer.window], counted_BP)  # type: ignore[index]
        return self._predict(x_BPD, targets) if self.part.predicts else x_BPD

    def _embed(self, tokens_BT: Tensor, positions_BT: Tensor | None) -> Tensor:
        stream, vocabulary = self.seams.stream, self.seams.vocabulary
        rows_BTD = vocabulary.lookup(tokens_BT, self.embed_tokens.weight, self.widths.vocab_size)
        x_BPD = stream.spread(rows_BTD.to(self.dtype))
        if self.widths.position_embedding_type != "absolute":
            return x_BPD
        if positions_BT is None:
            positions_BT = torch.arange(tokens_BT.shape[1], device=tokens_BT.device)[None]
        return x_BPD + self.embed_positions(stream.part(positions_BT), self.dtype)

    def _rotation(
        self, length: int, device: torch.device, positions_BT: Tensor | None, segments_BS: Tensor | None
    ) -> Rotation | None:
        if self.rotary is None:
            return None
        if positions_BT is None:
            cos, sin = self.rotary.get(length, device, self.dtype)
            return cos[None, :length, None], sin[None, :length, None]
        # Positions restart with each document, so they are below the length of the whole row, where that is known.
        longest = None if segments_BS is None else segments_BS.shape[1]
        cos, sin = self.rotary.at(positions_BT, self.dtype, longest)
        return cos[:, :, None], sin[:, :, None]

    def _looks(self, segments_BS: Tensor | None, length: int, device: torch.device) -> dict[int | None, Look]:
        """One look a window, for this forward, so that layers share its masks."""
        cap = self.widths.attn_logit_softcapping
        windows = {window_of(self.widths, layer) for layer in self.part.layers}
        looks = {window: Look(segments_BS, window, cap) for window in windows}
        if self.seams.attend is plain_attention:
            for look in looks.values():
                look.prepare(length, device)
        return looks

    def _counted(self, targets_BT: Tensor | None) -> Tensor | None:
        if self.balance is None or targets_BT is None:
            return None
        return self.seams.stream.part(targets_BT != IGNORED)

    def _predict(self, x_BPD: Tensor, targets_BT: Tensor | None) -> Tensor:
        hidden_BTD = self.seams.stream.gather(self.norm(x_BPD))
        cap = self.widths.final_logit_softcapping
        if targets_BT is None:
            logits_BTV = self.lm_head(hidden_BTD)
            return logits_BTV if cap is None else soft_cap(logits_BTV, cap)
        return linear_cross_entropy(
            hidden_BTD,
            self.lm_head.weight,
            targets_BT,
            vocab_size=self.widths.vocab_size,
            cap=cap,
            vocabulary=self.seams.vocabulary,
        )


def rotary_dim(widths: ModelWidths) -> int:
    """How much of a head is rotated."""
    return widths.head_dim if widths.kv_lora_rank is None else widths.qk_rope_head_dim
