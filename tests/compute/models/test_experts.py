"""The experts' products: split by split, whatever the splits are."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from paceline.compute.models.experts import Experts, fits_grouped, grouped
from tests.compute.models.moe_cases import layer_of, moe_widths, tokens


def experts_of(**changes: object) -> Experts:
    return layer_of(moe_widths(**changes)).experts


@pytest.mark.parametrize("gated", [True, False])
@pytest.mark.parametrize("counts", [[1] * 8, [0, 0, 5, 0, 1, 0, 0, 2], [8] + [0] * 7, [0] * 8])
def test_each_split_meets_its_own_expert(counts: list[int], gated: bool) -> None:
    experts = experts_of(gated_mlp=gated, hidden_act="gelu")
    x = tokens(sum(counts)).requires_grad_()
    y = experts(x, torch.tensor(counts))
    y.sum().backward()
    of_row = [e for e, n in enumerate(counts) for _ in range(n)]
    for row, e in enumerate(of_row):
        up = experts.up_proj[e] @ x[row]
        hidden = torch.nn.functional.gelu(up if experts.gate_proj is None else experts.gate_proj[e] @ x[row])
        hidden = hidden if experts.gate_proj is None else hidden * up
        assert torch.allclose(y[row], experts.down_proj[e] @ hidden, rtol=1e-13, atol=1e-14)
    for parameter in experts.parameters():
        assert parameter.grad is not None
        assert [bool(g.any()) for g in parameter.grad] == [n > 0 for n in counts]


def test_features_may_be_cut() -> None:
    """Two halves along F add up to the whole: what etp does."""
    whole, counts = experts_of(), torch.tensor([2, 0, 1, 0, 0, 3, 0, 0])
    x = tokens(6)
    parts: list[Tensor] = []
    for half in range(2):
        part = experts_of()
        part.gate_proj = torch.nn.Parameter(whole.gate_proj.chunk(2, 1)[half])
        part.up_proj = torch.nn.Parameter(whole.up_proj.chunk(2, 1)[half])
        part.down_proj = torch.nn.Parameter(whole.down_proj.chunk(2, 2)[half])
        parts.append(part(x, counts))
    assert torch.allclose(sum(parts), whole(x, counts), rtol=1e-13)


def test_grouped_product_is_the_loop_and_stays_off_the_cpu() -> None:
    """What the CUDA path calls, on torch's own fallback: empty experts included, last end = M."""
    if not hasattr(torch.nn.functional, "grouped_mm"):
        pytest.skip("this torch has no grouped_mm")
    counts = [0, 3, 0, 5]
    x = torch.randn(8, 16, generator=torch.Generator().manual_seed(0)).to(torch.bfloat16)
    w = torch.randn(4, 32, 16, generator=torch.Generator().manual_seed(1)).to(torch.bfloat16)
    got = grouped(x, w, torch.tensor(counts).cumsum(0).to(torch.int32))
    wanted = torch.cat([r @ e.T for r, e in zip(x.split(counts), w, strict=True)])
    assert torch.allclose(got, wanted, rtol=2e-2)
    assert not fits_grouped(x, w)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="grouped GEMM is for CUDA")
def test_grouped_on_cuda_equals_the_loop() -> None:
    experts = layer_of(moe_widths(hidden_size=16, moe_intermediate_size=32), dtype=torch.float32).experts
    counts = torch.tensor([0, 3, 0, 5, 1, 0, 7, 0])
    x = torch.randn(16, 16, generator=torch.Generator().manual_seed(0)).to(torch.bfloat16)
    wanted = experts(x, counts)
    experts.cuda()
    assert fits_grouped(x.cuda(), experts.up_proj)
    assert torch.allclose(experts(x.cuda(), counts.cuda()).cpu(), wanted, rtol=3e-2, atol=1e-2)
