"""A published model's widths, from what ``model.hf`` names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from paceline.job.families.place import config_file, read_config
from paceline.job.families.shape import shape_of

ESSENTIAL = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")


def published(word: str, own: Mapping[str, Any]) -> dict[str, Any]:
    """The widths that a ``config.json`` gives, as ``ModelWidths`` names them.

    Args:
        word: ``model.hf``. own: widths of the job, which may stand in for what the file does not say.

    Raises:
        Refused: 2; there is no such file here, or it does not describe a decoder.
    """
    file = config_file(word)
    given = read_config(file)
    filled = {name: own[name] for name in ESSENTIAL if name in own and given.get(name) is None}
    return shape_of({**given, **filled}, str(file))
