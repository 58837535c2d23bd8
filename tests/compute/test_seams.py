"""What a query may see: masks against the definition, shared by the layers of one forward, never by two."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from paceline.compute.seams import Look, masked_attention, plain_attention

LENGTH = 9
SEGMENTS = torch.tensor([[0, 0, 0, 1, 1, 1, 1, 2, 2], [0, 1, 1, 1, 1, 1, 1, 1, 1]])


def definition(look: Look, rows: list[int], batch: int) -> Tensor:
    mask = torch.zeros(batch, 1, len(rows), LENGTH, dtype=torch.bool)
    for b in range(batch):
        for i, row in enumerate(rows):
            for key in range(LENGTH):
                near = look.window is None or row - key < look.window
                same = look.segments_BS is None or look.segments_BS[b, row] == look.segments_BS[b, key]
                mask[b, 0, i, key] = key <= row and near and bool(same)
    return mask


@pytest.mark.parametrize("window", [None, 1, 3, 9, 50])
@pytest.mark.parametrize("segments", [None, SEGMENTS], ids=["one", "packed"])
@pytest.mark.parametrize("rows", [list(range(9)), [0, 1, 7, 8], [6, 2, 3]])
def test_masks_are_the_definition(window: int | None, segments: Tensor | None, rows: list[int]) -> None:
    look = Look(segments, window)
    mask = look.allowed(torch.tensor(rows), LENGTH)
    assert torch.equal(mask.expand(2, -1, -1, -1), definition(look, rows, 2))


def test_a_mask_is_built_once_for_the_same_rows_and_never_taken_for_others() -> None:
    look = Look(None, 3)
    rows = torch.arange(4)
    mask = look.allowed(rows, LENGTH)
    assert look.allowed(rows, LENGTH) is mask
    assert look.allowed(rows, LENGTH - 1) is not mask
    for start in range(1, 30):  # tensors come and go at the same address
        other = torch.arange(start, start + 1) % LENGTH
        found = look.allowed(other, LENGTH)
        assert torch.equal(found, definition(look, other.tolist(), 1)), start
        del other


def test_layers_share_the_mask_of_the_whole_row() -> None:
    look = Look(SEGMENTS)
    q = torch.randn(2, 2, LENGTH, 4)
    plain_attention(q, q, q, look)
    built = len(look._masks)
    plain_attention(q, q, q, look)
    assert len(look._masks) == built == 1


def test_a_window_as_long_as_the_row_is_no_mask() -> None:
    q = torch.randn(1, 2, LENGTH, 4, dtype=torch.float64)
    look = Look(None, LENGTH)
    assert torch.equal(plain_attention(q, q, q, look), plain_attention(q, q, q, Look()))
    assert not look._masks
    assert not torch.allclose(
        plain_attention(q, q, q, Look(None, LENGTH - 1)), plain_attention(q, q, q, Look())
    )


def test_a_cap_that_is_far_away_changes_nothing_and_a_near_one_is_differentiated() -> None:
    q, k, v = (torch.randn(1, n, 5, 4, dtype=torch.float64, requires_grad=True) for n in (4, 2, 2))
    far, none = Look(cap=1e9), Look()
    assert torch.allclose(plain_attention(q, k, v, far), plain_attention(q, k, v, none), rtol=1e-12)
    assert torch.autograd.gradcheck(lambda a, b, c: plain_attention(a, b, c, Look(None, 3, 0.5)), (q, k, v))


@pytest.mark.parametrize("cap", [None, 0.5])
def test_values_may_be_of_another_width(cap: float | None) -> None:
    q, k = (torch.randn(1, n, 5, 6, dtype=torch.float64) for n in (4, 2))
    v = torch.randn(1, 2, 5, 3, dtype=torch.float64)
    look = Look(None, 2, cap, 0.3)
    mask = look.allowed(torch.arange(5), 5)
    out = masked_attention(q, k, v, mask, look)
    assert out.shape == (1, 4, 5, 3)
    score = q[0, 3] @ k[0, 1].T * 0.3
    score = score if cap is None else cap * torch.tanh(score / cap)
    weight = torch.exp(score) * mask[0, 0]
    assert torch.allclose(out[0, 3], weight / weight.sum(-1, keepdim=True) @ v[0, 1], rtol=1e-12)
