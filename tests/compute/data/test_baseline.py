"""The n-gram models against slow dictionaries, and as probabilities."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from paceline.compute.data import baseline
from paceline.compute.data.baseline import Trigram, Unigram, baselines
from paceline.compute.data.packing import PackedSet
from paceline.compute.data.prepared import Prepared

VOCAB = 12


def sample(seed: int, size: int) -> np.ndarray:
    """Skewed tokens with some order in them."""
    source = np.random.default_rng(seed)
    steps = np.minimum(source.geometric(0.45, size), VOCAB) - 1
    return np.cumsum(steps) % (VOCAB - 1)


class Slow:
    """The formula of the docstring with dictionaries, one probability at a time."""

    def __init__(self, pieces: list[list[int]]) -> None:
        three = Counter(tuple(p[i : i + 3]) for p in pieces for i in range(len(p) - 2))
        two = Counter(gram[1:] for gram in three)
        one = Counter(gram[1:] for gram in two)
        self.levels = [one, two, three]
        self.discounts = [self.discount(level) for level in self.levels]

    @staticmethod
    def discount(level: Counter[tuple[int, ...]]) -> dict[int, float]:
        n = Counter(level.values())
        ratio = n[1] / (n[1] + 2 * n[2]) if n[1] and n[2] else 0.5
        found = {}
        for k in (1, 2, 3):
            value = k - (k + 1) * ratio * n[k + 1] / n[k] if n[k] else ratio * k
            found[k] = min(max(value, 0.05), k - 0.05)
        return found

    def probability(self, gram: tuple[int, ...]) -> float:
        if not gram:
            return 1 / VOCAB
        level, discount = self.levels[len(gram) - 1], self.discounts[len(gram) - 1]
        context = {g: n for g, n in level.items() if g[:-1] == gram[:-1]}
        below = self.probability(gram[1:])
        if not context:
            return below
        total = sum(context.values())
        count = level.get(gram, 0)
        share = (count - (discount[min(count, 3)] if count else 0)) / total
        return share + sum(discount[min(n, 3)] for n in context.values()) / total * below


@pytest.mark.parametrize("size", [3, 4, 12, 60, 500])
def test_trigram_equals_the_slow_one(size: int) -> None:
    pieces = [sample(1, size), sample(2, size // 2)]
    model, slow = Trigram(pieces, VOCAB), Slow([p.tolist() for p in pieces])
    text = sample(3, 80)
    text[5] = VOCAB - 1  # never seen
    found = model.probabilities(text)
    expected = [slow.probability(tuple(text[max(0, i - 2) : i + 1].tolist())) for i in range(1, text.size)]
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_trigram_is_a_distribution_after_any_context() -> None:
    model = Trigram([sample(1, 300)], VOCAB)
    for a, b in ((0, 1), (3, 3), (VOCAB - 1, 2), (2, VOCAB - 1)):
        total = sum(model.probabilities(np.array([a, b, c]))[1] for c in range(VOCAB))
        assert total == pytest.approx(1, abs=1e-12)
        assert sum(model.probabilities(np.array([b, c]))[0] for c in range(VOCAB)) == pytest.approx(
            1, abs=1e-12
        )


def test_unigram_by_hand() -> None:
    model = Unigram([np.array([0, 0, 1])], 4)
    assert model.probabilities(np.array([3, 0, 1, 2])).tolist() == [3 / 7, 2 / 7, 1 / 7]


def test_held_out_scores_by_hand_and_kept(
    corpus: Path, prepared_of: Callable[..., Prepared], monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared = prepared_of(str(corpus / "*.txt"), tokenizer="bpe:300")
    found = baselines(prepared)
    (train,), (held_out,) = prepared.streams("train"), prepared.streams("eval")
    tokens = held_out.slice(0, held_out.tokens)
    model = Trigram([train.slice(0, train.tokens)], prepared.vocab)
    nats = -float(np.log(model.probabilities(tokens)).sum())
    lengths = prepared.token_bytes
    assert lengths is not None
    size = prepared.eval_bytes - int(lengths[tokens[0]])
    assert found["trigram"]["loss"] == pytest.approx(nats / (tokens.size - 1))
    assert found["trigram"]["bits_per_byte"] == pytest.approx(nats / math.log(2) / size)
    assert found["trigram"]["bits_per_byte"] < found["unigram"]["bits_per_byte"]
    packed = PackedSet(prepared, "eval", 32)
    assert size == sum(packed.row(n).target_bytes for n in range(packed.rows)), (
        "the same bytes as a model's loss"
    )
    assert found["eval_tokens"] == packed.valid_tokens(np.arange(packed.rows)).sum()
    assert json.loads((prepared.folder / "baseline.json").read_text()) == found
    monkeypatch.setattr(baseline, "Trigram", None)
    assert baselines(prepared) == found
    Prepared.open(prepared.folder, deep=True)


def test_pieces_of_a_stream_change_nothing(
    corpus: Path, prepared_of: Callable[..., Prepared], monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared = prepared_of(str(corpus / "*.txt"))
    whole = baselines(prepared)
    (prepared.folder / "baseline.json").unlink()
    monkeypatch.setattr(baseline, "_PIECE", 50)
    assert baselines(prepared)["trigram"]["loss"] == pytest.approx(whole["trigram"]["loss"], rel=1e-12)


def test_more_than_the_limit_is_sampled_and_said(
    corpus: Path, prepared_of: Callable[..., Prepared], monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared = prepared_of(str(corpus / "*.txt"))
    monkeypatch.setattr(baseline, "MAX_TRAIN_TOKENS", 2000)
    monkeypatch.setattr(baseline, "_PIECE", 1000)
    assert 1000 < baselines(prepared)["train_tokens"] <= 2000 < prepared.tokens


def test_ids_have_a_loss_and_no_bytes(tmp_path: Path, prepared_of: Callable[..., Prepared]) -> None:
    np.save(tmp_path / "ids.npy", sample(0, 4000))
    found = baselines(prepared_of(str(tmp_path / "ids.npy"), tokenizer=None))
    assert found["trigram"]["bits_per_byte"] is None
    assert 0 < found["trigram"]["loss"] < found["unigram"]["loss"]
