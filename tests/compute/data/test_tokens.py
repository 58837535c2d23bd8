"""Tokenizers: exact byte lengths, text that looks like a special token, the same merges for the same text."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.compute.data import tokens
from paceline.ledger.outcome import Exit, Refused

from .conftest import text_of

BPE = tokens.train_bpe(iter([text_of(n, 300) for n in range(20)]), 400)


def test_bytes() -> None:
    one = tokens.ByteTokenizer()
    assert one.encode("é") == [0xC3, 0xA9]
    assert one.decode([0xC3, 0xA9, 256]) == "é"
    assert one.byte_lengths().tolist() == [1] * 256 + [0]
    assert (one.vocab, one.eos) == (257, 256)


@given(st.text(max_size=200))
@settings(max_examples=60, deadline=None)
def test_bpe_round_trip_and_bytes_are_exact(text: str) -> None:
    ids = BPE.encode(text)
    assert BPE.decode(ids) == text
    assert int(BPE.byte_lengths()[ids].sum()) == len(text.encode())
    assert BPE.eos not in ids


def test_special_tokens_in_a_text_are_text() -> None:
    ids = BPE.encode(f"a{tokens.END_OF_TEXT}b")
    assert BPE.eos not in ids
    assert BPE.decode(ids) == f"a{tokens.END_OF_TEXT}b"


def test_bpe_is_deterministic_and_holds_every_byte() -> None:
    again = tokens.train_bpe(iter([text_of(n, 300) for n in range(20)]), 400)
    assert again.to_json() == BPE.to_json()
    assert 257 <= BPE.vocab <= 400
    assert BPE.byte_lengths()[BPE.eos] == 0
    # a text without a single seen byte still has tokens
    assert BPE.decode(BPE.encode("\x00\x7fЖ𝄞")) == "\x00\x7fЖ𝄞"


def test_a_saved_tokenizer_is_the_same(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(BPE.to_json(), encoding="utf-8")
    loaded = tokens.load(tmp_path)
    text = text_of(99, 50)
    assert loaded.encode(text) == BPE.encode(text)
    assert (loaded.vocab, loaded.eos) == (BPE.vocab, BPE.eos)
    np.testing.assert_array_equal(loaded.byte_lengths(), BPE.byte_lengths())
    (tmp_path / "bytes.json").write_text(tokens.ByteTokenizer().to_json())
    assert isinstance(tokens.load(tmp_path / "bytes.json"), tokens.ByteTokenizer)


def test_byte_fallback_and_word_pieces_are_counted_by_their_text() -> None:
    assert tokens._token_bytes("<0x0A>", False) == 1
    assert tokens._token_bytes("▁über", False) == 6
    assert tokens._token_bytes("##ing", False) == 3


@pytest.mark.parametrize("name", ["bpe:256", "bpe:", "bpe:many", "bpe:-5", "bpe:99999999"])
def test_a_size_that_cannot_be_is_refused(name: str) -> None:
    with pytest.raises(Refused) as caught:
        tokens.bpe_size(name)
    assert caught.value.exit_code == Exit.USAGE
    assert tokens.bpe_size("bpe:8192") == 8192
    assert tokens.bpe_size("bytes") is None


def test_a_file_that_is_no_tokenizer_is_refused(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(Refused) as caught:
        tokens.load(tmp_path / "tokenizer.json")
    assert caught.value.exit_code == Exit.DATA
    assert str(tmp_path) in caught.value.seen
