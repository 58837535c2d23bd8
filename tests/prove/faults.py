"""What is planted where, and what a proof must say of it; see ``planted/`` for the faults themselves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

PATIENT = {"restart.hang_timeout": "10min"}
TIED = {"model.tie_word_embeddings": True}
DEEP_AND_TIED = {**TIED, "model.num_hidden_layers": 4}
EXPERTS = {
    "model.num_experts": 4,
    "model.num_experts_per_tok": 2,
    "model.moe_intermediate_size": 24,
    "model.router_aux_loss_coef": 0.02,
}
MANY_EXPERTS = {**EXPERTS, "model.num_experts": 32, "model.num_experts_per_tok": 1}
LONG_DOCUMENTS = {"data.train": "long/*.txt"}

GRADIENT, VALUE, INITIAL = "gradient", "value", "initial value"
LOSS, HELD_OUT, NORM = "loss", "held-out loss", "gradient norm"
ANY = ""


@dataclass(frozen=True)
class Fault:
    """What is planted and where, and what the proof must say of it.

    Attributes:
        what: of the first difference, or how it begins. name: a pattern of the tensor's.
        axis: words that are right; "" where it takes several axes and none is named.
        needs: ``together``, in any order.
        step: of the first difference. forward: whether the forward of that step is wrong; where not, the text must
            not say so. text: a pattern that it has.
    """

    planted: str
    layout: str
    what: str
    name: str
    axis: tuple[str, ...]
    needs: tuple[str, ...]
    step: int = 1
    forward: bool = False
    text: str = ANY
    job: Mapping[str, Any] = field(default_factory=dict)
    leg: str = "fp64"
    shrink: str = "auto"


ROUTER = r"layers\.\d\.mlp\.gate\.weight"
EMBEDDING = r"embed_tokens\.weight"
EXPERT = r"layers\.\d\.mlp\.experts\.\w+"

IN_TESTS = [
    Fault(
        "tp:norms_left_partial",
        "tp=2",
        GRADIENT,
        r".*layernorm\.weight",
        ("tp",),
        ("tp=2",),
        text="sum over tp",
    ),
    Fault("cp:positions_are_local", "cp=2", GRADIENT, ANY, ("cp",), ("cp=2",), forward=True),
    Fault(
        "pipeline:ends_left_partial",
        "pp=2",
        GRADIENT,
        EMBEDDING,
        ("pp",),
        ("pp=2",),
        text="sum over pp",
        job=TIED,
    ),
    Fault(
        "experts:experts_summed_as_dense",
        "dp=2,ep=2",
        GRADIENT,
        EXPERT,
        ("ep",),
        ("dp=2", "ep=2"),
        job=EXPERTS,
    ),
    Fault(
        "data:decay_of_flat_shards", "fsdp=2", VALUE, ANY, ("fsdp",), ("fsdp=2",), text="the update is not"
    ),
    Fault("meeting:hybrid_shards_never_meet", "dp=2,fsdp=2", GRADIENT, ANY, ("dp", ANY), ("dp=2", "fsdp=2")),
    Fault("cp:evaluation_forgets_positions", "cp=2", HELD_OUT, ANY, ("cp",), ("cp=2",), step=0),
]

FAULTS = [
    Fault(
        "tp:repeated_heads_left_partial",
        "tp=4",
        GRADIENT,
        r".*\.[kv]_proj\.weight",
        ("tp",),
        ("tp=4",),
        text=r"sum over tp \(2 of 4 ranks\) is missing; a key/value head is repeated over 2 tp ranks",
    ),
    Fault("tp:target_at_border_counted_twice", "tp=4", GRADIENT, ANY, ("tp",), ("tp=4",), forward=True),
    # The border of two halves is 129, which no text in ASCII has.
    Fault("tp:target_at_border_counted_twice", "tp=2", GRADIENT, ANY, ("tp",), ("tp=2",), forward=True),
    Fault("tp:last_row_of_a_shard_lost", "tp=2", GRADIENT, ANY, ("tp",), ("tp=2",), forward=True),
    Fault("tp:lookup_gradient_leaks", "tp=2", GRADIENT, EMBEDDING, ("tp",), ("tp=2",)),
    Fault("tp:counts_of_first_tp_rank", "tp=2", GRADIENT, ROUTER, ("tp",), ("tp=2",), step=2, job=EXPERTS),
    Fault(
        "data:third_sum_skipped",
        "tp=2",
        GRADIENT,
        r".*norm\.weight",
        ("tp",),
        ("tp=2",),
        step=3,
        text="sum over tp",
    ),
    Fault("cp:late_keys_not_turned", "cp=2", GRADIENT, ANY, ("cp",), ("cp=2",), forward=True),
    Fault("cp:segments_stay_dealt", "cp=2", GRADIENT, ANY, ("cp",), ("cp=2",), forward=True),
    # Documents are longer than all rows that the first steps have.
    Fault(
        "cp:segments_stay_dealt", "cp=2", GRADIENT, ANY, ("cp",), ("cp=2",), forward=True, job=LONG_DOCUMENTS
    ),
    Fault(
        "cp:border_at_an_edge_unseen",
        "cp=2",
        GRADIENT,
        ANY,
        ("cp",),
        ("cp=2",),
        forward=True,
        job=LONG_DOCUMENTS,
    ),
    Fault(
        "cp:heads_repeated_in_turn",
        "cp=4:ulysses",
        GRADIENT,
        ANY,
        ("cp",),
        ("cp=4", "cp_kind=ulysses"),
        forward=True,
    ),
    Fault("pipeline:last_micro_batch_dropped", "pp=2", GRADIENT, ANY, ("pp",), ("pp=2",), forward=True),
    Fault(
        "pipeline:twin_left_behind",
        "pp=2:zbv",
        GRADIENT,
        ANY,
        ("pp",),
        ("pp=2", "schedule=zbv"),
        step=2,
        forward=True,
        job=DEEP_AND_TIED,
    ),
    Fault(
        "pipeline:balance_on_the_last_stage_only",
        "pp=2",
        GRADIENT,
        ROUTER,
        ("pp",),
        ("pp=2",),
        step=2,
        job=EXPERTS,
    ),
    Fault("pipeline:last_norm_frozen", "pp=2", GRADIENT, r"norm\.weight", ("pp",), ("pp=2",)),
    Fault(
        "experts:experts_left_partial",
        "dp=4,ep=2",
        GRADIENT,
        EXPERT,
        ("ep",),
        ("dp=4", "ep=2"),
        job=EXPERTS,
    ),
    Fault(
        "experts:idle_expert_unwritten",
        "dp=2,ep=2",
        GRADIENT,
        EXPERT,
        ("ep",),
        ("dp=2", "ep=2"),
        job=MANY_EXPERTS,
        shrink="off",
    ),
    Fault(
        "experts:expert_shards_averaged",
        "fsdp=4,ep=2",
        GRADIENT,
        EXPERT,
        ("ep",),
        ("fsdp=4", "ep=2"),
        job=EXPERTS,
    ),
    Fault("data:mean_of_local_means", "dp=4", GRADIENT, ANY, ("dp",), ("dp=4",)),
    Fault("data:middle_micro_batches_lost", "tp=2", GRADIENT, ANY, ("tp",), ("tp=2",)),
    Fault(
        "data:one_replica_drifts",
        "dp=2",
        VALUE,
        r"norm\.weight",
        ("dp",),
        ("dp=2",),
        text=r"ratio 1\+1\.0e-07 on rank 1 \(dp=1\)$",
    ),
    Fault("data:sums_in_bfloat16", "dp=2", GRADIENT, ANY, ("dp",), ("dp=2",), leg="both"),
    Fault("meeting:replicas_of_a_stage_averaged", "dp=2,pp=2", GRADIENT, ANY, ("dp", ANY), ("dp=2", "pp=2")),
    Fault(
        "meeting:context_not_summed_beside_tp",
        "tp=2,cp=2",
        GRADIENT,
        r".*norm\.weight",
        ("cp",),
        ("cp=2", "tp=2"),
        text="sum over cp",
    ),
    Fault("meeting:norm_of_shards_forgets_tp", "fsdp=2,tp=2", NORM, ANY, ("tp", ANY), ("fsdp=2", "tp=2")),
    Fault("meeting:filled_as_if_uncut", "fsdp=2,tp=2", INITIAL, ANY, ("tp", ANY), ("fsdp=2", "tp=2"), step=0),
    Fault(
        "meeting:shards_averaged_over_context", "fsdp=2,cp=2", GRADIENT, ANY, ("cp", ANY), ("fsdp=2", "cp=2")
    ),
    Fault("meeting:loss_of_every_tp_rank", "tp=2,pp=2", LOSS, ANY, ("tp", ANY), ("tp=2", "pp=2"), step=0),
    Fault(
        "meeting:load_of_a_stage_not_summed",
        "dp=2,pp=2",
        GRADIENT,
        ROUTER,
        ("dp", ANY),
        ("dp=2", "pp=2"),
        step=2,
        job=EXPERTS,
    ),
]

HARMLESS = [
    ("harmless:small_messages", "dp=2,tp=2", {}, "both"),
    ("harmless:shards_reduced_once", "fsdp=2,pp=2", {}, "fp64"),
    ("harmless:counts_twice_of_all", "dp=2,tp=2", EXPERTS, "fp64"),
    ("harmless:attention_by_hand", "cp=2", {}, "both"),
]

ALONE = [
    ("meeting:replicas_of_a_stage_averaged", "dp=2", {}),
    ("meeting:replicas_of_a_stage_averaged", "pp=2", {}),
    ("tp:repeated_heads_left_partial", "tp=2", {}),
]
"""Less than a fault needs: the same fault is planted, and nothing is wrong."""
