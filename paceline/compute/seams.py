"""The few places where distribution may plug in to one device's forward, as Protocols with their plain versions.

``compute`` calls these by value and knows nothing of ranks: tensor parallelism brings another stream and
vocabulary, context parallelism another attention, expert parallelism another dispatch.

Legend: B batch, T tokens of a row that are here, P of them in this rank's part of the residual stream, S tokens of
the whole row, D hidden, H query heads, G key/value heads, K head dim, N tokens flattened, E experts, R rows of the
vocabulary that are here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor


class Stream(Protocol):
    """The residual stream, of which a rank may hold a part of the tokens (dim 1)."""

    def gather(self, x_BPD: Tensor) -> Tensor:
        """The stream's part → all T tokens, in front of a sub-layer that is cut."""
        ...

    def spread(self, y_BTD: Tensor) -> Tensor:
        """Partial sums of a cut sub-layer → the complete sum, of the stream's part of the tokens."""
        ...

    def part(self, t_BT: Tensor) -> Tensor:
        """The stream's part of a tensor that is known for all T tokens; without gradient."""
        ...


class Vocabulary(Protocol):
    """The rows of the embedding and the head that are here."""

    def rows(self, vocab_size: int) -> range:
        """Which rows of the whole vocabulary are here."""
        ...

    def lookup(self, tokens_BT: Tensor, weight_RD: Tensor, vocab_size: int) -> Tensor:
        """Embedding rows [B, T, D] of the tokens; zero for a token whose row is elsewhere."""
        ...

    def max_(self, values: Tensor) -> Tensor:
        """Maximum over all who share a vocabulary, in place, without gradient."""
        ...

    def sum_(self, values: Tensor) -> Tensor:
        """Sum over all who share a vocabulary, in place, without gradient."""
        ...


@dataclass
class Look:
    """What a query may see, beside that it never looks ahead.

    Attributes:
        segments_BS: document of each token of the whole row; attention stays inside one. None = one document.
        window: how many tokens back, itself included. None = all.
        cap: soft limit of the scores, ``cap * tanh(score / cap)``. scale: of the scores; None = 1/sqrt(K).
    """

    segments_BS: Tensor | None = None
    window: int | None = None
    cap: float | None = None
    scale: float | None = None
    _masks: list[tuple[Tensor, int, Tensor]] = field(default_factory=list, repr=False)
    _rows: Tensor | None = field(default=None, repr=False)

    def reaches(self, length: int) -> bool:
        """Whether causal attention over a whole row of ``length`` is all there is to it."""
        return self.segments_BS is None and (self.window is None or self.window >= length)

    def prepare(self, length: int, device: torch.device) -> None:
        """Build what :func:`plain_attention` over a row of ``length`` will ask for, before the layers do.

        Inside a block it would be a side effect, which a compiler cannot take into a region that is recomputed.
        """
        if self.cap is not None or not self.reaches(length):
            self.allowed(self.rows(length, device), length)

    def allowed(self, rows_T: Tensor, length: int) -> Tensor:
        """[B or 1, 1, T, S] boolean, True where the query at row ``rows_T[i]`` may look at key j < ``length``.

        Kept for the forward: every layer asks for the same one. It is known again by the very tensor ``rows_T``,
        which is kept beside the mask, so that no other can come to have its identity; hand over the same one.
        """
        for rows, kept_length, mask in self._masks:
            if rows is rows_T and kept_length == length:
                return mask
        mask = self._build(rows_T, length)
        self._masks.append((rows_T, length, mask))
        return mask

    def rows(self, length: int, device: torch.device) -> Tensor:
        """``0 … length - 1``, the same tensor for every layer of the forward."""
        if self._rows is None or len(self._rows) != length:
            self._rows = torch.arange(length, device=device)
        return self._rows

    def _build(self, rows_T: Tensor, length: int) -> Tensor:
        keys_S = torch.arange(length, device=rows_T.device)
        back_TS = rows_T[:, None] - keys_S[None, :]
        mask = back_TS >= 0
        if self.window is not None:
            mask &= back_TS < self.window
        if self.segments_BS is None:
            return mask[None, None]
        same = self.segments_BS[:, rows_T, None] == self.segments_BS[:, None, :length]
        return (same & mask)[:, None]


class Attention(Protocol):
    """Softmax attention of q [B, H, T, K] over k [B, G, T, K], v [B, G, T, V], G dividing H → [B, H, T, V]."""

    def __call__(self, q_BHTK: Tensor, k_BGTK: Tensor, v_BGTV: Tensor, look: Look) -> Tensor: ...


