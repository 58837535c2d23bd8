"""Tensor parallelism: the residual stream cut over tokens, the vocabulary cut over rows.

``tp`` is always with sequence parallelism: between the cut sub-layers a rank holds T / tp tokens of each row.
What the sub-layers' own weights lose is the matter of ``cut.py``; here is what moves between the ranks.

Cost, for each cut sub-layer (attention, MLP), of B·T·D elements: one all-gather in front and one reduce-scatter
behind, and their mirror images in the backward. Embedding: one reduce-scatter. Loss: one gather of the hidden
states, and two small reductions for each chunk of tokens. Recomputing a block, in part or in full, repeats two
gathers and one reduce-scatter; the block's last one is never needed again.

Legend: B batch, T tokens of a row, P of them in this rank's part, D hidden, R rows of the vocabulary here.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from paceline.deliver.moves import gather, part_of, scatter_sum
from paceline.ledger.outcome import Exit, Refused
from paceline.ledger.plural import many
from paceline.plan.layout import balanced

TOKENS = 1  # the dim of a stream [B, T, D] that is cut


@dataclass(frozen=True)
class CutStream:
    """The residual stream of a rank that holds its part of the tokens; see :class:`paceline.compute.seams.Stream`."""

    group: dist.ProcessGroup

    def gather(self, x_BPD: Tensor) -> Tensor:
        return gather(x_BPD, TOKENS, self.group)

    def spread(self, y_BTD: Tensor) -> Tensor:
        check_tokens(y_BTD.shape[TOKENS], self.group.size())
        return scatter_sum(y_BTD, TOKENS, self.group)

    def part(self, t_BT: Tensor) -> Tensor:
        check_tokens(t_BT.shape[TOKENS], self.group.size())
        return part_of(t_BT, TOKENS, self.group)


@dataclass(frozen=True)
class CutVocabulary:
    """The rows of the vocabulary that a rank holds, balanced; see :class:`paceline.compute.seams.Vocabulary`."""

    group: dist.ProcessGroup

    def rows(self, vocab_size: int) -> range:
        return balanced(vocab_size, self.group.size(), self.group.rank())

    def lookup(self, tokens_BT: Tensor, weight_RD: Tensor, vocab_size: int) -> Tensor:
        """A token whose row is elsewhere gives exact zeros, and gives no row here a gradient.

        Such tokens look up *some* row, spread over all of them: one row for all would be a hot spot of the
        backward's sum.
        """
        rows = self.rows(vocab_size)
        elsewhere_BT = (tokens_BT < rows.start) | (tokens_BT >= rows.stop)
        found_BTD = F.embedding((tokens_BT - rows.start) % len(rows), weight_RD)
        return found_BTD.masked_fill(elsewhere_BT[..., None], 0)

    def max_(self, values: Tensor) -> Tensor:
        return _reduce_(values, dist.ReduceOp.MAX, self.group)

    def sum_(self, values: Tensor) -> Tensor:
        return _reduce_(values, dist.ReduceOp.SUM, self.group)


def stream(group: dist.ProcessGroup) -> CutStream:
    """The stream seam over the ``tp`` group."""
    return CutStream(group)


def vocabulary(group: dist.ProcessGroup) -> CutVocabulary:
    """The vocabulary seam over the ``tp`` group."""
    return CutVocabulary(group)


def check_tokens(tokens: int, degree: int) -> None:
    """The rule that the stream rests on, for lengths that no rule book has seen.

    Raises:
        Refused: exit 10, T does not divide by the degree.
    """
    if tokens % degree:
        raise Refused(
            f"tp={degree} cannot cut a row of {many(tokens, 'token')}",
            exit_code=Exit.RULE,
            key="layout.use",
            seen=f"{many(tokens, 'token')} of a row on each tp rank",
            rule="tp divides data.sequence_length, and with cp: 2·cp·tp does",
            use=f"data.sequence_length = {tokens + -tokens % degree}, without cp",
        )


@torch.compiler.disable
def _reduce_(values: Tensor, op: dist.ReduceOp.RedOpType, group: dist.ProcessGroup) -> Tensor:
    dist.all_reduce(values, op=op, group=group)
    return values
