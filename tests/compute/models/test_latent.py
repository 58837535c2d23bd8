"""Latent attention apart from what every family is put through: its rotation, its kernel, its layouts.

Loss, logits and gradients against the plain formulation are in ``test_decoder.py``, in the families ``latent``.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch._dynamo.utils
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from paceline.compute.models.decoder import Decoder
from paceline.compute.models.latent import LatentAttention
from paceline.compute.seams import Look, plain_attention
from paceline.compute.step import micro_batch_loss
from paceline.job.presets import ModelWidths
from paceline.plan.activations import layer_activation_bytes
from paceline.plan.layout import Layout
from paceline.plan.model import kinds
from tests.compute.models.families import LATENT, batch_of, filled, widths_of
from tests.compute.models.test_recompute import Watch
from tests.pool import RankPool
from tests.recipes.parity_cases import train_steps
from tests.tiny import tiny_job, tiny_widths

EXPERTS: dict[str, Any] = {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 24,
    "n_shared_experts": 1,
    "first_k_dense_replace": 1,
    "scoring_func": "sigmoid",
    "router_aux_loss_coef": 0.05,
}
PARTS: dict[str, dict[str, Any]] = {
    "latent": LATENT,
    "whole query": {**LATENT, "q_lora_rank": None},
    "experts": {**LATENT, **EXPERTS},
    "three heads": {**LATENT, "num_attention_heads": 3, "num_key_value_heads": 3},
}
LAYOUTS = ["tp=2", "tp=4", "cp=2", "cp=2:ulysses", "fsdp=2,tp=2", "pp=2,tp=2"]


def test_names_and_shapes_are_those_of_hugging_face() -> None:
    with torch.device("meta"):
        model = Decoder(widths_of("latent"))
        plain = Decoder(widths_of("latent, whole query"))
    found = {name: tuple(p.shape) for name, p in model.layers["2"].self_attn.named_parameters()}  # type: ignore[union-attr]
    assert found == {
        "q_a_proj.weight": (20, 32),
        "q_a_layernorm.weight": (20,),
        "q_b_proj.weight": (4 * 12, 20),
        "kv_a_proj_with_mqa.weight": (14 + 4, 32),
        "kv_a_layernorm.weight": (14,),
        "kv_b_proj.weight": (4 * (8 + 6), 14),
        "o_proj.weight": (32, 4 * 6),
    }
    names = [name for name, _ in plain.layers["2"].self_attn.named_parameters()]  # type: ignore[union-attr]
    assert names[0] == "q_proj.weight"
    assert "q_a_proj.weight" not in names


def test_a_checkpoint_of_interleaved_pairs_is_the_same_model_with_its_rows_in_another_order() -> None:
    """What an import has to do: even rows of each rotated part first, then the odd ones."""
    widths, attend = widths_of("latent"), Scores()
    attention = filled(widths).layers["0"].self_attn
    assert isinstance(attention, LatentAttention)
    x = torch.randn(2, 7, 32, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    model = filled(widths)
    rotation = model._rotation(7, x.device, None, None)
    attention.seams = type(attention.seams)(attend=attend)
    attention(x, rotation, Look())
    q_BHTK, k_BHTK = attend.q[..., 8:], attend.k[..., 8:]
    order = torch.tensor([0, 2, 1, 3])  # ours ← theirs
    back = order.argsort()
    angle = torch.arange(7).double()[:, None] * widths.rope_theta ** (-torch.arange(2).double() / 2)
    with torch.no_grad():
        theirs = attention.kv_a_proj_with_mqa(x)[..., 14:][..., back]
        q = attention.q_b_proj(attention.q_a_layernorm(attention.q_a_proj(x)))
        q = q.view(2, 7, 4, 12)[..., 8:][..., back].transpose(1, 2)
        their_scores = interleaved(q, angle) @ interleaved(theirs, angle)[:, None].transpose(-1, -2)
    assert torch.allclose(q_BHTK @ k_BHTK.transpose(-1, -2), their_scores, rtol=1e-11, atol=1e-13)
    assert torch.equal(k_BHTK[:, :1].expand_as(k_BHTK), k_BHTK), "one rotated key for all heads"


def interleaved(x: Tensor, angle: Tensor) -> Tensor:
    """Pairs (2i, 2i + 1), turned."""
    turned = torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous())
    return torch.view_as_real(turned * torch.polar(torch.ones_like(angle), angle)).flatten(-2)


class Scores:
    """An attention seam that keeps what it is given."""

    def __call__(self, q_BHTK: Tensor, k_BGTK: Tensor, v_BGTV: Tensor, look: Look) -> Tensor:
        self.q, self.k = q_BHTK.detach(), k_BGTK.detach()
        return plain_attention(q_BHTK, k_BGTK, v_BGTV, look)


class Products(TorchDispatchMode):
    """Notes whether attention made its T×T scores by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(str(func))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("documents", [False, True], ids=["one", "packed"])
