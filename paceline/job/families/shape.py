"""A config's values → widths, and what is counted beside them. One arithmetic for all families."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from paceline.job.families.attention import read_attention
from paceline.job.families.draft import Draft
from paceline.job.families.experts import read_experts
from paceline.job.families.known import Family, families
from paceline.job.families.odd import ODD
from paceline.job.families.positions import read_positions
from paceline.job.families.values import Values
from paceline.job.families.windows import read_windows
from paceline.ledger.outcome import Exit, Refused

ACTIVATIONS = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_new",
    "gelu_fast": "gelu_new",
    "gelu_pytorch_tanh": "gelu_pytorch_tanh",
    "relu": "relu",
}
_MULTIPLIERS = ("embedding_multiplier", "residual_multiplier", "logits_scaling", "scale_emb", "scale_depth")


def shape_of(given: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Widths under the names of ``ModelWidths``; ``beyond`` where our decoder does not compute all of the model.

    Args:
        given: the object of a ``config.json``. where: the file, for errors.

    Raises:
        Refused: 2; a key that must be there is not, or a value cannot be.
    """
    inner, notes = _text_part(given, where)
    name = Values(inner, where).text("model_type")
    family = families().get(name) or _assumed(name, inner)
    draft = Draft(Values(inner, where, family.defaults), family, needs=list(family.needs))
    draft.notes += [*notes, *family.notes]
    if notes:
        draft.lack("the parts of the model that are not text")
    draft.beyond |= family.beyond
    if not family.known:
        draft.lack(f"the family {name!r}" if name else "its family, which the file does not name")
        draft.notes.append(_said(family))
    _sizes(draft)
    draft.widths |= family.widths
    read_attention(draft)
    read_positions(draft)
    read_windows(draft)
    read_experts(draft)
    _further(draft)
    if name in ODD:
        ODD[name](draft)
    return draft.whole()


def _text_part(given: Mapping[str, Any], where: str) -> tuple[Mapping[str, Any], list[str]]:
    """The object that describes the decoder: the file's own, or its ``text_config``."""
    if given.get("is_encoder_decoder"):
        raise Refused(
            f"{where} is an encoder with a decoder",
            exit_code=Exit.USAGE,
            key="model.hf",
            seen='"is_encoder_decoder": true',
            rule="the planner counts decoders",
            use="plan a job with widths of your own ([model])",
        )
    for name in ("text_config", "llm_config", "language_config"):
        inner = given.get(name)
        if isinstance(inner, Mapping):
            outer = {n: given[n] for n in ("tie_word_embeddings", "vocab_size") if n in given}
            kind = given.get("model_type", "")
            return {**outer, **inner}, [
                f"only {name} of {kind or 'the model'} is counted, not what sees or hears"
            ]
    return given, []


def _sizes(draft: Draft) -> None:
    """What every model has, and what most have."""
    values, widths = draft.values, draft.widths
    for name in ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads"):
        widths[name] = values.needed(name)
    inner = values.whole("intermediate_size", 1)
    gated = values.defaults.get("hidden_act", "silu") == "silu"
    if inner is None and gated:  # those with two matrices have four times the hidden size
        raise values.missing("intermediate_size")
    widths["intermediate_size"] = inner or 4 * widths["hidden_size"]
    widths["tie_word_embeddings"] = values.switch("tie_word_embeddings", True)
    widths["rms_norm_eps"] = values.real("rms_norm_eps", 1e-5)
    act = values.text("hidden_act", "silu")
    widths["hidden_act"] = ACTIVATIONS.get(act, "relu" if act.startswith("relu") else "silu")
    if act not in ACTIVATIONS:
        draft.lack(f"the activation {act}")
    for name in ("final_logit_softcapping", "attn_logit_softcapping"):
        if values.raw(name) is not None:
            widths[name] = values.real(name, 1.0)


def _further(draft: Draft) -> None:
    """Switches that mean the same wherever they stand."""
    values, widths = draft.values, draft.widths
    if "mlp_bias" not in draft.family.widths and values.switch("mlp_bias"):
        widths["mlp_bias"] = True
    if any(values.raw(name) not in (None, 1, 1.0) for name in _MULTIPLIERS):
        draft.lack("multipliers of embeddings, residuals or logits")
    if values.switch("lm_head_bias"):
        draft.beyond["head_bias"] = True
        draft.lack("a biased head")
    predicted = values.whole("num_nextn_predict_layers") or 0
    if predicted:
        draft.beyond["predicted"] = predicted
        draft.lack("layers that predict further tokens (num_nextn_predict_layers)")


def _assumed(name: str, given: Mapping[str, Any]) -> Family:
    """A family that the table does not have, by what its keys suggest."""
    layernorm = any(n.startswith(("layer_norm", "layernorm")) for n in given)
    if not layernorm:
        return Family(name, {"tie_word_embeddings": False}, known=False)
    widths = {"norm": "layernorm", "gated_mlp": False, "mlp_bias": True, "position_embedding_type": "rope"}
    widths |= {"attention_bias": True, "attention_output_bias": True}
    defaults = {"hidden_act": "gelu", "tie_word_embeddings": False}
    return Family(name, defaults, widths, known=False)


def _said(family: Family) -> str:
    like = "GPT-2 (LayerNorm, biases, two matrices)" if family.widths else "Llama (RMSNorm, three matrices)"
    return f"model_type {family.name!r} is not known: counted by its standard keys, with blocks like {like}"
