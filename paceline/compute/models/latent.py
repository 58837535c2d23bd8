"""Multi-head latent attention (DeepSeek-V2, arXiv:2405.04434, §2.1), in the form that is trained: nothing absorbed.

Keys and values come out of one narrow latent a token; position is carried by a separate part of each head, and its
key is one for all heads. Names are those of Hugging Face's DeepSeek-V3.

The rotated part is turned in the half-split layout of ``rope.py``. DeepSeek's checkpoints interleave the pairs: the
same model but for the order of the rows of ``q_b_proj`` (``q_proj``) and ``kv_a_proj_with_mqa`` that make that part,
so bringing them here is the business of an import, not of the forward.

Legend: B batch, T tokens, P of them in this part of the residual stream, D hidden, H heads that are here, L latent,
N width of a head without position, R its rotated width, K = N + R, V value width.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from paceline.compute.models.linear import Linear
from paceline.compute.models.norm import RMSNorm
from paceline.compute.models.rope import Rotation, rotate
from paceline.compute.seams import Look, Seams
from paceline.job.presets import ModelWidths


class LatentAttention(nn.Module):
    """x → latents (whole everywhere) → norms → heads (cut) → rotary → attention (a seam) → output projection.

    Scores are divided by sqrt(K), which is what the seam does by itself. The projections down to the latents are
    behind the stream's ``gather`` and only the heads that are here send gradients back to them: theirs are partial
    sums, as of every weight that is whole.
    """

    def __init__(self, widths: ModelWidths, seams: Seams) -> None:
        super().__init__()
        assert widths.kv_lora_rank is not None
        hidden, heads, eps = widths.hidden_size, widths.num_attention_heads, widths.rms_norm_eps
        self.nope, self.rope = widths.qk_nope_head_dim, widths.qk_rope_head_dim
        self.value, self.latent = widths.v_head_dim, widths.kv_lora_rank
        q_size = heads * (self.nope + self.rope)
        if widths.q_lora_rank is None:
            self.q_proj = Linear(hidden, q_size)
        else:
            self.q_a_proj = Linear(hidden, widths.q_lora_rank)
            self.q_a_layernorm = RMSNorm(widths.q_lora_rank, eps)
            self.q_b_proj = Linear(widths.q_lora_rank, q_size)
        self.kv_a_proj_with_mqa = Linear(hidden, self.latent + self.rope)
        self.kv_a_layernorm = RMSNorm(self.latent, eps)
        self.kv_b_proj = Linear(self.latent, heads * (self.nope + self.value))
        self.o_proj = Linear(heads * self.value, hidden)
        self.compresses_query = widths.q_lora_rank is not None
        self.seams = seams

    def forward(self, x_BPD: Tensor, rotation: Rotation | None, look: Look) -> Tensor:
        assert rotation is not None, "latent attention has no other positions"
        stream = self.seams.stream
        x_BTD = stream.gather(x_BPD)
        q_BTHK = self._queries(x_BTD, rotation)
        k_BTHK, v_BTHV = self._keys_and_values(x_BTD, rotation)
        out_BHTV = self.seams.attend(
            q_BTHK.transpose(1, 2), k_BTHK.transpose(1, 2), v_BTHV.transpose(1, 2), look
        )
        return stream.spread(self.o_proj.product(out_BHTV.transpose(1, 2).flatten(2)))

    def _queries(self, x_BTD: Tensor, rotation: Rotation) -> Tensor:
        if self.compresses_query:
            flat = self.q_b_proj(self.q_a_layernorm(self.q_a_proj(x_BTD)))
        else:
            flat = self.q_proj(x_BTD)
        q_BTHK = flat.view(*x_BTD.shape[:2], -1, self.nope + self.rope)
        q_BTHN, q_BTHR = q_BTHK.split((self.nope, self.rope), dim=-1)
        return torch.cat((q_BTHN, rotate(q_BTHR, *rotation)), dim=-1)

    def _keys_and_values(self, x_BTD: Tensor, rotation: Rotation) -> tuple[Tensor, Tensor]:
        latent_BTL, key_BTR = self.kv_a_proj_with_mqa(x_BTD).split((self.latent, self.rope), dim=-1)
        both = self.kv_b_proj(self.kv_a_layernorm(latent_BTL))
        both = both.view(*x_BTD.shape[:2], -1, self.nope + self.value)
        k_BTHN, v_BTHV = both.split((self.nope, self.value), dim=-1)
        shared_BTHR = rotate(key_BTR.unsqueeze(2), *rotation).expand(-1, -1, k_BTHN.shape[2], -1)
        # Contiguous: as a view, the values that attention keeps would keep the keys beside them as well.
        return torch.cat((k_BTHN, shared_BTHR), dim=-1), v_BTHV.contiguous()