@pytest.mark.parametrize("family", ["latent", "latent, whole query"])
def test_values_narrower_or_wider_than_keys_still_take_the_fused_kernel(family: str, documents: bool) -> None:
    """Torch's kernel for CPUs takes one width only and falls back, in silence, to scores in memory."""
    with Products() as products:
        micro_batch_loss(filled(widths_of(family)), batch_of(documents=documents)).backward()
    assert "aten.bmm.default" not in products.seen
    assert products.seen.count("aten._scaled_dot_product_flash_attention_for_cpu.default") == 4


@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
def test_a_compiled_block_is_one_graph(recompute: str) -> None:
    torch._dynamo.reset()
    counters = torch._dynamo.utils.counters
    counters.clear()
    widths = tiny_widths(**LATENT, num_hidden_layers=2)
    plain, model = filled(widths), filled(widths, recompute=recompute)
    for layer in model.layers.values():
        layer.compile(backend="aot_eager")
    batch = batch_of(documents=True)
    losses = [micro_batch_loss(m, batch) for m in (plain, model)]
    for loss in losses:
        loss.backward()
    assert torch.allclose(losses[0], losses[1], rtol=1e-13)
    assert not counters["graph_break"]
    assert counters["stats"]["unique_graphs"] == 1
    for (name, a), (_, b) in zip(plain.named_parameters(), model.named_parameters(), strict=True):
        assert a.grad is not None
        assert b.grad is not None
        assert torch.allclose(a.grad, b.grad, rtol=1e-10, atol=1e-13 * float(a.grad.abs().max())), name


@pytest.mark.parametrize("query", [None, 20])
@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
def test_a_layer_keeps_what_the_planner_counts(recompute: str, query: int | None) -> None:
    """With values as wide as keys, so that the CPU's kernel keeps what a GPU's does."""
    kept = []
    for layers in (2, 3):
        widths = tiny_widths(**{**LATENT, "v_head_dim": 12, "q_lora_rank": query}, num_hidden_layers=layers)
        model = Decoder(widths, recompute=recompute)
        for parameter in model.parameters():
            parameter.data.fill_(0.02)
        with Watch() as watch:
            loss = micro_batch_loss(model, batch_of(2, 32, documents=False))
            kept.append(watch.kept_bytes(model))
        del loss
    kind = kinds(tiny_widths(**{**LATENT, "v_head_dim": 12, "q_lora_rank": query}))[0][0]
    assert kept[1] - kept[0] == 64 * layer_activation_bytes(kind, "fp32", 32, recompute=recompute)


@pytest.fixture(scope="module")
def single() -> dict[str, dict[str, Any]]:
    """Three steps on one device."""
    return {name: train_steps(None, layout="single", mbs=8, **case(name)) for name in PARTS}


def case(name: str) -> dict[str, Any]:
    widths: ModelWidths = tiny_widths(**PARTS[name])
    return {"job": tiny_job(), "widths": widths, "documents": True, "steps": 3}


@pytest.mark.parametrize(
    ("name", "layout"),
    [
        *(("latent", layout) for layout in (*LAYOUTS, "pp=2:zero-bubble", "cp=2,tp=2,recompute=full")),
        *(("experts", layout) for layout in (*LAYOUTS, "fsdp=2,ep=2")),
        ("whole query", "fsdp=2,tp=2"),
        ("three heads", "tp=2"),
    ],
)
def test_a_layout_trains_as_one_device(
    ranks: RankPool, single: dict[str, dict[str, Any]], name: str, layout: str
) -> None:
    """First gradients, last weights, losses and norms. Three heads over two ranks are two and one."""
    expected = single[name]
    count = Layout.parse(layout).world_size
    found = ranks(count).run(
        "tests.recipes.parity_cases:train_steps", timeout_s=120, layout=layout, mbs=2, **case(name)
    )[-1]
    largest = max(float(g.abs().max()) for g in expected["first"].values())
    for what in ("first", "weights"):
        for weight, true in expected[what].items():
            scale = max(float(true.abs().max()), 1e-4 * largest)
            assert float((found[what][weight] - true).abs().max()) / scale < 1e-10, (what, weight)
    for what in ("losses", "norms"):
        assert found[what] == pytest.approx(expected[what], rel=1e-12), what
