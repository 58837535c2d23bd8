"""Whether a proof finds what is planted (``planted.py``), and says what it is: the tensor, the axis, what it needs.

A faulty rank leads to exit 61; a change that is no fault leaves everything proven. ``make test`` runs a fixed part,
``make prove`` the rest (marker ``proof``).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import paceline as pl
from paceline.api import trials
from tests.flow.corpus import write_job

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

GRADIENT, LOSS, HELD_OUT, NORM = "gradient", "loss", "held-out loss", "gradient norm"
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
        "norms_left_partial", "tp=2", GRADIENT, r".*layernorm\.weight", ("tp",), ("tp=2",), text="sum over tp"
    ),
    Fault("positions_are_local", "cp=2", GRADIENT, ANY, ("cp",), ("cp=2",), forward=True),
    Fault("ends_left_partial", "pp=2", GRADIENT, EMBEDDING, ("pp",), ("pp=2",), text="sum over pp", job=TIED),
    Fault(
        "experts_summed_as_dense", "dp=2,ep=2", GRADIENT, EXPERT, ("ep", ANY), ("dp=2", "ep=2"), job=EXPERTS
    ),
    Fault("decay_of_flat_shards", "fsdp=2", ANY, ANY, ("fsdp",), ("fsdp=2",), step=2, forward=True),
    Fault("hybrid_shards_never_meet", "dp=2,fsdp=2", GRADIENT, ANY, ("dp", ANY), ("dp=2", "fsdp=2")),
    Fault("evaluation_forgets_positions", "cp=2", HELD_OUT, ANY, ("cp",), ("cp=2",), step=0),
]

FAULTS = [
    Fault(
        "repeated_heads_left_partial",
        "tp=4",
        GRADIENT,
        r".*\.[kv]_proj\.weight",
        ("tp",),
        ("tp=4",),
    ),
    Fault("target_at_border_counted_twice", "tp=4", GRADIENT, ANY, ("tp",), ("tp=4",), forward=True),
    # The border of two halves is 129, which no text in ASCII has: nothing that a proof looks at is wrong.
    Fault("target_at_border_counted_twice", "tp=2", GRADIENT, ANY, ("tp",), ("tp=2",), forward=True),
    Fault("lookup_gradient_leaks", "tp=2", GRADIENT, EMBEDDING, ("tp",), ("tp=2",)),
    Fault("counts_of_first_tp_rank", "tp=2", GRADIENT, ROUTER, ("tp",), ("tp=2",), step=2, job=EXPERTS),
    Fault(
        "third_sum_skipped",
        "tp=2",
        GRADIENT,
        r".*norm\.weight",
        ("tp",),
        ("tp=2",),
        step=3,
        text="sum over tp",
    ),
    Fault("late_keys_not_turned", "cp=2", GRADIENT, ANY, ("cp",), ("cp=2",), forward=True),
    Fault("segments_stay_dealt", "cp=2", GRADIENT, ANY, ("cp",), ("cp=2",), forward=True),
    # Documents are longer than all rows that a proof looks at.
    Fault("segments_stay_dealt", "cp=2", GRADIENT, ANY, ("cp",), ("cp=2",), forward=True, job=LONG_DOCUMENTS),
    Fault(
        "heads_repeated_in_turn",
        "cp=4:ulysses",
        GRADIENT,
        ANY,
        ("cp",),
        ("cp=4", "cp_kind=ulysses"),
        forward=True,
    ),
    Fault("last_micro_batch_dropped", "pp=2", GRADIENT, ANY, ("pp",), ("pp=2",), forward=True),
    Fault(
        "twin_left_behind",
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
        "balance_on_the_last_stage_only", "pp=2", GRADIENT, ROUTER, ("pp",), ("pp=2",), step=2, job=EXPERTS
    ),
    Fault("last_norm_frozen", "pp=2", GRADIENT, r"norm\.weight", ("pp",), ("pp=2",)),
    Fault("experts_left_partial", "dp=4,ep=2", GRADIENT, EXPERT, ("ep", ANY), ("dp=4", "ep=2"), job=EXPERTS),
    Fault(
        "idle_expert_unwritten",
        "dp=2,ep=2",
        GRADIENT,
        EXPERT,
        ("ep", ANY),
        ("dp=2", "ep=2"),
        job=MANY_EXPERTS,
        shrink="off",
    ),
    Fault(
        "expert_shards_averaged",
        "fsdp=4,ep=2",
        GRADIENT,
        EXPERT,
        ("ep", ANY),
        ("fsdp=4", "ep=2"),
        job=EXPERTS,
    ),
    Fault("mean_of_local_means", "dp=4", GRADIENT, ANY, ("dp",), ("dp=4",)),
    Fault("middle_micro_batches_lost", "tp=2", GRADIENT, ANY, ("tp",), ("tp=2",)),
    Fault("one_replica_drifts", "dp=2", ANY, r"norm\.weight.*", ("dp",), ("dp=2",), step=2, forward=True),
    Fault("sums_in_bfloat16", "dp=2", GRADIENT, ANY, ("dp",), ("dp=2",), leg="both"),
    Fault("replicas_of_a_stage_averaged", "dp=2,pp=2", GRADIENT, ANY, ("dp", ANY), ("dp=2", "pp=2")),
    Fault(
        "context_not_summed_beside_tp",
        "tp=2,cp=2",
        GRADIENT,
        r".*norm\.weight",
        ("cp",),
        ("cp=2", "tp=2"),
        text="sum over cp",
    ),
    Fault("norm_of_shards_forgets_tp", "fsdp=2,tp=2", NORM, ANY, ("tp", ANY), ("fsdp=2", "tp=2")),
    Fault("filled_as_if_uncut", "fsdp=2,tp=2", ANY, ANY, ("tp", ANY), ("fsdp=2", "tp=2"), forward=True),
    Fault("shards_averaged_over_context", "fsdp=2,cp=2", GRADIENT, ANY, ("cp", ANY), ("fsdp=2", "cp=2")),
    Fault("loss_of_every_tp_rank", "tp=2,pp=2", LOSS, ANY, ("tp", ANY), ("tp=2", "pp=2"), step=0),
    Fault(
        "load_of_a_stage_not_summed",
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
    ("small_messages", "dp=2,tp=2", {}, "both"),
    ("shards_reduced_once", "fsdp=2,pp=2", {}, "fp64"),
    ("counts_twice_of_all", "dp=2,tp=2", EXPERTS, "fp64"),
    ("attention_by_hand", "cp=2", {}, "both"),
]

ALONE = [
    ("replicas_of_a_stage_averaged", "dp=2", {}),
    ("replicas_of_a_stage_averaged", "pp=2", {}),
    ("repeated_heads_left_partial", "tp=2", {}),
]
"""Less than a fault needs: the same fault is planted, and nothing is wrong."""


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A job whose rows have several documents each, and targets at the border of a vocabulary cut in four.

    257 bytes over four ranks: the second's first row is 65, "A". In ``long`` a row is a part of one document.
    """
    folder = tmp_path_factory.mktemp("planted")
    path = write_job(folder)
    long = folder / "long"
    long.mkdir()
    for file in sorted((folder / "corpus").glob("*.txt")):
        text = file.read_text(encoding="utf-8").replace("times", "A")
        (long / file.name).write_text(text, encoding="utf-8")
        file.unlink()
        for number, line in enumerate(text.splitlines()[:40]):
            file.with_name(f"{file.stem}-{number:02d}.txt").write_text(f"{line}\n", encoding="utf-8")
    return path


