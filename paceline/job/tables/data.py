"""``[data]``: what is read, how it is cut into sequences, and what is held out."""

from __future__ import annotations

import re
from typing import Literal

from pydantic import field_validator

from paceline.job.quantities import QuantityError
from paceline.job.tables.table import Table, key
from paceline.job.tables.types import HeldOut, Sources

DEFAULT_TOKENIZER = "bpe:8192"
_BPE = re.compile(r"bpe:(\d{1,7})")
SMALLEST_BPE, LARGEST_BPE = 257, 1_000_000


class DataTable(Table):
    """Sources, tokenizer and packing. Everything here can change the result."""

    train: Sources | None = key(None, "what is trained on", form="Source", shown="required to train")
    eval: HeldOut = key(
        0.01,
        "held out: a Source, or a fraction of the documents by hash (of 64 KiB blocks of a single file)",
        form="Source or fraction",
    )
    sequence_length: int = key(1024, "length of one sequence", form="int", unit="tokens", ge=1, le=2**31 - 1)
    tokenizer: str = key(
        DEFAULT_TOKENIZER,
        "bytes, bpe:N (trained on `train`), a tokenizer.json, or a hub id",
        form="str",
        shown='the model\'s, else "bpe:8192"',
    )
    packing: Literal["concat", "masked", "none"] = key(
        "concat",
        "documents joined; joined with attention inside a document; one document a row",
        shown="concat; chat: masked",
    )
    text_field: str = key("text", "field of a jsonl row that holds the text", form="str", min_length=1)
    chat_template: str | None = key(
        None, "how messages become text", form="str", shown="tokenizer's", arrives="06"
    )
    loss_on: Literal["all", "assistant", "completion"] | None = key(
        None, "tokens that count", shown="what the data marks, else all", arrives="06"
    )
    bad_row: Literal["stop", "skip"] = key("stop", "what a row that cannot be read does")
    groups: str | None = key(
        None,
        "held-out loss by group: file pattern, column, or length:EDGES",
        form="str",
        arrives="05",
    )
    placement: Literal["shared", "local"] = key(
        "shared",
        "local: a host reads only its own files and every batch takes a fixed quota from each",
        later={"local": "08"},
    )
    residency: str | None = key(
        None,
        "site or region that the raw data may not leave: layouts over several hosts are refused",
        form="str",
    )

    @field_validator("tokenizer")
    @classmethod
    def _tokenizer(cls, name: str) -> str:
        if name == "bytes" or name.endswith(".json"):
            return name
        found = _BPE.fullmatch(name)
        if found is None or not SMALLEST_BPE <= int(found[1]) <= LARGEST_BPE:
            rule = f"bytes, a tokenizer.json, or bpe:N of {SMALLEST_BPE} to {LARGEST_BPE} tokens"
            raise QuantityError(rule, allowed="bytes, bpe:8192, tokenizer.json", use=f'"{DEFAULT_TOKENIZER}"')
        return name

    @property
    def nominal_vocab_size(self) -> int | None:
        """What the tokenizer's name says of its vocabulary, before it exists: N of ``bpe:N``, else None."""
        found = _BPE.fullmatch(self.tokenizer)
        return int(found[1]) if found else None
