"""``[optimizer]``: how a gradient becomes a change of the weights."""

from __future__ import annotations

from typing import Literal

from paceline.job.tables.table import Table, key
from paceline.job.tables.types import Betas, StepsOrFraction


class OptimizerTable(Table):
    """AdamW or SGD, clipping, and the schedule of the learning rate."""

    name: Literal["adamw", "sgd", "muon", "adafactor", "adamw8bit"] = key(
        "adamw", "which optimizer", later={"muon": "06", "adafactor": "06", "adamw8bit": "06"}
    )
    lr: float = key(
        3e-4, "peak learning rate", form="float", shown="random 3e-4, pretrained 2e-5, LoRA 2e-4", gt=0
    )
    betas: Betas = key((0.9, 0.95), "decay of AdamW's two averages", form="list of 2 floats")
    eps: float = key(1e-8, "AdamW's floor of the denominator", form="float", gt=0)
    momentum: float = key(0.9, "momentum of SGD", form="float", ge=0, lt=1)
    weight_decay: float = key(0.1, "decay, on matrices only", form="float", ge=0)
    max_grad_norm: float = key(
        1.0,
        "global norm above which gradients are scaled down, each parameter once; 0 = off",
        form="float",
        ge=0,
    )
    schedule: Literal["cosine", "linear", "wsd", "constant"] = key("cosine", "course of the learning rate")
    warmup_steps: StepsOrFraction = key(
        0.02, "steps, or fraction of the run, of linear warm-up", form="int or fraction < 1", unit="steps"
    )
    decay_steps: StepsOrFraction = key(
        0.2, "steps, or fraction of the run, of the decay (wsd)", form="int or fraction < 1", unit="steps"
    )
    min_lr_ratio: float = key(0.1, "last learning rate over its peak", form="float", ge=0, le=1)
