"""Decoders by name: the widths of well-known models, as in their ``config.json``, and our small ones.

``presets.toml`` holds the numbers. A preset without ``vocab_size`` takes the tokenizer's. Families that
need parts which the decoder does not have yet are listed too, with the capability that brings them, and
refused by name.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from paceline.ledger.outcome import Exit, Refused


@dataclass(frozen=True)
class ModelWidths:
    """Shape of a decoder. Names as in ``config.json``, where Hugging Face has one.

    ``attention_bias`` is a bias on the query, key and value projections (as in Qwen2), none on the output.
    ``rope_scaling`` is None or Hugging Face's table (``rope_type`` ``llama3`` or ``linear``, ``factor`` …).
    """

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    hidden_act: str = "silu"
    rms_norm_eps: float = 1e-5
    rope_theta: float = 10000.0
    rope_scaling: Mapping[str, Any] | None = field(default=None, hash=False)
    tie_word_embeddings: bool = False
    attention_bias: bool = False
    max_position_embeddings: int = 8192
    norm: str = "rmsnorm"
    gated_mlp: bool = True
    mlp_bias: bool = False
    attention_output_bias: bool = False
    position_embedding_type: str = "rope"
    qk_norm: bool = False
    sliding_window: int | None = None
    layer_types: tuple[str, ...] | None = None
    final_logit_softcapping: float | None = None
    attn_logit_softcapping: float | None = None
    num_experts: int = 0
    num_experts_per_tok: int = 0
    moe_intermediate_size: int = 0
    n_shared_experts: int = 0
    first_k_dense_replace: int = 0
    scoring_func: str = "softmax"
    router_aux_loss_coef: float = 0.0
    norm_topk_prob: bool = True
    routed_scaling_factor: float = 1.0
    q_lora_rank: int | None = None
    kv_lora_rank: int | None = None
    qk_rope_head_dim: int = 0
    qk_nope_head_dim: int = 0
    v_head_dim: int = 0

    def to_dict(self) -> dict[str, Any]:
        """Plain values under the names of ``config.json``."""
        return asdict(self)


WIDTHS = tuple(ModelWidths.__dataclass_fields__)


@dataclass(frozen=True)
class Preset:
    """A name in the table: its widths as given, or the capability that it waits for."""

    name: str
    widths: Mapping[str, Any]
    arrives: str = ""
    needs: str = ""


@cache
def presets() -> dict[str, Preset]:
    """Every preset by name, in the order of the file: first what is here, then what arrives later."""
    text = Path(__file__).with_name("presets.toml").read_text(encoding="utf-8")
    table = tomllib.loads(text)
    shared = table["shared"]
    known: dict[str, Preset] = {}
    for name, widths in table["preset"].items():
        own = dict(widths)
        known[name] = Preset(name, {**shared.get(own.pop("like", ""), {}), **own})
    for name, later in table["later"].items():
        known[name] = Preset(name, {}, later["arrives"], later["needs"])
    return known


def find_preset(name: str) -> Preset:
    """The preset called ``name``; refused with the nearest when unknown, by name when it has not arrived."""
    from difflib import get_close_matches  # 5 ms that only an error needs

    known = presets()
    here = [preset.name for preset in known.values() if not preset.arrives]
    if name not in known:
        near = get_close_matches(name.lower(), here, 1, 0.5)
        raise Refused(
            f"model.preset: no preset is called {name!r}",
            exit_code=Exit.USAGE,
            key="model.preset",
            seen=f'model.preset = "{name}"',
            rule="a preset is a name of the table that `paceline job keys model.preset` prints",
            allowed=", ".join(here),
            use=f'model.preset = "{near[0] if near else "tiny"}"',
        )
    preset = known[name]
    if preset.arrives:
        raise Refused(
            f"model.preset: {name} is not in this version",
            exit_code=Exit.USAGE,
            key="model.preset",
            seen=f'model.preset = "{name}"',
            rule=f"it needs {preset.needs}, which arrives with capability {preset.arrives}",
            allowed=", ".join(here),
            use='model.preset = "tiny"',
        )
    return preset


def widths_of(given: Mapping[str, Any], vocab_size: int) -> ModelWidths:
    """``given`` (a preset's widths under the job's own) made whole and checked against each other.

    Args:
        vocab_size: the tokenizer's; the model's own, where given, may be larger and never smaller.
    """
    have = {name: value for name, value in given.items() if value is not None}
    for name in ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"):
        if name not in have:
            raise _refused(name, "not given", "a model without a preset gives all its widths", "")
    hidden, heads = have["hidden_size"], have["num_attention_heads"]
    key_value = have.setdefault("num_key_value_heads", heads)
    if "head_dim" not in have:
        if hidden % heads:
            near = next(n for n in range(heads, 0, -1) if hidden % n == 0)
            rule = "num_attention_heads divides hidden_size, unless head_dim is given"
            raise _refused("num_attention_heads", f"{heads}; hidden_size {hidden}", rule, str(near))
        have["head_dim"] = hidden // heads
    if heads % key_value:
        near = next(n for n in range(min(key_value, heads), 0, -1) if heads % n == 0)
        rule = "num_key_value_heads divides num_attention_heads"
        raise _refused("num_key_value_heads", f"{key_value}; {heads} attention heads", rule, str(near))
    if have["head_dim"] % 2:
        even = str(have["head_dim"] + 1)
        raise _refused(
            "head_dim", str(have["head_dim"]), "rotary embedding turns pairs: head_dim is even", even
        )
    own = have.setdefault("vocab_size", vocab_size)
    if own < vocab_size:
        rule = "the model's vocabulary holds every token of the tokenizer"
        raise _refused("vocab_size", f"{own}; the tokenizer has {vocab_size} tokens", rule, str(vocab_size))
    return ModelWidths(**have)


def _refused(name: str, seen: str, rule: str, use: str) -> Refused:
    return Refused(
        f"model.{name}: these widths do not fit each other",
        exit_code=Exit.USAGE,
        key=f"model.{name}",
        seen=f"model.{name} = {seen}" if use else seen,
        rule=rule,
        use=f"model.{name} = {use}" if use else 'model.preset = "tiny"',
    )
