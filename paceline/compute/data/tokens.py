"""The tokenizer of a job: ``bytes``, ``bpe:N`` trained on the train documents, or a ``tokenizer.json``.

Every tokenizer has a table of token byte lengths, so that nats per token become bits per byte of text:
exact for byte-level vocabularies (each byte of the text belongs to exactly one token), 0 for special
tokens. Special tokens spelled out in a text are text, never control.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from paceline.ledger.outcome import Exit, Refused

END_OF_TEXT = "<|endoftext|>"
_BYTES_VOCAB = 257
_EOS_NAMES = (
    END_OF_TEXT, "<|end_of_text|>", "</s>", "<eos>", "<|eos|>", "<｜end▁of▁sentence｜>", "<|im_end|>",
    "<|eot_id|>", "[EOS]", "[SEP]",
)  # fmt: skip


class ByteTokenizer:
    """Each byte is its own token; 256 ends a document."""

    name = "bytes"
    vocab = _BYTES_VOCAB
    eos: int | None = 256

    def encode(self, text: str) -> list[int]:
        """The UTF-8 bytes of the text."""
        return list(text.encode("utf-8"))

    def encode_batch(self, texts: list[bytes]) -> list[np.ndarray]:
        """One array of ids for each document of UTF-8 bytes."""
        return [np.frombuffer(text, np.uint8) for text in texts]

    def decode(self, ids: Iterable[int]) -> str:
        """Text of the ids; an incomplete character at a border shows as U+FFFD."""
        return bytes(i for i in ids if i < 256).decode("utf-8", "replace")

    def byte_lengths(self) -> np.ndarray:
        """uint32[257]: one byte a token, nothing for the end of a document."""
        return np.concatenate([np.ones(256, np.uint32), np.zeros(1, np.uint32)])

    def to_json(self) -> str:
        """Content of ``tokenizer.json`` in the prepared folder (ours: `tokenizers` has no such model)."""
        return json.dumps({"paceline": "bytes", "vocab": self.vocab, "eos": self.eos})


class FastTokenizer:
    """A tokenizer of the `tokenizers` library.

    Args:
        tokenizer: a ``tokenizers.Tokenizer``.
        name: how the job called it.
        eos_name: the token that ends a document, where a tokenizer_config.json names it.
    """

    def __init__(self, tokenizer: Any, name: str, eos_name: str | None = None) -> None:
        tokenizer.no_truncation()
        tokenizer.no_padding()
        tokenizer.encode_special_tokens = True
        self.name, self._tokenizer = name, tokenizer
        vocabulary = tokenizer.get_vocab(with_added_tokens=True)
        self.vocab = max(vocabulary.values(), default=-1) + 1
        known = [eos_name] if eos_name else [n for n in _EOS_NAMES if n in vocabulary]
        self.eos: int | None = vocabulary.get(known[0]) if known else None

    def encode(self, text: str) -> list[int]:
        """Ids of the text, without special tokens."""
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def encode_batch(self, texts: list[bytes]) -> list[np.ndarray]:
        """One array of ids for each document of UTF-8 bytes; parallel in the library's threads."""
        strings = [text.decode("utf-8") for text in texts]
        encoded = self._tokenizer.encode_batch_fast(strings, add_special_tokens=False)
        return [np.asarray(one.ids, dtype=np.int64) for one in encoded]

    def decode(self, ids: Iterable[int]) -> str:
        """Text of the ids, special tokens left out."""
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=True))

    def byte_lengths(self) -> np.ndarray:
        """uint32[vocab]. Byte-level: a character is a byte. Else the token's text; ``<0x0A>`` is one byte."""
        parsed = json.loads(self._tokenizer.to_str())
        byte_level = any(_mentions(parsed.get(part), "ByteLevel") for part in ("pre_tokenizer", "decoder"))
        special = {token["id"] for token in parsed.get("added_tokens", []) if token.get("special")}
        added = {token["id"] for token in parsed.get("added_tokens", [])}
        lengths = np.zeros(self.vocab, np.uint32)
        for token, number in self._tokenizer.get_vocab(with_added_tokens=True).items():
            if number not in special and number != self.eos:
                lengths[number] = _token_bytes(token, byte_level and number not in added)
        return lengths

    def to_json(self) -> str:
        """Content of ``tokenizer.json``."""
        return str(self._tokenizer.to_str(pretty=False))


AnyTokenizer = ByteTokenizer | FastTokenizer


def _token_bytes(token: str, byte_level: bool) -> int:
    if byte_level:
        return len(token)
    if len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
        return 1
    return len(token.replace("▁", " ").removeprefix("##").encode("utf-8", "replace"))


def _mentions(part: Any, kind: str) -> bool:
    if isinstance(part, dict):
        return part.get("type") == kind or any(_mentions(value, kind) for value in part.values())
    return isinstance(part, list) and any(_mentions(value, kind) for value in part)


def bpe_size(name: str) -> int | None:
    """N of ``bpe:N``; None for any other name. Raises Refused(2) for an N that cannot be."""
    if not name.startswith("bpe:"):
        return None
    number = name.removeprefix("bpe:").replace("_", "")
    if not number.isdigit() or not _BYTES_VOCAB <= int(number) <= 1_000_000:
        raise Refused(
            "data.tokenizer: not a size of a vocabulary",
            exit_code=Exit.USAGE,
            key="data.tokenizer",
            seen=name,
            rule="bpe:N has 256 bytes, one end-of-text and N - 257 merges",
            allowed=f"{_BYTES_VOCAB} <= N <= 1000000",
            use='data.tokenizer = "bpe:8192"',
        )
    return int(number)


def train_bpe(texts: Iterator[str], size: int) -> FastTokenizer:
    """Byte-level BPE of at most ``size`` tokens (fewer when the text runs out of pairs); a pure function.

    Sennrich et al. 2016 (arXiv:1508.07909) on bytes, split by GPT-2's expression, as in Radford et al. 2019.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return FastTokenizer(tokenizer, f"bpe:{size}")


def load(path: Path, name: str | None = None) -> AnyTokenizer:
    """The tokenizer of a ``tokenizer.json`` (the library's, or ours for bytes). Raises Refused(20)."""
    from tokenizers import Tokenizer

    path = path / "tokenizer.json" if path.is_dir() else path
    try:
        content = path.read_text(encoding="utf-8")
        if '"paceline": "bytes"' in content[:64]:
            return ByteTokenizer()
        tokenizer = Tokenizer.from_str(content)
    except Exception as error:  # the library raises bare Exception
        raise Refused(
            "data.tokenizer cannot be read",
            exit_code=Exit.DATA,
            key="data.tokenizer",
            seen=f"{path}: {str(error).splitlines()[0] if str(error) else type(error).__name__}",
            rule="a tokenizer is bytes, bpe:N, or a tokenizer.json of the tokenizers library (or its folder)",
            use='data.tokenizer = "bpe:8192"',
        ) from error
    return FastTokenizer(tokenizer, name or str(path), _configured_eos(path.parent))


def _configured_eos(folder: Path) -> str | None:
    try:
        token = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8")).get("eos_token")
    except (OSError, ValueError, AttributeError):
        return None
    return token.get("content") if isinstance(token, dict) else token
