"""Tiny corpora, made here."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from paceline.compute.data.prepare import prepare
from paceline.compute.data.prepared import Prepared
from paceline.compute.data.spec import DataSpec

WORDS = [
    "the",
    "a",
    "rider",
    "draft",
    "pace",
    "wind",
    "wheel",
    "hill",
    "gap",
    "chase",
    "line",
    "front",
    "turn",
    "pull",
    "légère",
    "東京",
    "🚲",
    "\n",
]


def text_of(seed: int, words: int) -> str:
    """Reproducible text with repeats, several bytes a character and lines."""
    source = random.Random(seed)
    return " ".join(source.choice(WORDS) for _ in range(words))


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """Forty text files of different lengths."""
    folder = tmp_path / "corpus"
    folder.mkdir()
    for number in range(40):
        (folder / f"{number:02d}.txt").write_text(text_of(number, 20 + 7 * number), encoding="utf-8")
    return folder


@pytest.fixture
def prepared_of(tmp_path: Path) -> Callable[..., Prepared]:
    """Prepares any spelling of a source into a cache of this test."""

    def make(train: object, eval: object = 0.1, **rest: object) -> Prepared:
        rest.setdefault("tokenizer", "bytes")
        return prepare(DataSpec.of(train, eval, **rest), tmp_path / "cache")

    return make
