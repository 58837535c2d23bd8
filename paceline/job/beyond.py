"""Parts of a published model that the planner counts and that our decoder does not compute.

What can be counted is more than what can be trained: parallel attention or a norm after the block change which kernels
run, not how many weights and multiply-adds there are. Widths that carry a :class:`Beyond` are planned and never built.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Beyond:
    """What a model has beside its :class:`~paceline.job.presets.ModelWidths`.

    Attributes:
        family: ``model_type`` of its ``config.json``.
        needs: what our decoder lacks for it, in words; never empty.
        notes: what was assumed in reading it, or is counted by an estimate; one sentence each.
        norms: over the residual stream, in a layer. norm_vectors: weights and biases of one, each hidden_size long;
            None = as ``norm`` says. final_norms: after the last layer.
        head_norm: numbers that norm the queries and keys: ``""`` (as ``qk_norm`` says), ``"heads"`` (each head its
            own weights), or ``"biased"`` (one head's weights and biases, for all heads).
        sinks: one number a head that takes part in the softmax. value_gate: a matrix that gates attention's output.
        latent_bias: biases on the compressions of latent attention and on its output.
        expert_bias: biases in routed experts and router. shared_gate: one row that gates the shared experts.
        shared_features: width of the shared experts, where it is no multiple of ``moe_intermediate_size``.
        dense_layers: layers without experts that ``first_k_dense_replace`` does not name.
        layer_numbers: single numbers in a layer. more_positions: learned rows beyond ``max_position_embeddings``.
        embedding_norm: the embedding is normed. head_bias: one number for each token of the vocabulary.
        embedding_size: width of the embedding where it is projected to hidden_size; 0 = it is not.
        predicted: layers that predict further tokens (``num_nextn_predict_layers``).
    """

    family: str
    needs: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    norms: int = 2
    norm_vectors: int | None = None
    final_norms: int = 1
    head_norm: str = ""
    sinks: bool = False
    value_gate: bool = False
    latent_bias: bool = False
    expert_bias: bool = False
    shared_gate: bool = False
    shared_features: int = 0
    dense_layers: tuple[int, ...] = ()
    layer_numbers: int = 0
    more_positions: int = 0
    embedding_norm: bool = False
    head_bias: bool = False
    embedding_size: int = 0
    predicted: int = 0

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Beyond:
        """From plain values, as they come out of JSON."""
        plain: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in given.items()}
        return cls(**plain)
