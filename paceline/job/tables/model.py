"""``[model]``: a decoder by name or by its widths, which have the names of Hugging Face's ``config.json``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import PlainSerializer, PlainValidator, WithJsonSchema, model_validator

from paceline.job.presets import WIDTHS, ModelWidths, find_preset
from paceline.job.quantities import QuantityError
from paceline.job.tables.table import Table, key
from paceline.job.tables.types import Settings, Strings, as_list, as_tuple, number
from paceline.job.widths import LAYER_TYPES, overlaid, widths_of

PRESETS = "preset's"
LARGEST_WIDTH = 2**31 - 1
_LLAMA3 = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
_SCALINGS = {"default": (), "linear": ("factor",), "llama3": _LLAMA3}
# A vocabulary for checks that do not depend on it.
_ANY_VOCABULARY = 1


def parse_rope_scaling(value: object) -> dict[str, Any]:
    """``{rope_type = "llama3", factor = 8.0, …}``: each type with exactly its own numbers, all above zero."""
    if not isinstance(value, Mapping):
        raise QuantityError("a table with rope_type", allowed='{rope_type = "linear", factor = 2.0}')
    kind = value.get("rope_type", value.get("type"))
    if not isinstance(kind, str) or kind not in _SCALINGS:
        raise QuantityError("rope_type is one that this version computes", allowed=", ".join(_SCALINGS))
    names = _SCALINGS[kind]
    given = set(value) - {"rope_type", "type"}
    if given != set(names):
        raise QuantityError(f"rope_type {kind} has exactly these numbers", allowed=", ".join(names) or "none")
    scaling: dict[str, Any] = {"rope_type": kind}
    for name in names:
        if number(value[name], f"{name} is a number above zero") <= 0:
            raise QuantityError(f"{name} is a number above zero")
        scaling[name] = value[name]
    if kind == "llama3" and not value["low_freq_factor"] < value["high_freq_factor"]:
        raise QuantityError("low_freq_factor is below high_freq_factor")
    return scaling


RopeScaling = Annotated[
    dict[str, Any], PlainValidator(parse_rope_scaling), WithJsonSchema({"type": "object"})
]


def _width(meaning: str, low: int = 1) -> Any:
    return key(None, meaning, form="int", shown=PRESETS, ge=low, le=LARGEST_WIDTH)


def _real(meaning: str, **limits: Any) -> Any:
    return key(None, meaning, form="float", shown=PRESETS, **(limits or {"gt": 0}))


def _switch(meaning: str) -> Any:
    return key(None, meaning, form="bool", shown=PRESETS)


def parse_layer_types(value: object) -> tuple[str, ...]:
    """``["sliding_attention", "full_attention"]``: one word a layer, or a pattern that repeats."""
    allowed = ", ".join(LAYER_TYPES)
    words = as_tuple(value)
    if not words or not all(isinstance(word, str) and word in LAYER_TYPES for word in words):
        raise QuantityError(
            "one of the words for each layer", allowed=allowed, use='["sliding_attention", "full_attention"]'
        )
    return words


LayerTypes = Annotated[
    tuple[str, ...],
    PlainValidator(parse_layer_types),
    PlainSerializer(as_list),
    WithJsonSchema({"type": "array", "items": {"enum": list(LAYER_TYPES)}, "minItems": 1}),
]


class ModelTable(Table):
    """One of preset, hf, python; the widths override those of the preset."""

    preset: str | None = key(
        None,
        "a decoder by name (`paceline job keys model.preset` lists them)",
        form="str",
        shown='"tiny"',
        group="model",
    )
    hf: str | None = key(
        None,
        "config.json of a published model: file, folder, or ORG/NAME[@REV] in the local cache",
        form="path or hub id",
        group="model",
    )
    python: str | None = key(
        None, '"file.py:build": build(**args) -> nn.Module', form="Ref", arrives="06", group="model"
    )
    args: Settings = key({}, "arguments of `python`", form="table", arrives="06")
    weights: str | None = key(
        None,
        "what the parameters start from: random, pretrained, a run, or a path",
        form="str",
        later={"random": "", "": "06"},
        shown="pretrained for hf, else random",
    )
    vocab_size: int | None = key(
        None,
        "tokens of the vocabulary",
        form="int",
        shown="preset's, else tokenizer's",
        ge=1,
        le=LARGEST_WIDTH,
    )
    hidden_size: int | None = _width("width of the residual stream")
    intermediate_size: int | None = _width("width of the MLP")
    num_hidden_layers: int | None = _width("number of blocks")
    num_attention_heads: int | None = _width("query heads; they divide hidden_size unless head_dim is given")
    num_key_value_heads: int | None = _width("key and value heads; they divide num_attention_heads")
    head_dim: int | None = _width("width of one head, even; default hidden_size / num_attention_heads")
    hidden_act: Literal["silu", "gelu", "gelu_new", "gelu_pytorch_tanh", "relu"] | None = key(
        None, "activation of the MLP", shown=PRESETS
    )
    gated_mlp: bool | None = _switch("the MLP multiplies by a second projection (SwiGLU)")
    mlp_bias: bool | None = _switch("bias on the projections of the MLP")
    norm: Literal["rmsnorm", "layernorm"] | None = key(
        None,
        "layernorm: a GPT-2 (MLP, biases, positions) where these are not given",
        shown=PRESETS,
    )
    rms_norm_eps: float | None = _real("epsilon of the norm, whichever it is")
    position_embedding_type: Literal["rope", "absolute"] | None = key(
        None, "rotary, or a learned vector for each of max_position_embeddings", shown=PRESETS
    )
    rope_theta: float | None = _real("base of the rotary embedding")
    rope_scaling: RopeScaling | None = key(
        None, "table with rope_type (llama3, linear, default) and its numbers", form="table", shown=PRESETS
    )
    max_position_embeddings: int | None = _width("longest sequence")
    tie_word_embeddings: bool | None = _switch("one matrix embeds and predicts")
    attention_bias: bool | None = _switch("bias on the query, key and value projections")
    attention_output_bias: bool | None = _switch("bias on attention's output projection")
    qk_norm: bool | None = _switch("norm of each head's query and key")
    sliding_window: int | None = _width(
        "tokens that sliding attention looks back, itself included; 0 = all", 0
    )
    layer_types: LayerTypes | None = key(
        None,
        "full_attention or sliding_attention for each layer, or a pattern that repeats",
        form="list of str",
        shown=PRESETS,
    )
    attn_logit_softcapping: float | None = _real("soft limit of attention's scores")
    final_logit_softcapping: float | None = _real("soft limit of the logits")
    num_experts: int | None = _width("routed experts; 0 = a dense model", 0)
    num_experts_per_tok: int | None = _width("routed experts that see a token", 0)
    moe_intermediate_size: int | None = _width("width of one expert", 0)
    n_shared_experts: int | None = _width("experts that see every token", 0)
    first_k_dense_replace: int | None = _width("first layers without experts", 0)
    scoring_func: Literal["softmax", "sigmoid"] | None = key(
        None, "how the router scores; sigmoid balances by a bias (DeepSeek-V3)", shown=PRESETS
    )
    norm_topk_prob: bool | None = _switch("the chosen experts' weights sum to one")
    routed_scaling_factor: float | None = _real("factor on what the routed experts add")
    router_aux_loss_coef: float | None = _real("weight of the balance loss; 0 = none", ge=0)
    q_lora_rank: int | None = _width("rank of latent attention's query compression; 0 = none", 0)
    kv_lora_rank: int | None = _width("rank of the key and value compression: latent attention; 0 = none", 0)
    qk_rope_head_dim: int | None = _width("rotated part of a latent head, even", 0)
    qk_nope_head_dim: int | None = _width("part of a latent head without rotation", 0)
    v_head_dim: int | None = _width("width of a latent value head", 0)
    freeze: Strings = key((), "globs of parameters not trained", form="list of globs", arrives="06")

    @model_validator(mode="before")
    @classmethod
    def _one_of(cls, given: Any) -> Any:
        if isinstance(given, Mapping) and not any(given.get(name) for name in ("preset", "hf", "python")):
            return {**given, "preset": "tiny"}
        return given

    @model_validator(mode="after")
    def _fits(self) -> ModelTable:
        self.widths(_ANY_VOCABULARY)
        return self

    def widths(self, vocab_size: int) -> ModelWidths:
        """The shape over a tokenizer of ``vocab_size`` tokens; refused when it cannot hold them."""
        own = {name: getattr(self, name, None) for name in WIDTHS}
        own = {name: value for name, value in own.items() if value is not None}
        return widths_of(overlaid(self._base(own), own), vocab_size)

    def own_vocab_size(self) -> int | None:
        """The vocabulary that the model brings itself; None when it takes the tokenizer's."""
        size = self.vocab_size or self._base({}).get("vocab_size")
        return int(size) if size else None

    @property
    def start(self) -> str:
        """What the parameters start from, where the job does not say: what was published, else random numbers."""
        return self.weights or ("pretrained" if self.hf else "random")

    def _base(self, own: Mapping[str, Any]) -> Mapping[str, Any]:
        """What the job's own widths lie over: a preset, or a published model."""
        if self.hf is None:
            return find_preset(self.preset or "tiny").widths
        from paceline.job.families.published import published

        return published(self.hf, own)
