"""The families of decoders that ``make prove`` runs, as job values: small, and uneven where a cut may be uneven.

The vocabulary is that of bytes, 257: no degree divides it. Nine layers make stages of unequal size; eight do not.
"""

from __future__ import annotations

from typing import Any

DENSE: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 40,
    "num_hidden_layers": 9,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 4,
}
MIXTURE: dict[str, Any] = {
    **DENSE,
    "num_hidden_layers": 8,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 12,
    "router_aux_loss_coef": 0.02,
}
SLIDING, FULL = "sliding_attention", "full_attention"
FAMILIES: dict[str, dict[str, Any]] = {
    "dense": DENSE,
    "moe-softmax": {**MIXTURE, "scoring_func": "softmax"},
    "moe-sigmoid": {
        **MIXTURE,
        "scoring_func": "sigmoid",
        "n_shared_experts": 1,
        "first_k_dense_replace": 1,
        "routed_scaling_factor": 1.5,
    },
    "mla": {
        **{k: v for k, v in DENSE.items() if k != "head_dim"},
        "num_hidden_layers": 8,
        "num_key_value_heads": 8,
        "q_lora_rank": 12,
        "kv_lora_rank": 8,
        "qk_rope_head_dim": 4,
        "qk_nope_head_dim": 6,
        "v_head_dim": 5,
    },
    "tied": {**DENSE, "num_key_value_heads": 2, "tie_word_embeddings": True},
    "gpt2": {
        **DENSE,
        "num_hidden_layers": 8,
        "num_key_value_heads": 8,
        "norm": "layernorm",
        "tie_word_embeddings": True,
        "max_position_embeddings": 32,
    },
    "qk-sliding": {
        **DENSE,
        "num_hidden_layers": 9,
        "qk_norm": True,
        "attention_bias": True,
        "sliding_window": 7,
        "layer_types": [SLIDING, SLIDING, FULL],
    },
}

JOB: dict[str, Any] = {
    "data.eval": 0.2,
    "data.tokenizer": "bytes",
    "data.sequence_length": 32,
    "train.steps": 5,
    "train.global_batch_size": 22,
    "train.precision": "fp32",
    "optimizer.lr": 1e-3,
    "restart.hang_timeout": "10min",
}
