"""Values of a ``config.json``, by their standard names, each checked as it is read: a wrong one is refused by name."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from paceline.ledger.outcome import Exit, Refused

LARGEST = 2**31 - 1
MOST_LAYERS = 10_000
OTHER_NAMES: Mapping[str, tuple[str, ...]] = {
    "vocab_size": ("padded_vocab_size",),
    "hidden_size": ("n_embd", "n_embed", "d_model"),
    "intermediate_size": ("n_inner", "ffn_dim", "ffn_hidden_size"),
    "num_hidden_layers": ("n_layer", "n_layers", "num_layers"),
    "num_attention_heads": ("n_head", "n_heads", "num_heads"),
    "num_key_value_heads": ("num_kv_heads", "multi_query_group_num"),
    "head_dim": ("kv_channels",),
    "max_position_embeddings": (
        "n_positions",
        "max_sequence_length",
        "max_seq_len",
        "seq_length",
        "n_ctx",
        "model_max_length",
    ),
    "rms_norm_eps": ("layer_norm_eps", "layer_norm_epsilon", "norm_epsilon", "norm_eps", "layernorm_epsilon"),
    "hidden_act": ("hidden_activation", "activation_function", "activation", "mlp_hidden_act"),
    "attention_bias": ("qkv_bias", "use_qkv_bias", "use_bias", "bias"),
    "num_experts": ("num_local_experts", "n_routed_experts", "moe_num_experts"),
    "num_experts_per_tok": ("num_experts_per_token", "moe_topk", "moe_k"),
    "n_shared_experts": ("num_shared_experts", "moe_num_shared_experts"),
    "moe_intermediate_size": ("expert_ffn_hidden_size",),
}
"""Names that older families have for the same."""


@dataclass(frozen=True)
class Values:
    """One object of a config.

    Attributes:
        given: as it stands in the file. defaults: what the family means where it says nothing.
        where: the file, and the object in it, for an error.
    """

    given: Mapping[str, Any]
    where: str
    defaults: Mapping[str, Any] = field(default_factory=dict)

    def name_of(self, name: str) -> str:
        """The name by which the file says it; the standard one where it does not."""
        names = (name, *OTHER_NAMES.get(name, ()))
        return next((one for one in names if self.given.get(one) is not None), name)

    def raw(self, name: str) -> Any:
        """The value, else the family's default, else None; null says nothing."""
        value = self.given.get(self.name_of(name))
        if value is None:
            value = self.defaults.get(name)
        if value is None:
            value = next((self.defaults[n] for n in OTHER_NAMES.get(name, ()) if n in self.defaults), None)
        return value

    def says(self, name: str) -> bool:
        """Whether the file itself gives it."""
        return self.given.get(self.name_of(name)) is not None

    def whole(self, name: str, low: int = 0) -> int | None:
        """A whole number from ``low``; None = not given."""
        value = self.raw(name)
        if value is None:
            return None
        most = MOST_LAYERS if name == "num_hidden_layers" else LARGEST
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= most:
            raise self.wrong(name, f"a whole number from {low} to {most}")
        return value

    def needed(self, name: str) -> int:
        """A whole number above 0 that must be there.

        Raises:
            Refused: 2, naming the key.
        """
        value = self.whole(name, 1)
        if value is None:
            raise self.missing(name)
        return value

    def real(self, name: str, default: float) -> float:
        """A finite number above 0."""
        value = self.raw(name)
        if value is None:
            return default
        if isinstance(value, str):  # 1e-05 comes as text out of some writers
            try:
                value = float(value)
            except ValueError:
                raise self.wrong(name, "a number above zero") from None
        if isinstance(value, bool) or not isinstance(value, int | float) or not _is_positive(value):
            raise self.wrong(name, "a number above zero")
        return float(value)

    def switch(self, name: str, default: bool = False) -> bool:
        """true or false."""
        value = self.raw(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.wrong(name, "true or false")
        return value

    def text(self, name: str, default: str = "") -> str:
        """Text."""
        value = self.raw(name)
        if value is None:
            return default
        if not isinstance(value, str):
            raise self.wrong(name, "text in quotes")
        return value

    def table(self, name: str) -> Mapping[str, Any]:
        """An object; empty when it is not there."""
        value = self.raw(name)
        if value is None:
            return {}
        if not isinstance(value, Mapping):
            raise self.wrong(name, "an object in braces")
        return value

    def numbers(self, name: str) -> tuple[int, ...]:
        """A list of whole numbers; empty when it is not there."""
        value = self.raw(name)
        if value is None:
            return ()
        if not isinstance(value, list) or not all(_is_count(one) for one in value):
            raise self.wrong(name, "a list of whole numbers")
        return tuple(value)

    def words(self, name: str) -> tuple[str, ...]:
        """A list of words; empty when it is not there."""
        value = self.raw(name)
        if value is None:
            return ()
        if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
            raise self.wrong(name, "a list of words")
        return tuple(value)

    def missing(self, name: str) -> Refused:
        """The refusal of a config without a key that it must have."""
        others = ", ".join(OTHER_NAMES.get(name, ()))
        null = name in self.given
        return Refused(
            f"{self.where} has no {name}",
            exit_code=Exit.USAGE,
            key="model.hf",
            seen=f'"{name}": null' if null else f"no {name}" + (f", nor {others}" if others else ""),
            rule="a config.json says how large its model is: vocabulary, hidden size, layers and heads",
            use=f'write "{name}" into it, or model.{name} into the job',
        )

    def wrong(self, name: str, rule: str) -> Refused:
        """The refusal of a value that cannot be."""
        name = self.name_of(name)
        value = self.given.get(name)
        try:
            seen = json.dumps(value)
        except (TypeError, ValueError):
            seen = repr(value)
        seen = seen if len(seen) <= 60 else seen[:57] + "…"
        return Refused(
            f"{self.where}: {name} is not {rule.partition(' from ')[0]}",
            exit_code=Exit.USAGE,
            key="model.hf",
            seen=f'"{name}": {seen}',
            rule=f"{name} is {rule}",
            use=f'correct "{name}" in the file, or write the width into the job ([model])',
        )


def _is_positive(value: int | float) -> bool:
    try:
        return math.isfinite(value) and value > 0
    except OverflowError:
        return False


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= LARGEST
