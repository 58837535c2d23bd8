"""What preparation depends on, taken out of a job: sources, hold-out, tokenizer, and how rows are read.

Sequence length, packing, batch and seed are not part of it, so one preparation serves all jobs on the
same data.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.compute.data import tokens
from paceline.compute.data.sources import SourceItem, as_items
from paceline.ledger.outcome import Exit, Refused

if TYPE_CHECKING:
    from paceline.job import Job

DEFAULT_TOKENIZER = "bpe:8192"


@dataclass(frozen=True)
class DataSpec:
    """The part of a job that decides which tokens exist.

    ``eval`` is a source, or the fraction of documents held out. ``tokenizer`` None means ``bpe:8192``, or no
    tokenizer at all where every source is pre-tokenised. ``vocab_size`` is the model's own, where it has one.
    """

    train: tuple[SourceItem, ...]
    eval: tuple[SourceItem, ...] | float = 0.01
    tokenizer: str | None = None
    text_field: str = "text"
    bad_row: str = "stop"
    vocab_size: int | None = None

    def __post_init__(self) -> None:
        if isinstance(self.eval, float) and not 0 < self.eval < 1:
            raise Refused(
                "data.eval is no fraction",
                exit_code=Exit.USAGE,
                key="data.eval",
                seen=self.eval,
                rule="held out is a fraction above 0 and below 1, or a source of its own",
                use="data.eval = 0.01",
            )
        if self.tokenizer is not None:
            tokens.bpe_size(self.tokenizer)

    @classmethod
    def of(cls, train: Any, eval: Any = 0.01, **rest: Any) -> DataSpec:
        """From the spellings of a job file: ``DataSpec.of("corpus/*.txt", 0.05, tokenizer="bytes")``."""
        held_out = float(eval) if isinstance(eval, int | float) else as_items(eval, "data.eval")
        return cls(as_items(train), held_out, **rest)

    @classmethod
    def from_job(cls, job: Job, where: str = "") -> DataSpec:
        """From a loaded job (its paths are absolute); ``where`` is its file, for an error."""
        data = job.data
        if data.train is None:
            raise Refused(
                "data.train is required to train",
                exit_code=Exit.USAGE,
                key="data.train",
                seen="nothing",
                rule="a job that trains names its text",
                use='data.train = "corpus/*.txt"',
                where=where,
            )
        return cls.of(
            data.train,
            data.eval,
            tokenizer=data.tokenizer,
            text_field=data.text_field,
            bad_row=data.bad_row,
            vocab_size=job.model.own_vocab_size(),
        )


def given_tokenizer(name: str | None) -> tokens.AnyTokenizer | None:
    """The tokenizer that exists before any text is read; None for ``bpe:N``, which is trained."""
    if name is None or tokens.bpe_size(name) is not None:
        return None
    if name == "bytes":
        return tokens.ByteTokenizer()
    path = Path(os.path.expanduser(name))
    if path.exists():
        return tokens.load(path, name)
    hub = re.fullmatch(r"[\w.-]+/[\w.-]+(@[\w.-]+)?", name) is not None and not name.endswith(".json")
    raise Refused(
        "data.tokenizer: hub ids are not in this version" if hub else "data.tokenizer: no such file",
        exit_code=Exit.USAGE if hub else Exit.DATA,
        key="data.tokenizer",
        seen=name,
        rule="hub ids arrive with capability 06" if hub else "a path must exist",
        allowed="bytes, bpe:N, or the path of a tokenizer.json",
        use=f'data.tokenizer = "{DEFAULT_TOKENIZER}"',
    )
