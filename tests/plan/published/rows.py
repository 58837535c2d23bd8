"""Rows of a table of runs, for tests."""

from __future__ import annotations

from typing import Any

from paceline.plan.published.runs import Run

BASE: dict[str, Any] = {
    "id": "x-1",
    "source_id": "x",
    "task": "pretrain",
    "model_kind": "dense",
    "model_name": "Llama-3-8B",
    "gpu_type": "H100-SXM-80GB",
    "framework": "torchtitan 0.2",
    "precision": "bf16",
    "arch_extra": "",
    "fsdp_or_zero_stage": "FSDP2",
    "inter_node_link": "",
    "recompute": "none",
    "flash_attention": "",
    "mem_kind": "",
    "quality": "exact",
    "completeness": "A",
    "layers": 32,
    "hidden": 4096,
    "heads": 32,
    "kv_heads": 8,
    "ffn": 14336,
    "vocab": 128256,
    "seq_len": 8192,
    "params_b": 8.03,
    "n_gpus": 64,
    "gpus_per_node": 8,
    "micro_batch": 1,
    "global_batch": 64,
    "step_time_s": 1.3,
}


def row(**changes: Any) -> Run:
    """A run of Llama-3 8B on 64 H100, with some cells changed."""
    return Run(**{**BASE, **changes})
