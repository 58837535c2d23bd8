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

from paceline.job.beyond import Beyond
from paceline.ledger.outcome import Exit, Refused


@dataclass(frozen=True)
class ModelWidths:
    """Shape of a decoder. Names as in ``config.json``, where Hugging Face has one.

    Whole and checked when ``job.widths`` made it: ``layer_types`` is then None (all full) or one word a layer.
    ``rms_norm_eps`` is the epsilon of whichever norm. ``rope_scaling`` is None or Hugging Face's table
    (``rope_type`` ``llama3`` or ``linear``, ``factor`` …). With ``kv_lora_rank`` attention is multi-head
    latent, ``head_dim`` the width of a query or key head (``qk_nope_head_dim + qk_rope_head_dim``).
    ``beyond`` is None where our decoder computes all of it.
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
    beyond: Beyond | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if self.layer_types is not None:  # a list, when it comes out of JSON
            object.__setattr__(self, "layer_types", tuple(self.layer_types))
        if isinstance(self.beyond, Mapping):
            object.__setattr__(self, "beyond", Beyond.of(self.beyond))

    def to_dict(self) -> dict[str, Any]:
        """Plain values under the names of ``config.json``."""
        return asdict(self)


WIDTHS = tuple(name for name in ModelWidths.__dataclass_fields__ if name != "beyond")


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
