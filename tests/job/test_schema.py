"""The schema has every key of interface §3, documented, with default and arrival; its import is light."""

from __future__ import annotations

import subprocess
import sys

import pytest

from paceline.job.schema import flatten, groups, leaf_of, leaves, nest, table_names

# Interface §3, row by row. A key after "@" arrives with that capability.
INTERFACE = """
extends
run: name root tags note device scratch@08
model: preset hf python@06 args@06 weights
model: vocab_size hidden_size intermediate_size num_hidden_layers num_attention_heads
model: num_key_value_heads head_dim
model: hidden_act rms_norm_eps rope_theta rope_scaling tie_word_embeddings attention_bias
model: max_position_embeddings
model: norm qk_norm sliding_window layer_types final_logit_softcapping num_experts
model: num_experts_per_tok moe_intermediate_size n_shared_experts first_k_dense_replace
model: scoring_func
model: router_aux_loss_coef q_lora_rank kv_lora_rank qk_rope_head_dim qk_nope_head_dim
model: v_head_dim
model: gated_mlp mlp_bias position_embedding_type attention_output_bias attn_logit_softcapping
model: norm_topk_prob routed_scaling_factor
model: freeze@06
lora: rank@06 alpha@06 dropout@06 targets@06
data: train eval sequence_length tokenizer packing text_field chat_template@06 loss_on@06 bad_row
data: groups@05
data: placement residency
train: steps epochs tokens global_batch_size precision reduce_precision seed deterministic max_time
optimizer: name lr betas eps momentum weight_decay max_grad_norm schedule warmup_steps decay_steps
optimizer: min_lr_ratio
eval: every limit metrics@06
cluster: use hosts devices accelerator memory link.intra link.inter latency.inter usd_per_device_hour
cluster: device_mtbf
layout: use objective deadline budget_usd
update: policy sync_every@07 outer_lr@07 outer_momentum@07 fragments@07 compression
federation: rounds@07 local_epochs@07 local_steps@07 strategy@07 min_sites@07 round_timeout@07
federation: secure_aggregation@07
federation: privacy.epsilon@07 privacy.delta@07 privacy.clip_norm@07 simulate.sites@07
federation: simulate.partition@07
checkpoint: every keep keep_every store memory_copies@04
restart: max hang_timeout compare_replicas elastic
track: to@05 project@05 every
control: *.signal *.above *.below *.for_steps *.action *.owner
claim: metric@05 at_least@05 at_most@05 refuted_below@05 refuted_above@05 decision@05 population@05
claim: if_wrong@05
claim: owner@05 unit@05 baselines@05 target_loss@05 max_loss_increase@05 steps@05 trials@05
claim: confidence@05
claim: conditions.load@05 conditions.start@05
limits: usd@05 device_hours@05 energy_kwh@05 deadline@05 restarts@05 allow@05
rollout: stages@05 every@05 adopt_if@05 stop_if@05 approval@05
launch: setup@08 env@08 slurm.partition@08 slurm.account@08 slurm.qos@08 slurm.time@08
launch: slurm.container@08
launch: slurm.options@08 kubernetes.kind@08 kubernetes.image@08 kubernetes.namespace@08
launch: kubernetes.queue@08
launch: kubernetes.volume@08 torchrun.endpoint@08 ray.address@08 mpi.flavor@08 mpi.hostfile@08
launch: sky.cloud@08
launch: sky.region@08 sky.spot@08
"""
# Defaults as interface §3 states them.
DEFAULTS = {
    "run.root": "runs",
    "data.eval": 0.01,
    "data.sequence_length": 1024,
    "data.tokenizer": "bpe:8192",
    "data.packing": "concat",
    "train.global_batch_size": 32,
    "train.precision": "auto",
    "train.reduce_precision": "fp32",
    "train.seed": 0,
    "optimizer.name": "adamw",
    "optimizer.lr": 3e-4,
    "optimizer.betas": (0.9, 0.95),
    "optimizer.eps": 1e-8,
    "optimizer.weight_decay": 0.1,
    "optimizer.max_grad_norm": 1.0,
    "optimizer.warmup_steps": 0.02,
    "optimizer.decay_steps": 0.2,
    "optimizer.min_lr_ratio": 0.1,
    "eval.limit": 1024,
    "update.sync_every": 500,
    "federation.rounds": 10,
    "checkpoint.keep": 2,
    "restart.max": 3,
    "restart.hang_timeout": 300.0,
    "claim.trials": 5,
    "claim.baselines": ("host", "shortcut"),
}


def interface_keys() -> dict[str, str]:
    """Key → arrival, as written above."""
    keys = {}
    for line in INTERFACE.split("\n"):
        table, mark, names = line.partition(": ")
        for name in names.split() if mark else line.split():
            key, _, arrives = name.partition("@")
            keys[f"{table}.{key}" if mark else key] = arrives
    return keys


def test_the_schema_is_the_interface():
    assert {name: leaf.arrives for name, leaf in leaves().items()} == interface_keys()
    assert "02" not in interface_keys().values()


@pytest.mark.parametrize("name", sorted(interface_keys()))
def test_every_key_says_what_it_is(name):
    leaf = leaves()[name]
    assert leaf.meaning
    assert leaf.form


@pytest.mark.parametrize("name", sorted(DEFAULTS))
def test_defaults_are_those_of_the_interface(name):
    assert leaves()[name].default == DEFAULTS[name]
    assert type(leaves()[name].default) is type(DEFAULTS[name])


def test_intervals_have_the_interface_defaults():
    shown = {name: str(leaves()[name].default) for name in leaves() if leaves()[name].form == "Interval"}
    assert shown["eval.every"] == "10%"
    assert shown["checkpoint.every"] == "15min"
    assert shown["checkpoint.keep_every"] == "never"
    assert shown["track.every"] == "10s"


def test_one_of_groups():
    assert set(groups()["train.steps"]) == {"train.epochs", "train.tokens"}
    assert set(groups()["model.hf"]) == {"model.preset", "model.python"}


def test_names_of_control_rules_are_free():
    assert leaf_of("control.cost_usd.above") is leaves()["control.*.above"]
    assert "cluster.link" in table_names()


def test_flatten_and_nest_are_inverse():
    nested = {
        "train": {"steps": 5},
        "cluster": {"link": {"intra": "5GB"}},
        "data": {"train": {"a": {"path": "x"}}},
    }
    flat = dict(flatten(nested))
    assert flat == {"train.steps": 5, "cluster.link.intra": "5GB", "data.train": {"a": {"path": "x"}}}
    assert nest(flat) == nested
    assert '"train.steps"' in dict(flatten({"train.steps": 5}))  # a quoted key is not a path


IMPORT = """
import time
import pydantic
from pydantic import BaseModel, Field, PlainSerializer, PlainValidator, WithJsonSchema, model_validator
class Warm(BaseModel):
    a: int = 1
began = time.process_time()
import paceline.job
took = time.process_time() - began
import sys
heavy = [m for m in ("torch", "numpy", "tokenizers", "rich", "typer") if m in sys.modules]
print(took, heavy)
"""


def test_import_is_light():
    """No torch, no numpy. Processor time, best of 3, with room for a loaded machine (0.07 s alone)."""
    times = []
    for _ in range(3):
        done = subprocess.run(
            [sys.executable, "-c", IMPORT], capture_output=True, text=True, check=True, timeout=60
        )
        took, _, heavy = done.stdout.strip().partition(" ")
        assert heavy == "[]"
        times.append(float(took))
    assert min(times) < 0.25
