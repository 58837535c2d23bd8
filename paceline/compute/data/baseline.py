"""What a trained model has to beat: token n-gram models of the same train data, on the same held-out text.

Trigram: interpolated modified Kneser-Ney (Chen and Goodman 1999, "An empirical study of smoothing techniques
for language modeling", after Kneser and Ney 1995), with the uniform distribution below the unigram:

    p3(c|a,b) = (n(abc) - D3) / n(ab.)  + g(ab) p2(c|b)
    p2(c|b)   = (N(.bc) - D2) / N(.b.)  + g(b) p1(c)
    p1(c)     = (N(.c) - D1) / N(..)    + g / V

n counts occurrences, N(.bc) the distinct tokens seen before bc. Each order has three discounts D, for
counts of 1, 2 and 3 or more, from its counts of counts: D_k = k - (k + 1) Y n_{k+1} / n_k with
Y = n1 / (n1 + 2 n2); g is the mass that they free. Unigram: occurrences plus one, over all of them plus V.
Bits per byte count every token but a stream's first, ends of documents included (they stand for 0 bytes),
as the loss on ``concat`` rows does.

Deleted interpolation (Jelinek and Mercer 1980, weights by count of the context, leave-one-out EM) was tried
and is weaker: 1.216 against 1.177 bits a byte with bpe:8192, 1.373 against 1.343 with bpe:1024 (CPython
3.11's standard library, 1 % held out).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log
from typing import Any

import numpy as np

from paceline.compute.data.prepared import Prepared, TokenStream
from paceline.ledger.atomic import read_json_or, write_json

MAX_TRAIN_TOKENS = 16 * 1024 * 1024
"""Of more than this, evenly spread pieces are counted; the result says how many tokens."""
_PIECE = 1 << 18
_METHOD = "interpolated modified Kneser-Ney trigram, 1"


@dataclass(frozen=True)
class _Level:
    """One order: sorted n-grams with their discounted share; each context's mass for the order below."""

    keys: np.ndarray
    share: np.ndarray
    contexts: np.ndarray
    backoff: np.ndarray

    @classmethod
    def of(cls, keys: np.ndarray, counts: np.ndarray, vocab: int) -> _Level:
        """``keys`` sorted; a key's last token is ``key % vocab``, the rest is its context."""
        discount = _discounts(counts)[np.minimum(counts, 3)]
        context = keys // vocab
        first = np.flatnonzero(np.concatenate([[True], context[1:] != context[:-1]]))
        totals = np.add.reduceat(counts, first)
        sizes = np.diff(np.concatenate([first, [keys.size]]))
        share = (counts - discount) / np.repeat(totals, sizes)
        return cls(keys, share, context[first], np.add.reduceat(discount, first) / totals)

    def mixed(self, keys: np.ndarray, vocab: int, below: np.ndarray) -> np.ndarray:
        """Probability of each key's last token after its context, given that of the order below."""
        share = _found(self.keys, self.share, keys, 0.0)
        return share + _found(self.contexts, self.backoff, keys // vocab, 1.0) * below


def _found(keys: np.ndarray, values: np.ndarray, wanted: np.ndarray, default: float) -> np.ndarray:
    if keys.size == 0:
        return np.full(wanted.size, default)
    at = np.minimum(np.searchsorted(keys, wanted), keys.size - 1)
    return np.where(keys[at] == wanted, values[at], default)


def _discounts(counts: np.ndarray) -> np.ndarray:
    """float64[4]: what is taken from a count of 0, 1, 2, and 3 or more."""
    n1, n2, n3, n4 = (int((counts == k).sum()) for k in (1, 2, 3, 4))
    ratio = n1 / (n1 + 2 * n2) if n1 and n2 else 0.5
    pairs = ((1, n1, n2), (2, n2, n3), (3, n3, n4))
    taken = [k - (k + 1) * ratio * above / here if here else ratio * k for k, here, above in pairs]
    return np.array([0.0, *(min(max(d, 0.05), k - 0.05) for d, k in zip(taken, (1, 2, 3), strict=True))])


class Trigram:
    """The model of the docstring above.

    Args:
        pieces: runs of consecutive train tokens, int64 each; n-grams do not cross them.
        vocab: V; V**3 must fit in 63 bits.
    """

    def __init__(self, pieces: list[np.ndarray], vocab: int) -> None:
        self.vocab = vocab
        joined = [(p[:-2] * vocab + p[1:-1]) * vocab + p[2:] for p in pieces if p.size > 2]
        raw = np.concatenate(joined) if joined else np.empty(0, np.int64)
        keys, counts = np.unique(raw, return_counts=True)
        del raw, joined
        self._three = _Level.of(keys, counts, vocab)
        pairs, before = np.unique(keys % (vocab * vocab), return_counts=True)
        self._two = _Level.of(pairs, before, vocab)
        last, kinds = np.unique(pairs % vocab, return_counts=True)
        self._one = _Level.of(last, kinds, vocab)

    def probabilities(self, tokens: np.ndarray) -> np.ndarray:
        """float64[n-1] of tokens[1:], each after the two (the first: one) before it."""
        vocab, last = self.vocab, tokens[1:]
        one = self._one.mixed(last, vocab, np.full(last.size, 1.0 / vocab))
        two = self._two.mixed(tokens[:-1] * vocab + last, vocab, one)
        three = self._three.mixed((tokens[:-2] * vocab + tokens[1:-1]) * vocab + tokens[2:], vocab, two[1:])
        return np.concatenate([two[:1], three])


class Unigram:
    """Occurrences plus one, over all plus V."""

    def __init__(self, pieces: list[np.ndarray], vocab: int) -> None:
        counts = np.ones(vocab)
        for piece in pieces:
            counts += np.bincount(piece, minlength=vocab)
        self._share = counts / counts.sum()

    def probabilities(self, tokens: np.ndarray) -> np.ndarray:
        """float64[n-1] of tokens[1:]."""
        return np.asarray(self._share[tokens[1:]])


def baselines(prepared: Prepared) -> dict[str, Any]:
    """Held-out loss (nats a token) and bits per byte (None without a tokenizer) of both models.

    Returns:
        {method, train_tokens, eval_tokens, unigram: {loss, bits_per_byte}, trigram: {…}}; kept in the folder.
    """
    file = prepared.folder / "baseline.json"
    known = read_json_or(file, {})
    if isinstance(known, dict) and known.get("method") == _METHOD and known.get("data") == prepared.hash:
        return known
    pieces = _train_pieces(prepared)
    result: dict[str, Any] = {
        "method": _METHOD,
        "data": prepared.hash,
        "train_tokens": sum(piece.size for piece in pieces),
        "eval_tokens": sum(stream.tokens - 1 for stream in prepared.streams("eval") if stream.tokens),
        "unigram": _scores(Unigram(pieces, prepared.vocab), prepared),
        "trigram": _scores(Trigram(pieces, prepared.vocab), prepared),
    }
    try:
        write_json(file, result)
    except OSError:
        pass  # a read-only cache costs a second next time, nothing else
    return result


def _train_pieces(prepared: Prepared) -> list[np.ndarray]:
    streams = prepared.streams("train")
    share = min(1.0, MAX_TRAIN_TOKENS / max(1, sum(stream.tokens for stream in streams)))
    if share == 1.0:
        return [stream.slice(0, stream.tokens) for stream in streams]
    taken = int(_PIECE * share)
    return [
        stream.slice(start, start + taken) for stream in streams for start in range(0, stream.tokens, _PIECE)
    ]


def _scores(model: Unigram | Trigram, prepared: Prepared) -> dict[str, float | None]:
    nats, count, size = 0.0, 0, 0
    lengths = prepared.token_bytes
    for stream in prepared.streams("eval"):
        for tokens, skip in _overlapping(stream):
            found = model.probabilities(tokens)[skip:]
            nats -= float(np.log(found).sum())
            count += found.size
            if lengths is not None:
                size += int(lengths[tokens[1 + skip :]].sum(dtype=np.int64))
    return {
        "loss": nats / max(1, count),
        "bits_per_byte": nats / log(2.0) / size if size else None,
    }


def _overlapping(stream: TokenStream) -> list[tuple[np.ndarray, int]] | Any:
    """Slices that overlap by two tokens, with how many leading predictions the slice before has made."""
    for start in range(0, max(stream.tokens - 1, 0), _PIECE):
        first = max(0, start - 1)
        tokens = stream.slice(first, start + _PIECE + 1)
        if tokens.size > 1:
            yield tokens, start - first
