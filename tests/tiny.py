"""The base configuration of the fault log: TINY, and batches made by hand that are hard on averages."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from paceline.job import Job
from paceline.job.presets import ModelWidths

VOCAB, LENGTH, BATCH = 101, 16, 8


def tiny_widths(**changes: Any) -> ModelWidths:
    """Layers 4, width 32, heads 4, kv heads 2, vocabulary 101."""
    base: dict[str, Any] = {
        "vocab_size": VOCAB,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "tie_word_embeddings": False,
    }
    return ModelWidths(**{**base, **changes})


def tiny_job(**changes: Any) -> Job:
    """AdamW 1e-3, seed 7, global batch 8; ``changes`` are dotted keys with ``__`` for the dot."""
    base = {
        "data.train": "corpus.txt",
        "data.sequence_length": LENGTH,
        "train.steps": 30,
        "train.seed": 7,
        "train.global_batch_size": BATCH,
        "optimizer.lr": 1e-3,
        "optimizer.max_grad_norm": 0.5,
    }
    keys = {key.replace("__", "."): value for key, value in changes.items()}
    return Job(model="tiny", data={"train": "corpus.txt"}).replace({**base, **keys})


def ragged_batches(
    steps: int, *, documents: bool, seed: int = 0, rows: int = BATCH
) -> list[dict[str, Tensor]]:
    """Global batches [rows, 16] with unequal counts of valid tokens per row, one row without any.

    With ``documents`` several documents share a row, and attention and positions restart at their borders.
    """
    gen = torch.Generator().manual_seed(seed)
    return [_batch(gen, documents, rows) for _ in range(steps)]


def _batch(gen: torch.Generator, documents: bool, rows: int) -> dict[str, Tensor]:
    stream = torch.randint(0, VOCAB, (rows, LENGTH + 1), generator=gen)
    targets = stream[:, 1:].clone()
    masked_share = torch.rand(rows, 1, generator=gen)
    targets[torch.rand(rows, LENGTH, generator=gen) < masked_share] = -100
    targets[rows // 2] = -100
    batch = {"tokens": stream[:, :-1].contiguous(), "targets": targets}
    if documents:
        border = torch.rand(rows, LENGTH, generator=gen) < 0.2
        segments = border.cumsum(1)
        start = torch.where(border, torch.arange(LENGTH).expand(rows, -1), 0).cummax(1).values
        batch |= {"segments": segments, "positions": torch.arange(LENGTH).expand(rows, -1) - start}
    return batch


def share_of(batch: dict[str, Tensor], rank: int, degree: int, mbs: int) -> list[dict[str, Tensor]]:
    """Rank's rows of a global batch, cut into micro-batches of one shape; missing rows weigh zero."""
    rows = batch["tokens"].shape[0]
    per_rank = -(-rows // degree)
    per_rank += -per_rank % mbs
    padded = {k: _pad(v, per_rank * degree - rows, -100 if k == "targets" else 0) for k, v in batch.items()}
    mine = {k: v[rank::degree] for k, v in padded.items()}
    return [{k: v[i : i + mbs] for k, v in mine.items()} for i in range(0, per_rank, mbs)]


def _pad(value: Tensor, rows: int, filler: int) -> Tensor:
    return torch.cat((value, value.new_full((rows, *value.shape[1:]), filler))) if rows else value
