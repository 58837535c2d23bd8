"""The loss: a sum over valid target tokens, so that it is token-exact however the batch is cut.

Each micro-batch, rank and stage contributes its own sum; one division by the global count of valid tokens makes
the mean. A rank without a valid token adds zero.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

IGNORED = -100  # target id of a position that does not count


def token_loss_sum(logits_BTV: Tensor, targets_BT: Tensor) -> Tensor:
    """Cross-entropy summed over valid targets, nats, scalar; an fp32 island (float64 for float64 logits)."""
    wide = torch.promote_types(logits_BTV.dtype, torch.float32)
    return F.cross_entropy(
        logits_BTV.flatten(0, 1).to(wide), targets_BT.flatten(), ignore_index=IGNORED, reduction="sum"
    )
