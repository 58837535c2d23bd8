"""Numbers that decide, beside tensors that have none."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from paceline.recipes.dry.values import Values


@pytest.fixture(autouse=True)
def values() -> Iterator[Values]:
    values = Values()
    with FakeTensorMode(allow_non_fake_inputs=True), values:
        yield values


def test_tokens_of_unknown_experts_are_dealt_out_evenly(values: Values) -> None:
    choice = torch.empty(11, dtype=torch.float32).argsort()
    counts = choice.new_zeros(4).scatter_add_(0, choice, torch.ones_like(choice))
    assert counts.tolist() == [3, 3, 3, 2]
    assert counts.view(2, 2).sum(1).tolist() == [6, 5]
    assert torch.bincount(choice, minlength=4).tolist() == [3, 3, 3, 2]
    assert values.dealt == 2


def test_what_follows_from_known_values_is_known() -> None:
    numbers = torch.arange(6)
    numbers.view(2, 3)[1] += 10
    assert torch.stack((numbers.sum(), numbers.cumsum(0)[2])).tolist() == [45, 3]
    assert [part.tolist() for part in numbers.split([1, 5])] == [[0], [1, 2, 13, 14, 15]]


def test_what_is_not_known_is_finite_and_true() -> None:
    assert torch.empty(3).sum().item() == 1.0
    assert torch.empty(3, dtype=torch.float64).tolist() == [1.0, 1.0, 1.0]
    assert bool((torch.empty(3) > 0).any()) is True


def test_a_value_that_is_written_over_is_forgotten() -> None:
    numbers = torch.zeros(2, dtype=torch.int64)
    numbers.copy_(torch.empty(2).argsort())
    assert numbers.tolist() == [1, 1]
