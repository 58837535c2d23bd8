"""Steps whose memory the planner's formulas and the dry run of the real code are compared on: models × layouts.

Widths are small, and depths such that a stage of a pipeline has more than one layer: what the formulas say is linear
in both. What differs between the cases is what is cut, kept, gathered, and in which order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from paceline.job import Job
from paceline.job.presets import ModelWidths
from paceline.plan.cost.terms import OPTIMIZER_STATES, Work, micro_batches
from paceline.plan.layout import Layout

_BASE: dict[str, Any] = {
    "vocab_size": 4096,
    "hidden_size": 512,
    "intermediate_size": 1408,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 64,
}
_EXPERTS: dict[str, Any] = {
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 256,
    "router_aux_loss_coef": 0.01,
}
_LATENT: dict[str, Any] = {
    "num_key_value_heads": 8,
    "head_dim": 64,
    "q_lora_rank": 192,
    "kv_lora_rank": 128,
    "qk_rope_head_dim": 32,
    "qk_nope_head_dim": 32,
    "v_head_dim": 64,
}
_GPT2: dict[str, Any] = {
    "num_key_value_heads": 8,
    "intermediate_size": 2048,
    "norm": "layernorm",
    "hidden_act": "gelu_new",
    "gated_mlp": False,
    "mlp_bias": True,
    "attention_bias": True,
    "attention_output_bias": True,
    "position_embedding_type": "absolute",
    "max_position_embeddings": 1024,
    "tie_word_embeddings": True,
}

MODELS: dict[str, dict[str, Any]] = {
    "dense": {},
    "deep": {"num_hidden_layers": 8},
    "uneven": {"num_hidden_layers": 5},
    "tied": {"tie_word_embeddings": True},
    "sliding": {"sliding_window": 128, "layer_types": ("sliding_attention", "full_attention") * 2},
    "qk-norm": {"qk_norm": True},
    "wide": {"vocab_size": 65536, "num_hidden_layers": 2},
    "gpt2": _GPT2,
    "latent": _LATENT,
    "moe": _EXPERTS,
    "moe-deep": {**_EXPERTS, "num_hidden_layers": 8},
    "moe-shared": {**_EXPERTS, "n_shared_experts": 1, "first_k_dense_replace": 1},
    "moe-latent": {**_LATENT, **_EXPERTS, "n_shared_experts": 1, "first_k_dense_replace": 1},
}
"""Changes to the widths of one small decoder with grouped queries."""


@dataclass(frozen=True)
class Case:
    """One step. ``micros``: micro-batches of it; all rows are full."""

    layout: str
    model: str = "dense"
    precision: str = "fp32"
    micros: int = 2
    length: int = 512
    optimizer: str = "adamw"

    @property
    def asked(self) -> Layout:
        return Layout.parse(self.layout)

    @property
    def widths(self) -> ModelWidths:
        return ModelWidths(**{**_BASE, **MODELS[self.model]})

    @property
    def global_batch(self) -> int:
        return self.micros * self.asked.data_degree * (self.asked.mbs or 1)

    @property
    def job(self) -> Job:
        """Seeds and data play no part: tensors of a dry run have no values."""
        return Job(model="tiny", data={"train": "none"}).replace(
            {
                "data.sequence_length": self.length,
                "train.global_batch_size": self.global_batch,
                "train.seed": 7,
                "optimizer.name": self.optimizer,
            }
        )

    @property
    def work(self) -> Work:
        states = OPTIMIZER_STATES[self.optimizer]
        return Work(self.widths, self.length, self.global_batch, self.precision, optimizer_states=states)

    @property
    def shape(self) -> tuple[int, int]:
        """Rows of a micro-batch, and how many micro-batches."""
        rows, count = micro_batches(self.asked, self.global_batch)
        return int(rows), int(count)

    def __str__(self) -> str:
        more = f" {self.length}" * (self.length != 512) + f" {self.optimizer}" * (self.optimizer != "adamw")
        return f"{self.model} {self.precision} {self.layout} ×{self.micros}{more}"


DENSE = (
    Case("single,mbs=2"),
    Case("single,mbs=4", precision="bf16"),
    Case("single,mbs=2", micros=1),
    Case("single,mbs=1", length=2048, precision="bf16"),
    Case("single,mbs=2", optimizer="sgd"),
    Case("single,mbs=2,recompute=full"),
    Case("single,mbs=2,recompute=full", precision="bf16"),
    Case("single,mbs=2,recompute=selective"),
    Case("dp=2,mbs=2"),
    Case("dp=2,mbs=2", precision="bf16"),
    Case("fsdp=2,mbs=2"),
    Case("fsdp=4,mbs=1", precision="bf16"),
    Case("fsdp=2,mbs=2", micros=1),
    Case("fsdp=2,mbs=1", length=128),
    Case("dp=2,fsdp=2,mbs=1"),
    Case("fsdp=2:zero2,mbs=2", precision="bf16"),
    Case("fsdp=2:zero1,mbs=2", micros=4),
    Case("fsdp=2,mbs=2,recompute=full", precision="bf16"),
    Case("tp=2,mbs=2"),
    Case("fsdp=2,tp=2,mbs=2", precision="bf16"),
    Case("fsdp=2,tp=2,recompute=full,mbs=2"),
    Case("cp=2,mbs=2"),
    Case("cp=2:ulysses,mbs=2", precision="bf16"),
    Case("fsdp=2,cp=2,mbs=2"),
    Case("pp=2,mbs=1", micros=4),
    Case("pp=2,mbs=2", micros=4, precision="bf16"),
    Case("pp=2,mbs=1", "uneven", micros=4),
    Case("pp=2:gpipe,mbs=2", micros=4),
    Case("pp=2:interleaved,mbs=1", "deep", micros=4),
    Case("pp=2:interleaved,vpp=4,mbs=1", "deep", micros=4, precision="bf16"),
    Case("pp=2:zbv,mbs=1", "deep", micros=4),
    Case("pp=2:zbv,mbs=1", "deep", micros=4, precision="bf16"),
    Case("pp=2:dualpipev,mbs=1", "deep", micros=8),
    Case("pp=2:zero-bubble,mbs=1", "deep", micros=4),
    Case("pp=4,mbs=1", "deep", micros=8),
    Case("fsdp=2:zero2,pp=2,mbs=1", micros=4),
    Case("fsdp=2,pp=2,mbs=1", micros=4, precision="bf16"),
    Case("tp=2,pp=2,mbs=1", micros=4),
    Case("single,mbs=2", "tied"),
    Case("pp=2,mbs=1", "tied", micros=4),
    Case("single,mbs=2", "sliding"),
    Case("fsdp=2,mbs=2", "qk-norm", "bf16"),
    Case("single,mbs=2", "wide"),
    Case("single,mbs=2,recompute=full", "wide", "bf16"),
    Case("fsdp=2,mbs=2", "wide", "bf16"),
    Case("tp=2,mbs=2", "wide", "bf16"),
    Case("pp=2,mbs=1", "wide", "bf16", micros=4),
    Case("single,mbs=2", "gpt2"),
    Case("fsdp=2,tp=2,mbs=2", "gpt2", "bf16"),
    Case("single,mbs=2", "latent"),
    Case("fsdp=2,tp=2,mbs=2", "latent", "bf16"),
)

MIXTURES = (
    Case("single,mbs=2", "moe"),
    Case("single,mbs=2", "moe", "bf16"),
    Case("single,mbs=2,recompute=full", "moe", "bf16"),
    Case("dp=2,mbs=2", "moe", "bf16"),
    Case("fsdp=2,mbs=2", "moe"),
    Case("fsdp=2,mbs=2", "moe-shared", "bf16"),
    Case("dp=2,ep=2,mbs=2", "moe", "bf16"),
    Case("fsdp=2,ep=2,mbs=2", "moe"),
    Case("fsdp=2,ep=2,mbs=2", "moe", "bf16"),
    Case("fsdp=4,ep=4,mbs=1", "moe", "bf16"),
    Case("fsdp=4,ep=2,mbs=1", "moe", "bf16"),
    Case("fsdp=2:zero2,ep=2,mbs=2", "moe", "bf16"),
    Case("tp=2,mbs=2", "moe", "bf16"),
    Case("tp=2,ep=2,mbs=2", "moe"),
    Case("tp=2,ep=2,mbs=2", "moe", "bf16"),
    Case("fsdp=2,tp=2,ep=4,mbs=2", "moe-shared", "bf16"),
    Case("fsdp=2,tp=2,ep=2,etp=2,mbs=2", "moe", "bf16"),
    Case("pp=2,mbs=1", "moe", "bf16", micros=4),
    Case("fsdp=2,ep=2,pp=2,mbs=1", "moe-deep", "bf16", micros=4),
    Case("dp=2,ep=2,pp=2,mbs=1", "moe-shared", micros=4),
    Case("fsdp=2,cp=2,ep=2,mbs=2", "moe", "bf16"),
    Case("single,mbs=2", "moe-latent", "bf16"),
    Case("fsdp=2,ep=2,mbs=2", "moe-latent"),
    Case("fsdp=2,ep=2,mbs=2", "moe-shared", "bf16", length=2048),
)

CASES = DENSE + MIXTURES
