"""Rows: every token predicted at most once, borders kept, bits per byte exact, memory flat."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from paceline.compute.data.packing import IGNORE, PackedSet
from paceline.compute.data.prepared import Prepared
from paceline.ledger.outcome import Exit, Refused

Make = Callable[..., Prepared]
EOS = 256
DOCUMENTS = [b"abcdefg", b"hi", b"jklmnopqrstuvwxyz", b"A", b"BCDEF"]


@pytest.fixture
def five(tmp_path: Path, prepared_of: Make) -> Prepared:
    """Five known documents to train on, in this order."""
    for number, text in enumerate(DOCUMENTS):
        (tmp_path / f"train-{number}.txt").write_bytes(text)
    (tmp_path / "eval.txt").write_text("held out")
    return prepared_of([str(tmp_path / f"train-{n}.txt") for n in range(5)], str(tmp_path / "eval.txt"))


STREAM = [b for text in DOCUMENTS for b in (*text, EOS)]
DOCUMENT_OF = [n for n, text in enumerate(DOCUMENTS) for _ in range(len(text) + 1)]


@pytest.mark.parametrize("length", [1, 3, 4, 7, 36, 100])
def test_concat_by_hand(five: Prepared, length: int) -> None:
    packed = PackedSet(five, "eval", 4)
    packed = PackedSet(five, "train", length) if length < len(STREAM) else packed
    if length >= len(STREAM):
        return
    predicted = []
    assert packed.rows == -(-(len(STREAM) - 1) // length)
    for number in range(packed.rows):
        row = packed.row(number)
        at = number * length
        real = min(length, len(STREAM) - 1 - at)
        assert row.tokens[:real].tolist() == STREAM[at : at + real]
        assert row.targets[:real].tolist() == STREAM[at + 1 : at + 1 + real]
        assert (row.targets[real:] == IGNORE).all()
        assert row.segments is None
        predicted += row.targets[row.targets != IGNORE].tolist()
        assert row.target_bytes == sum(t < 256 for t in row.targets.tolist() if t != IGNORE)
    assert predicted == STREAM[1:], "every token but the first, once, in order"


@pytest.mark.parametrize("length", [1, 3, 4, 7, 30])
def test_masked_by_hand(five: Prepared, length: int) -> None:
    packed = PackedSet(five, "train", length, "masked")
    plain = PackedSet(five, "train", length)
    assert packed.rows == plain.rows
    for number in range(packed.rows):
        row = packed.row(number)
        assert row.segments is not None
        assert row.positions is not None
        np.testing.assert_array_equal(row.tokens, plain.row(number).tokens)
        for place in range(length):
            at = number * length + place
            if at >= len(STREAM):
                assert row.targets[place] == IGNORE
                assert not np.isin(row.segments[place], row.segments[: len(STREAM) - number * length])
                continue
            inside = at + 1 < len(STREAM) and DOCUMENT_OF[at] == DOCUMENT_OF[at + 1]
            assert row.targets[place] == (STREAM[at + 1] if inside else IGNORE)
            first = max(number * length, DOCUMENT_OF.index(DOCUMENT_OF[at]))
            assert row.positions[place] == at - first
            for other in range(place):
                same = DOCUMENT_OF[at] == DOCUMENT_OF[number * length + other]
                assert (row.segments[place] == row.segments[other]) == same


@pytest.mark.parametrize("length", [1, 3, 4, 7, 30])
def test_one_document_a_row_by_hand(five: Prepared, length: int) -> None:
    packed = PackedSet(five, "train", length, "none")
    expected = []
    for text in DOCUMENTS:
        tokens = [*text, EOS]
        for at in range(0, len(tokens) - 1, length):
            expected.append((tokens[at : at + length], tokens[at + 1 : at + 1 + length]))
    assert packed.rows == len(expected)
    for number, (tokens, targets) in enumerate(expected):
        row = packed.row(number)
        assert row.tokens[: len(tokens)].tolist() == tokens
        assert row.targets[: len(targets)].tolist() == targets
        assert (row.targets[len(targets) :] == IGNORE).all()
        assert (row.tokens[len(tokens) :] == 0).all()


@pytest.mark.parametrize("packing", ["concat", "masked", "none"])
@pytest.mark.parametrize("length", [1, 5, 16])
def test_valid_tokens_are_known_without_reading(five: Prepared, packing: str, length: int) -> None:
    packed = PackedSet(five, "train", length, packing)
    counted = [int((packed.row(n).targets != IGNORE).sum()) for n in range(packed.rows)]
    assert packed.valid_tokens(np.arange(packed.rows)).tolist() == counted


def test_the_sum_over_packed_documents_is_the_sum_over_separate_ones(five: Prepared) -> None:
    """B058: a model that sees only its own segment has the same (context, target) pairs."""

    def pairs(packing: str, length: int) -> list[tuple[tuple[int, ...], int]]:
        packed, found = PackedSet(five, "train", length, packing), []
        for number in range(packed.rows):
            row = packed.row(number)
            segments = row.segments if row.segments is not None else np.zeros(length, int)
            for place in np.flatnonzero(row.targets != IGNORE):
                seen = row.tokens[: place + 1][segments[: place + 1] == segments[place]]
                found.append((tuple(seen.tolist()), int(row.targets[place])))
        return sorted(found)

    assert pairs("masked", len(STREAM) - 1) == pairs("none", len(STREAM) - 1)


def test_many_documents_in_one_a_row(tmp_path: Path, prepared_of: Make) -> None:
    """More documents than one step of the sparse table."""
    import json

    texts = ["x" * (1 + n % 9) for n in range(3000)]
    (tmp_path / "a.jsonl").write_text("\n".join(json.dumps({"text": t}) for t in texts))
    (tmp_path / "e.txt").write_text("held out")
    packed = PackedSet(prepared_of(str(tmp_path / "a.jsonl"), str(tmp_path / "e.txt")), "train", 4, "none")
    assert packed.rows == sum(-(-len(t) // 4) for t in texts)
    lengths = [int((packed.row(n).targets != IGNORE).sum()) for n in range(packed.rows)]
    expected = [min(4, len(t) - at) for t in texts for at in range(0, len(t), 4)]
    assert lengths == expected


def test_bits_per_byte_of_a_uniform_model_by_hand(tmp_path: Path, prepared_of: Make) -> None:
    """A model that gives every token 1/V costs log2(V) bits a target; the bytes are counted by hand."""
    (tmp_path / "t.txt").write_text("naïve 東京\n" * 60, encoding="utf-8")
    (tmp_path / "e.txt").write_text("東京é\n", encoding="utf-8")
    prepared = prepared_of(str(tmp_path / "t.txt"), str(tmp_path / "e.txt"))
    packed = PackedSet(prepared, "eval", 4)
    rows = [packed.row(n) for n in range(packed.rows)]
    targets = sum(int((row.targets != IGNORE).sum()) for row in rows)
    size = sum(row.target_bytes for row in rows)
    text = "東京é\n".encode()
    assert len(text) == 9
    assert targets == 9, "8 bytes after the first, and the end of the document"
    assert size == 8
    assert targets * np.log2(257) / size == pytest.approx(9 * 8.005624549193877 / 8)


def test_bytes_of_merged_tokens_are_exact(corpus: Path, prepared_of: Make) -> None:
    prepared = prepared_of(str(corpus / "*.txt"), tokenizer="bpe:400")
    packed = PackedSet(prepared, "train", 16, "none")
    total = sum(packed.row(n).target_bytes for n in range(packed.rows))
    stream, lengths = prepared.streams("train")[0], prepared.token_bytes
    assert lengths is not None
    firsts = sum(int(lengths[int(stream.slice(int(s), int(s) + 1)[0])]) for s in stream.starts[:-1])
    assert total == prepared.bytes - firsts


def test_sources_are_packed_apart(corpus: Path, prepared_of: Make) -> None:
    prepared = prepared_of(
        {
            "a": {"path": str(corpus / "[01]?.txt"), "weight": 1},
            "b": {"path": str(corpus / "[23]?.txt"), "weight": 2},
        }
    )
    packed = PackedSet(prepared, "train", 64)
    assert packed.groups is not None
    a, b = packed.groups
    assert (a.first_row, b.first_row, a.rows + b.rows) == (0, a.rows, packed.rows)
    assert packed.row(b.first_row).tokens.tolist() == prepared.streams("train")[1].slice(0, 64).tolist()
    assert (packed.row(a.rows - 1).targets == IGNORE).any() or prepared.streams("train")[0].tokens % 64 == 1
    assert PackedSet(prepared_of(str(corpus / "*.txt")), "train", 64).groups is None


def test_too_small_for_one_sequence_names_what_would_fit(five: Prepared) -> None:
    with pytest.raises(Refused) as caught:
        PackedSet(five, "train", len(STREAM))
    error = caught.value
    assert error.exit_code == Exit.DATA
    assert error.key == "data.sequence_length"
    assert str(len(STREAM)) in error.seen
    assert error.use.startswith(f"data.sequence_length = {len(STREAM) - 1}")
    assert PackedSet(five, "train", len(STREAM) - 1).rows == 1
    assert PackedSet(five, "eval", 1000).rows == 1, "an evaluation set may be shorter than a sequence"


def test_an_unknown_packing_and_a_row_outside(five: Prepared) -> None:
    with pytest.raises(Refused) as caught:
        PackedSet(five, "train", 4, "dense")
    assert caught.value.exit_code == Exit.USAGE
    packed = PackedSet(five, "train", 4)
    for row in (-1, packed.rows):
        with pytest.raises(IndexError):
            packed.row(row)
