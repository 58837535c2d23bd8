"""Attention of a rank that has some of a row's queries, keys and values.

Cost, for each layer, of k+v = B·G·T·(K+V) elements: *allgather* one all-gather of k+v forward, one reduce-scatter
backward. *ulysses* two all-to-alls forward (q, k and v there, the output back), two backward; its keys are not
repeated in memory, but heads must divide. Recomputing a block repeats the forward's. Both are exact under any mask.

A compiled caller breaks its graph here once: masks are kept in the look, and the kernel is fused already.

Legend: B batch, H query heads, G key/value heads, T tokens of a row that are here, S of the whole row, C tokens of
a chunk, K head dim, V value head dim (with latent attention not K), n ranks of the group.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import Tensor

from paceline.compute.seams import Look, masked_attention, plain_attention
from paceline.deliver.moves import exchange, gather
from paceline.deliver.zigzag import chunks, dealt, natural
from paceline.ledger.outcome import Exit, Refused

ROW = 2  # the dim of q [B, H, T, K] and k [B, G, T, K] that is cut


@dataclass(frozen=True)
class Gathered:
    """Every rank gets all keys and values, and attends with its own queries, one chunk at a time.

    A chunk's queries meet only the keys up to its own end: 2n+1 chunks for both together, of the 4n that there are.
    """

    group: dist.ProcessGroup
    _rows: dict[tuple[int, torch.device], tuple[Tensor, ...]] = field(default_factory=dict, repr=False)

    @torch.compiler.disable
    def __call__(self, q_BHTK: Tensor, k_BGTK: Tensor, v_BGTV: Tensor, look: Look) -> Tensor:
        n = self.group.size()
        both = gather(torch.cat((k_BGTK, v_BGTV), -1), ROW, self.group)
        k_BGSK, v_BGSV = natural(both, n, ROW).split((k_BGTK.shape[-1], v_BGTV.shape[-1]), -1)
        held = self._held(k_BGSK.shape[ROW], q_BHTK.device)
        pieces = zip(q_BHTK.chunk(2, ROW), chunks(k_BGSK.shape[ROW], n, self.group.rank()), held, strict=True)
        return torch.cat(
            [chunk_attention(q, rows, kept, k_BGSK, v_BGSV, look) for q, rows, kept in pieces], ROW
        )

    def _held(self, length: int, device: torch.device) -> tuple[Tensor, ...]:
        """The rows of both chunks, the same tensors for every layer: a look knows its masks by them."""
        if (length, device) not in self._rows:
            both = chunks(length, self.group.size(), self.group.rank())
            self._rows[length, device] = tuple(torch.arange(c.start, c.stop, device=device) for c in both)
        return self._rows[length, device]


def chunk_attention(
    q_BHCK: Tensor, chunk: range, rows_C: Tensor, k_BGSK: Tensor, v_BGSV: Tensor, look: Look
) -> Tensor:
    """Attention of the queries of ``chunk``, whose rows are ``rows_C``, over the keys that any of them may see."""
    first = 0 if look.window is None else max(0, chunk.start - look.window + 1)
    k, v = k_BGSK[:, :, first : chunk.stop], v_BGSV[:, :, first : chunk.stop]
    if chunk.start == 0 and look.reaches(chunk.stop):
        return plain_attention(q_BHCK, k, v, look)
    mask = look.allowed(rows_C, k_BGSK.shape[ROW])[..., first : chunk.stop]
    return masked_attention(q_BHCK, k, v, mask, look)


@dataclass(frozen=True)
class Ulysses:
    """Heads for tokens: every rank gets all tokens of some heads, attends as on one device, and gives back."""

    group: dist.ProcessGroup

    @torch.compiler.disable
    def __call__(self, q_BHTK: Tensor, k_BGTK: Tensor, v_BGTV: Tensor, look: Look) -> Tensor:
        n = self.group.size()
        check_heads(q_BHTK.shape[1], n)
        # Each rank needs the key/value heads of its own queries: repeated until n divides them.
        times = math.lcm(k_BGTK.shape[1], n) // k_BGTK.shape[1]
        k, v = (x if times == 1 else x.repeat_interleave(times, 1) for x in (k_BGTK, v_BGTV))
        sent = [x.unflatten(1, (n, -1)).movedim(1, 0) for x in (q_BHTK, k, v)]
        q, k, v = (natural(x.movedim(0, ROW).flatten(ROW, ROW + 1), n, ROW) for x in self._swap(sent))
        out = dealt(plain_attention(q, k, v, look), n, ROW)
        (back,) = self._swap([out.unflatten(ROW, (n, -1)).movedim(ROW, 0)])
        return back.movedim(0, 1).flatten(1, 2)

    def _swap(self, parts: list[Tensor]) -> list[Tensor]:
        """Row i of each [n, …] to rank i, in one message."""
        flat = [part.flatten(1) for part in parts]
        came = exchange(torch.cat(flat, 1) if len(flat) > 1 else flat[0], self.group)
        back = came.split([f.shape[1] for f in flat], 1)
        return [piece.reshape(part.shape) for piece, part in zip(back, parts, strict=True)]


def check_heads(heads: int, degree: int) -> None:
    """The rule that ulysses rests on, for heads that no rule book has seen (cut by ``tp`` already).

    Raises:
        Refused: exit 10, the degree does not divide the query heads.
    """
    if heads % degree:
        fits = [d for d in range(2, heads + 1) if heads % d == 0]
        raise Refused(
            f"cp={degree}:ulysses cannot share {heads} query heads",
            exit_code=Exit.RULE,
            key="layout.use",
            seen=f"{heads} query heads on each rank",
            rule="with ulysses tp·cp divides num_attention_heads; allgather takes any number",
            allowed="cp = " + ", ".join(map(str, fits)),
            use=f"--layout cp={degree}:allgather",
        )
