"""Counts against the published figures, the real module and a traced forward."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from paceline.plan.model import (
    cast_weight_bytes,
    flops_per_token,
    layer_activation_bytes,
    outer_activation_bytes,
    parameters,
    peak_activation_bytes,
)


@dataclass(frozen=True)
class Shape:
    vocab_size: int = 512
    hidden_size: int = 128
    intermediate_size: int = 344
    num_hidden_layers: int = 2
    num_attention_heads: int = 8
    num_key_value_heads: int = 2
    head_dim: int = 16
    tie_word_embeddings: bool = False
    attention_bias: bool = False
    rms_norm_eps: float = 1e-5
    rope_theta: float = 1e4
    rope_scaling: None = None
    hidden_act: str = "silu"
    max_position_embeddings: int = 2048


LLAMA_8B = Shape(128256, 4096, 14336, 32, 32, 8, 128)
LLAMA_70B = Shape(128256, 8192, 28672, 80, 64, 8, 128)
LLAMA_405B = Shape(128256, 16384, 53248, 126, 128, 8, 128)


@pytest.mark.parametrize(("shape", "gflop"), [(LLAMA_8B, 51.47), (LLAMA_70B, 449.22), (LLAMA_405B, 2523.96)])
def test_flops_per_token_reproduce_the_check_values(shape: Shape, gflop: float) -> None:
    assert flops_per_token(shape, 8192) / 1e9 == pytest.approx(gflop, abs=0.005)


def test_llama_parameters_are_the_published_ones() -> None:
    assert parameters(LLAMA_8B).total == 8_030_261_248
    assert parameters(LLAMA_70B).total == 70_553_706_496
    assert parameters(LLAMA_405B).total == 405_853_388_800


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_parameters_are_those_of_the_module(tied: bool, bias: bool) -> None:
    torch = pytest.importorskip("torch")
    from paceline.compute.models.decoder import Decoder

    shape = replace(Shape(), tie_word_embeddings=tied, attention_bias=bias)
    with torch.device("meta"):
        model = Decoder(shape)  # type: ignore[arg-type]
    assert parameters(shape).total == sum(p.numel() for p in model.parameters())


def kept_bytes(shape: Shape, precision: str, batch: int, length: int) -> int:
    """Bytes of the distinct storages that autograd keeps, weights apart."""
    import torch

    from paceline.compute.models.decoder import Decoder
    from paceline.compute.step import micro_batch_loss

    dtype = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp64": torch.float64}[precision]
    model = Decoder(shape, dtype)  # type: ignore[arg-type]
    if precision == "fp64":
        model = model.double()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.02)
    weights = {p.untyped_storage().data_ptr() for p in model.parameters()}
    tables = {
        t.untyped_storage().data_ptr()
        for pair in [model.rotary.get(length, torch.device("cpu"), dtype)]
        for t in pair
    }
    kept: dict[int, int] = {}
    alive = []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights | tables:
            kept[storage.data_ptr()] = storage.nbytes()
        alive.append(tensor)
        return tensor

    tokens = torch.randint(0, shape.vocab_size, (batch, length))
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        micro_batch_loss(model, {"tokens": tokens, "targets": tokens})
    return sum(kept.values())


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp64"])
@pytest.mark.parametrize("shape", [Shape(), Shape(300, 64, 160, 3, 4, 4, 32)])
def test_activation_bytes_are_those_that_autograd_keeps(precision: str, shape: Shape) -> None:
    batch, length = 2, 32
    per_token = shape.num_hidden_layers * layer_activation_bytes(shape, precision)
    per_token += outer_activation_bytes(shape, precision)
    formula = batch * length * per_token + cast_weight_bytes(shape, precision)
    assert kept_bytes(shape, precision, batch, length) == pytest.approx(formula, rel=0.01)


def test_the_peak_holds_the_kept_bytes_and_grows_with_tokens() -> None:
    kept = 2 * layer_activation_bytes(Shape(), "fp32") + outer_activation_bytes(Shape(), "fp32")
    assert peak_activation_bytes(Shape(), "fp32", 64) >= 64 * kept
    assert peak_activation_bytes(Shape(), "fp32", 128) == 2 * peak_activation_bytes(Shape(), "fp32", 64)
