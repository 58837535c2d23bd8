"""Stages of a pipeline, one after another in one process, are the whole model; their names are the whole model's."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from paceline.compute.models.decoder import Decoder, Part
from paceline.compute.step import micro_batch_loss
from tests.compute.models.families import DENSE, SPARSE, batch_of, filled, widths_of

STAGES = [
    [Part(range(1), True, False), Part(range(1, 4), False, True)],
    [Part(range(2), True, False), Part(range(2, 3), False, False), Part(range(3, 4), False, True)],
    [Part(range(0), True, False), Part(range(4), False, False), Part(range(4, 4), False, True)],
]


def run(parts: list[Decoder], batch: dict[str, Tensor]) -> Tensor:
    x = batch["tokens"]
    for part in parts:
        x = part(x, batch.get("positions"), batch.get("segments"), batch["targets"])
    return x


@pytest.mark.parametrize("stages", STAGES, ids=["two", "three", "empty"])
@pytest.mark.parametrize("family", ["llama", "gpt2", "gemma2", "deepseek", "latent"])
def test_parts_in_a_row_are_the_whole(family: str, stages: list[Part]) -> None:
    widths, batch = widths_of(family), batch_of(documents=True)
    whole, parts = filled(widths), [filled(widths, part=part) for part in stages]
    expected, found = micro_batch_loss(whole, batch), run(parts, batch)
    assert torch.allclose(found, expected, rtol=1e-14, atol=0)
    expected.backward()
    found.backward()
    gradients: dict[str, Tensor] = {}
    for part in parts:
        for name, parameter in part.named_parameters():
            assert parameter.grad is not None, name
            # a tied weight is on two stages: each has its part of the gradient
            gradients[name] = gradients.get(name, torch.zeros(())) + parameter.grad
    own = dict(whole.named_parameters())
    assert list(gradients) == list(own) or set(gradients) == set(own)
    for name, parameter in own.items():
        assert parameter.grad is not None
        scale = float(parameter.grad.abs().max())
        assert torch.allclose(gradients[name], parameter.grad, rtol=1e-11, atol=1e-13 * scale), name


@pytest.mark.parametrize("family", [*DENSE, *SPARSE])
def test_names_and_shapes_are_those_of_the_whole(family: str) -> None:
    widths = widths_of(family)
    with torch.device("meta"):
        whole = {n: p.shape for n, p in Decoder(widths).named_parameters()}
        for stages in STAGES:
            found: dict[str, torch.Size] = {}
            for part in stages:
                found |= {n: p.shape for n, p in Decoder(widths, part=part).named_parameters()}
            assert found == whole


def test_a_head_that_is_tied_elsewhere_has_the_embeddings_name() -> None:
    last = Decoder(widths_of("qwen2"), part=Part(range(3, 4), False, True))
    names = [name for name, _ in last.named_parameters()]
    assert names[0] == "embed_tokens.weight"
    assert "lm_head.weight" not in names
    last.to_empty(device="cpu")
    last.tie_weights()
    assert last.lm_head.weight is last.embed_tokens.weight


def test_layers_are_called_in_the_order_of_their_numbers() -> None:
    widths = widths_of("llama")
    from dataclasses import replace

    with torch.device("meta"):
        model = Decoder(replace(widths, num_hidden_layers=12), part=Part(range(1, 12), False, False))
    assert [int(name) for name in model.layers] == list(range(1, 12))