Experts = Callable[[Tensor, Tensor], Tensor]
"""(x [M, D] sorted by expert, tokens of each expert [E here]) → y [M, D]."""


class Dispatch(Protocol):
    """Each token's way to its experts and back: x [N, D], choice [N, K] expert ids → y [N, K, D] in that order."""

    def __call__(self, x_ND: Tensor, choice_NK: Tensor, experts: Experts, num_experts: int) -> Tensor: ...


class WholeStream:
    """All tokens are here."""

    def gather(self, x_BPD: Tensor) -> Tensor:
        return x_BPD

    def spread(self, y_BTD: Tensor) -> Tensor:
        return y_BTD

    def part(self, t_BT: Tensor) -> Tensor:
        return t_BT


class WholeVocabulary:
    """All rows are here."""

    def rows(self, vocab_size: int) -> range:
        return range(vocab_size)

    def lookup(self, tokens_BT: Tensor, weight_RD: Tensor, vocab_size: int) -> Tensor:
        return F.embedding(tokens_BT, weight_RD)

    def max_(self, values: Tensor) -> Tensor:
        return values

    def sum_(self, values: Tensor) -> Tensor:
        return values


def plain_attention(q_BHTK: Tensor, k_BGTK: Tensor, v_BGTV: Tensor, look: Look) -> Tensor:
    """Attention on one device through torch's scaled_dot_product_attention."""
    length = k_BGTK.shape[2]
    if look.reaches(length) and look.cap is None:
        return _scaled_dot_product(q_BHTK, k_BGTK, v_BGTV, look.scale, causal=True)
    mask = look.allowed(look.rows(length, q_BHTK.device), length)
    return masked_attention(q_BHTK, k_BGTK, v_BGTV, mask, look)


def masked_attention(q_BHTK: Tensor, k_BGSK: Tensor, v_BGSV: Tensor, mask: Tensor, look: Look) -> Tensor:
    """Attention of T queries over S keys under ``mask`` [B or 1, 1, T, S], with the look's cap and scale."""
    if look.cap is None:
        return _scaled_dot_product(q_BHTK, k_BGSK, v_BGSV, look.scale, mask=mask)
    repeat = q_BHTK.shape[1] // k_BGSK.shape[1]
    k, v = k_BGSK.repeat_interleave(repeat, 1), v_BGSV.repeat_interleave(repeat, 1)
    scale = look.scale if look.scale is not None else q_BHTK.shape[-1] ** -0.5
    wide = torch.promote_types(q_BHTK.dtype, torch.float32)
    scores = (q_BHTK.to(wide) @ k.to(wide).transpose(2, 3)) * scale
    scores = look.cap * torch.tanh(scores / look.cap)
    weights = scores.masked_fill(~mask, -torch.inf).softmax(-1)
    return (weights @ v.to(wide)).to(q_BHTK.dtype)


def _scaled_dot_product(
    q: Tensor, k: Tensor, v: Tensor, scale: float | None, *, causal: bool = False, mask: Tensor | None = None
) -> Tensor:
    """Torch's kernel. The CPU's takes one head width only: zeros fill the narrower side, T×T scores would be dearer."""
    width, value = q.shape[-1], v.shape[-1]
    if q.device.type == "cpu" and width != value:
        scale = width**-0.5 if scale is None else scale
        if value < width:
            v = F.pad(v, (0, width - value))
        else:
            q, k = F.pad(q, (0, value - width)), F.pad(k, (0, value - width))
    grouped = q.shape[1] != k.shape[1]
    out = F.scaled_dot_product_attention(
        q, k, v, attn_mask=mask, is_causal=causal, scale=scale, enable_gqa=grouped
    )
    return out[..., :value] if out.shape[-1] != value else out


def local_dispatch(x_ND: Tensor, choice_NK: Tensor, experts: Experts, num_experts: int) -> Tensor:
    """All experts are here: sort the (token, choice) pairs by expert, compute, put them back."""
    flat = choice_NK.reshape(-1)
    order = torch.argsort(flat, stable=True)
    counts_E = torch.bincount(flat, minlength=num_experts)
    y_MD = experts(x_ND[order // choice_NK.shape[1]], counts_E)
    back = torch.empty_like(order)
    back[order] = torch.arange(order.numel(), device=order.device)
    return y_MD[back].view(*choice_NK.shape, y_MD.shape[1])


_STREAM, _VOCABULARY = WholeStream(), WholeVocabulary()


@dataclass(frozen=True)
class Seams:
    """What a model is built with; the plain versions are one device."""

    stream: Stream = _STREAM
    vocabulary: Vocabulary = _VOCABULARY
    attend: Attention = plain_attention
    dispatch: Dispatch = local_dispatch