def name_of(fault: Fault) -> str:
    return f"{fault.planted} {fault.layout}{' long' if fault.job is LONG_DOCUMENTS else ''}"


@pytest.mark.parametrize("fault", IN_TESTS, ids=name_of)
def test_it_is_found_and_named(job: Path, monkeypatch: pytest.MonkeyPatch, fault: Fault) -> None:
    monkeypatch.setattr(trials, "ENTRY", f"tests.prove.planted:{fault.planted}")
    changes = {**PATIENT, **fault.job}
    if "data.train" in changes:
        changes["data.train"] = str(job.parent / changes["data.train"])
    proof = pl.prove(job, fault.layout, leg=fault.leg, shrink=fault.shrink, set=changes)
    assert not proof.proven, "nobody has noticed"
    assert proof.exit_code == 61
    first = proof.first_difference
    assert first is not None
    said = f"{first.to_dict()}"
    assert set(first.together) == set(fault.needs), said
    assert first.axis in fault.axis, said
    assert first.what.startswith(fault.what), said
    assert re.fullmatch(fault.name or ".*", first.name), said
    assert first.step == fault.step, said
    assert re.search(fault.text, first.text), said
    assert fault.forward or "the forward does" not in first.text, said


@pytest.mark.proof
@pytest.mark.parametrize("fault", FAULTS, ids=name_of)
def test_the_rest_is_found_and_named(job: Path, monkeypatch: pytest.MonkeyPatch, fault: Fault) -> None:
    test_it_is_found_and_named(job, monkeypatch, fault)


@pytest.mark.proof
@pytest.mark.parametrize(("planted", "layout", "changes"), ALONE)
def test_less_than_a_fault_needs_is_proven(
    job: Path, monkeypatch: pytest.MonkeyPatch, planted: str, layout: str, changes: dict[str, Any]
) -> None:
    monkeypatch.setattr(trials, "ENTRY", f"tests.prove.planted:{planted}")
    proof = pl.prove(job, layout, leg="fp64", set={**PATIENT, **changes})
    assert proof.proven, proof.first_difference


def harmless(
    job: Path, monkeypatch: pytest.MonkeyPatch, planted: str, layout: str, changes: dict[str, Any], leg: str
) -> None:
    monkeypatch.setattr(trials, "ENTRY", f"tests.prove.planted:{planted}")
    proof = pl.prove(job, layout, leg=leg, set={**PATIENT, **changes})
    assert proof.proven, proof.first_difference
    assert proof.exit_code == 0


def test_another_order_of_sums_is_no_fault(job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    harmless(job, monkeypatch, *HARMLESS[0])


@pytest.mark.proof
@pytest.mark.parametrize(("planted", "layout", "changes", "leg"), HARMLESS[1:])
def test_what_is_no_fault_is_proven(
    job: Path, monkeypatch: pytest.MonkeyPatch, planted: str, layout: str, changes: dict[str, Any], leg: str
) -> None:
    harmless(job, monkeypatch, planted, layout, changes, leg)
