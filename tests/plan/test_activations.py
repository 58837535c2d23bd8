"""Activation bytes against what autograd keeps in a traced forward of the real decoder."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from paceline.job.presets import ModelWidths
from paceline.plan.activations import (
    cast_weight_bytes,
    head_gradient_bytes,
    layer_activation_bytes,
    loss_bytes,
    mask_bytes,
    outer_activation_bytes,
)
from paceline.plan.model import cut, kinds
from tests.plan.test_model import FAMILIES, Shape

LENGTH = 32


def kept_bytes(widths: ModelWidths, precision: str, batch: int) -> int:
    """Bytes of the distinct storages that autograd keeps, weights apart."""
    import torch

    from paceline.compute.models.decoder import Decoder

    dtype = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp64": torch.float64}[precision]
    model = Decoder(widths, dtype)
    if precision == "fp64":
        model = model.double()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.02)
    if model.balance is not None:
        model.balance.scale = torch.tensor(1.0)
    own = {t.untyped_storage().data_ptr() for t in (*model.parameters(), *model.buffers())}
    if model.rotary is not None:
        tables = model.rotary.get(LENGTH, torch.device("cpu"), dtype)
        own |= {table.untyped_storage().data_ptr() for table in tables}
    kept: dict[int, int] = {}
    alive = []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
        alive.append(tensor)
        return tensor

    tokens = torch.randint(0, widths.vocab_size, (batch, LENGTH))
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        model(tokens, targets=tokens)
    return sum(kept.values())


def formula(widths: ModelWidths, precision: str, batch: int) -> float:
    each = outer_activation_bytes(widths, precision)
    masks = 0.0
    for kind, layers in kinds(widths):
        each += len(layers) * layer_activation_bytes(kind, precision, LENGTH)
        masks += len(layers) * mask_bytes(kind, precision, LENGTH)
    fixed = head_gradient_bytes(widths, precision) + cast_weight_bytes(widths, precision)
    return batch * LENGTH * each + masks + fixed


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp64"])
@pytest.mark.parametrize("family", FAMILIES)
def test_activation_bytes_are_those_that_autograd_keeps(family: str, precision: str) -> None:
    widths = Shape(**FAMILIES[family])
    assert kept_bytes(widths, precision, 2) == pytest.approx(formula(widths, precision, 2), rel=0.015)


def test_recompute_keeps_less() -> None:
    for parts in FAMILIES.values():
        for kind, _ in kinds(Shape(**parts)):
            none, some, full = (
                layer_activation_bytes(kind, "bf16", 1024, recompute=r) for r in ("none", "selective", "full")
            )
            assert full < some < none
            assert full == 2 * kind.hidden_size


def test_tp_cuts_all_but_the_gathered_inputs() -> None:
    for parts in FAMILIES.values():
        for kind, _ in kinds(Shape(**parts)):
            whole = layer_activation_bytes(kind, "fp32", 64)
            cut_ = layer_activation_bytes(cut(kind, 2), "fp32", 64, tp=2)
            gathered = 4 * kind.hidden_size * (2 if kind.intermediate_size else 1)
            latent = 12 * ((kind.kv_lora_rank or 0) + (kind.q_lora_rank or 0)) + 8 * bool(kind.kv_lora_rank)
            assert whole / 2 < cut_ <= whole / 2 + gathered + latent


def test_the_loss_holds_a_chunk_of_logits_and_never_all_of_them() -> None:
    widths = replace(Shape(), vocab_size=1 << 17)
    assert loss_bytes(widths, "fp32", 64) == 4 << 23
    assert (
        loss_bytes(widths, "fp32", 10_000_000) == loss_bytes(widths, "fp32", 128) == 8 << 23
    )  # and the next one
    assert loss_bytes(widths, "fp32", 32) == 4 * 32 << 17


def test_a_window_needs_a_mask_only_where_the_row_is_longer() -> None:
    kind: Any = kinds(Shape(sliding_window=16))[0][0]
    assert mask_bytes(kind, "bf16", 16) == 0
    assert mask_bytes(kind, "bf16", 64) == 2 * 64 * 64
