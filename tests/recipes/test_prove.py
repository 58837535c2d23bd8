"""A proof sees what is wrong, names it, and says nothing where nothing is: faults planted on the data axes."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from paceline.compute.data.prepare import prepare
from paceline.compute.data.spec import DataSpec
from paceline.evidence.cause import Difference, first_difference
from paceline.evidence.parity import LIMIT, Judged, judge, judge_own
from paceline.ledger.atomic import read_json
from paceline.plan.layout import Layout
from paceline.recipes.case import Case
from paceline.recipes.prove import poisoned
from tests.flow.corpus import write_corpus
from tests.pool import RankPool
from tests.recipes.prove_cases import run_on_ranks
from tests.tiny import tiny_job, tiny_widths

ENTRY = "tests.recipes.prove_cases:run_on_ranks"
SINGLE = "single"


class Desk:
    """A corpus, prepared, and the reference of one device."""

    def __init__(self, folder: Path) -> None:
        corpus = write_corpus(folder / "corpus")
        self.folder = folder
        self.job = tiny_job(
            data__train=str(corpus / "*.txt"),
            data__eval=0.2,
            data__tokenizer="bytes",
            data__packing="masked",
            train__global_batch_size=7,
            optimizer__max_grad_norm=0.1,
        )
        self.prepared = prepare(DataSpec.from_job(self.job), folder / "data", workers=1).folder
        self.widths = tiny_widths(vocab_size=257, num_hidden_layers=2)

    def case(
        self, layout: str, leg: str = "fp64", *, write: bool = False, precision: str = "fp64"
    ) -> dict[str, Any]:
        """As ``Case`` in JSON."""
        folder = str(self.folder / ("truth" if leg == "fp64" else "still"))
        return {
            "name": layout,
            "job": self.job.to_dict(),
            "widths": self.widths.to_dict(),
            "layout": layout,
            "prepared": str(self.prepared),
            "precision": precision,
            "rates": [1e-3, 2e-3, 3e-3] if leg == "fp64" else [0.0, 0.0, 0.0],
            "held_out": 5 if leg == "fp64" else 0,
            "leg": leg,
            "write": folder if write else "",
            "against": "" if write else folder,
        }


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Desk:
    made = Desk(tmp_path_factory.mktemp("prove"))
    run_on_ranks(None, case=made.case(SINGLE, write=True))
    return made


Prove = Callable[..., tuple[Judged, Difference | None]]


@pytest.fixture
def proved(ranks: RankPool, desk: Desk) -> Prove:
    def run(layout: str, fault: str = "", needs: tuple[str, ...] = ()) -> tuple[Judged, Difference | None]:
        parsed = Layout.parse(layout)
        reports = ranks(parsed.world_size).run(ENTRY, timeout_s=120, case=desk.case(layout), fault=fault)
        judged = judge(read_json(desk.folder / "truth" / "reference.json"), reports, parsed)
        return judged, first_difference(judged, parsed, needs)

    return run


@pytest.mark.parametrize(
    "layout", ["dp=2,mbs=2", "fsdp=3,mbs=1", "fsdp=2:zero1,mbs=2", "dp=2,fsdp=2:zero2,mbs=1"]
)
def test_no_false_alarm(proved: Prove, layout: str) -> None:
    judged, first = proved(layout)
    assert judged.equal, [row for row in judged.rows if not row.equal]
    assert first is None
    assert [row.what for row in judged.rows] == [
        "loss", "gradients, 21 parameters", "gradient norm (clipping)", "optimizer state", "parameters after 3 steps",
        "held-out loss",
    ]  # fmt: skip
    assert all(row.error < LIMIT / 100 for row in judged.rows), "far from the limit, or the limit is not one"


def test_one_device_against_itself_has_the_same_bits(desk: Desk) -> None:
    report = run_on_ranks(None, case=desk.case(SINGLE))
    judged = judge(read_json(desk.folder / "truth" / "reference.json"), [report], Layout())
    assert judged.equal
    assert {row.error for row in judged.rows} == {0.0}


def test_clipping_was_active(desk: Desk) -> None:
    norms = read_json(desk.folder / "truth" / "reference.json")["norms"]
    assert min(norms) > desk.job.optimizer.max_grad_norm


@pytest.mark.parametrize(
    ("layout", "fault", "name", "says", "axis"),
    [
        (
            "dp=2,mbs=2",
            "one_rank_scales",
            "layers.1.mlp.up_proj.weight",
            "ratio 2.000 on rank 1 (dp=1)",
            "dp",
        ),
        (
            "fsdp=2,mbs=2",
            "one_rank_scales",
            "layers.1.mlp.up_proj.weight",
            "ratio 2.000 on rank 1 (fsdp=1)",
            "fsdp",
        ),
        ("dp=2,mbs=2", "no_dp_sum", "", "a sum over dp (2 ranks) is missing", "dp"),
        (
            "dp=2,mbs=2",
            "mean_over_ranks",
            "",
            "ratio 0.500 everywhere: a sum over dp (2 ranks) is missing",
            "dp",
        ),
        (
            "fsdp=3,mbs=1",
            "mean_over_ranks",
            "",
            "ratio 0.333 everywhere: a sum over fsdp (3 ranks) is missing",
            "fsdp",
        ),
        ("fsdp=2,mbs=2", "local_mean_loss", "", "error ", "fsdp"),
        ("dp=2,mbs=2", "last_micro_batch_dropped", "", "the loss differs too", "dp"),
        (
            "fsdp=2,mbs=2",
            "unwritten_memory",
            "layers.0.self_attn.o_proj.weight",
            "values are not finite on",
            "fsdp",
        ),
    ],
)
def test_a_planted_fault_is_caught_and_named(
    proved: Prove, layout: str, fault: str, name: str, says: str, axis: str
) -> None:
    judged, first = proved(layout, fault)
    assert first is not None
    assert not judged.equal
    assert (first.what, first.step) == ("gradient", 1)
    assert not name or first.name == name
    assert says in first.text
    assert first.axis == axis
    if name and "not finite" not in says:
        row = next(row for row in judged.rows if row.what.startswith("gradients"))
        assert row.differ < row.of, "only what is wrong is blamed"


def test_a_wrong_norm_is_a_wrong_norm_and_no_wrong_gradient(proved: Prove) -> None:
    judged, _ = proved("dp=2,mbs=2", "norm_counts_replicas")
    wrong = {row.what for row in judged.rows if not row.equal}
    assert "gradient norm (clipping)" in wrong
    gradients = [f for f in judged.differing if f.kind == "gradient-1"]
    assert gradients == []
    norm = next(row for row in judged.rows if row.what.startswith("gradient norm"))
    assert norm.error == pytest.approx(math.sqrt(2) - 1, rel=1e-6)


def test_a_replica_that_drifts_is_named_with_its_rank(proved: Prove) -> None:
    """The gradients of the first two steps are equal, and so is rank 0: every replica is looked at."""
    judged, first = proved("dp=2,mbs=2", "state_drifts")
    assert first is not None
    assert not any(f.kind in ("gradient-1", "gradient-2") for f in judged.differing)
    moment = next(f for f in judged.differing if f.name == "optimizer/norm.weight/exp_avg")
    assert moment.rank == 1


@pytest.mark.parametrize("layout", ["dp=2,mbs=2", "fsdp=2:zero2,mbs=1"])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_the_jobs_own_precision_is_held_to_one_devices_error(
    ranks: RankPool, desk: Desk, layout: str, precision: str
) -> None:
    run_on_ranks(None, case=desk.case(SINGLE, "job", write=True))
    index = read_json(desk.folder / "still" / "reference.json")
    alone = [run_on_ranks(None, case=desk.case(SINGLE, "job", precision=precision))]
    for fault in ("", "mean_over_ranks"):
        case = desk.case(layout, "job", precision=precision)
        reports = ranks(2).run(ENTRY, timeout_s=120, case=case, fault=fault)
        judged = judge_own(index, alone, reports, precision)
        assert judged.equal == (fault == ""), [row for row in judged.rows if not row.equal]


@pytest.mark.parametrize("layout", ["tp=2,cp=2,mbs=3", "fsdp=2,ep=2,mbs=1,recompute=full", "pp=2,mbs=2"])
def test_routing_is_replayed_in_the_jobs_own_precision(
    ranks: RankPool, desk: Desk, monkeypatch: pytest.MonkeyPatch, layout: str
) -> None:
    """bf16 flips near-ties; with the truth's choices each rank's error is one of rounding, cut as the layout cuts."""
    experts = {
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 16,
        "router_aux_loss_coef": 0.01,
    }
    monkeypatch.setattr(desk, "widths", tiny_widths(vocab_size=257, num_hidden_layers=2, **experts))
    monkeypatch.setattr(desk, "folder", desk.folder / "experts")
    run_on_ranks(None, case=desk.case(SINGLE, "job", write=True))
    assert (desk.folder / "still" / "routing.safetensors").exists()
    index = read_json(desk.folder / "still" / "reference.json")
    alone = [run_on_ranks(None, case=desk.case(SINGLE, "job", precision="bf16"))]
    case, size = desk.case(layout, "job", precision="bf16"), Layout.parse(layout).world_size
    judged = judge_own(index, alone, ranks(size).run(ENTRY, timeout_s=120, case=case), "bf16")
    assert judged.equal, [row for row in judged.rows if not row.equal]


def test_poison_reaches_fresh_memory_and_ends_with_the_case() -> None:
    with poisoned():
        assert torch.empty(3).isnan().all()
    assert not torch.are_deterministic_algorithms_enabled()


def test_a_case_is_the_same_after_json(desk: Desk) -> None:
    values = desk.case("dp=2,mbs=2")
    assert Case.read(values).layout == "dp=2,mbs=2"
    assert Case.read(values).world_size == 2
