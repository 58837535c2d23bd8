"""The decision device → host → cluster, its limits, its rejections, and what it says about itself."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from paceline.ledger.outcome import Exit, Refused
from paceline.plan.answer import Plan
from paceline.plan.layout import Layout
from paceline.plan.measured import Measured
from paceline.plan.show import summary, table
from tests.plan.answers import LLAMA, TINY, ask, job, machine, measurement


def test_one_device_is_kept_when_ranks_only_share_it() -> None:
    found = ask(measured=measurement(link=2e8, shared=32e9))
    assert found.layout.world_size == 1
    assert not found.distribute
    assert found.best.scope == "device"
    assert "one device" in found.reason
    assert "slower" in found.reason
    assert "share one memory bus" in found.reason


def test_two_ranks_are_taken_when_they_are_surely_faster() -> None:
    found = ask(measured=measurement(link=50e9, alone=80e9, shared=75e9))
    assert found.layout.world_size == 2
    assert found.distribute
    assert "one host, no cluster needed" in found.reason


def test_a_model_too_large_for_one_device_is_cut() -> None:
    found = ask(job(LLAMA), "8xH100-SXM-80GB")
    assert found.layout.fsdp > 1
    assert "does not fit one device" in found.reason
    memory = [r for r in found.rejected if r.kind == "memory"]
    assert any(r.layout.world_size == 1 for r in memory)
    assert all(r.value > 0 and r.limit > 0 and r.nearest.startswith("nearest: ") for r in memory)
    near = Layout.parse(memory[0].nearest.removeprefix("nearest: "))
    assert ask(job(LLAMA), "8xH100-SXM-80GB", layout=near).best.p_oom <= 0.1


def test_every_layout_is_either_listed_or_rejected_with_numbers() -> None:
    found = ask(top=2)
    layouts = [c.layout for c in found.candidates] + [r.layout for r in found.rejected]
    assert len(set(layouts)) == len(layouts)
    assert {str(layout.replace(mbs=None, recompute="none")) for layout in layouts} == {
        "single", "dp=2", "fsdp=2", "fsdp=2:zero1", "fsdp=2:zero2", "tp=2", "cp=2", "cp=2:ulysses",
        "pp=2", "pp=2:gpipe", "pp=2:interleaved", "pp=2:zero-bubble", "pp=2:zbv", "pp=2:dualpipev",
    }  # fmt: skip
    assert {layout.recompute for layout in layouts} == {"none", "selective", "full"}
    assert found.tally.adds_up()
    assert found.tally.divide == len(layouts)
    refused = [r for r in found.rejected if r.kind == "rule"]
    assert refused
    assert all(r.reason for r in refused)
    for rejection in found.rejected:
        if rejection in refused:
            continue
        assert rejection.kind == "slower"
        assert rejection.limit == pytest.approx(found.best.step_s[1])
        assert rejection.nearest.startswith("wins when")


def test_a_cpu_keeps_what_it_chose_before_there_were_more_axes() -> None:
    """Ranks of one host share its cores: messages inside every layer only cost."""
    for link, alone, shared in ((2e8, 80e9, 32e9), (1e9, 80e9, 40e9), (50e9, 80e9, 75e9)):
        found = ask(measured=measurement(link=link, alone=alone, shared=shared))
        assert found.layout.tp * found.layout.pp * found.layout.cp == 1
        inside = [c for c in (*found.candidates, *found.rejected) if c.layout.tp * c.layout.pp > 1]
        assert inside


def test_only_what_is_listed_one_by_one_can_be_refused_by_the_book() -> None:
    for model, cluster in (("llama-3.1-8b", "2x8xH100-SXM-80GB"), ("qwen3-30b-a3b", "8xH100-SXM-80GB")):
        found = ask(job(LLAMA | {"model.preset": model, "data.sequence_length": 8192}), cluster)
        assert not [r for r in found.rejected if r.kind == "rule"]


def test_recompute_is_taken_where_it_makes_room_and_not_else() -> None:
    fits = ask(job(TINY | {"model.preset": "nano"}), "1xH100-SXM-80GB")
    assert fits.layout.recompute == "none"
    assert {r.layout.recompute for r in fits.rejected} == {"none", "selective", "full"}
    large = ask(
        job(LLAMA | {"model.preset": "llama-3.1-70b", "data.sequence_length": 8192}), "16x8xH100-SXM-80GB"
    )
    assert large.layout.recompute != "none"
    asked = ask(job(LLAMA), "8xH100-SXM-80GB", layout="auto,recompute=full")
    assert {c.layout.recompute for c in asked.candidates} == {"full"}
    given = ask(job(LLAMA), "8xH100-SXM-80GB", layout="fsdp=8,mbs=1")
    assert given.layout.recompute == "none"


def test_experts_may_be_spread_and_long_rows_cut() -> None:
    moe = ask(job(LLAMA | {"model.preset": "qwen3-30b-a3b", "data.sequence_length": 4096}), "8xH100-SXM-80GB")
    assert any(r.layout.ep > 1 for r in (*moe.candidates, *moe.rejected))
    long = job(LLAMA | {"data.sequence_length": 131072, "train.global_batch_size": 8})
    assert ask(long, "2x8xH100-SXM-80GB").layout.cp > 1


def test_nothing_fits_is_exit_11_with_the_nearest() -> None:
    with pytest.raises(Refused) as caught:
        ask(job(LLAMA), "1xH100-SXM-80GB")
    assert caught.value.exit_code == Exit.MEMORY
    assert "GiB of 79.2" in caught.value.seen
    with pytest.raises(Refused) as caught:
        ask(job(LLAMA), "8xH100-SXM-80GB", layout="single", where="--layout")
    assert caught.value.exit_code == Exit.MEMORY
    near = caught.value.use.removeprefix("--layout ")
    assert ask(job(LLAMA), "8xH100-SXM-80GB", layout=near).best.p_oom <= 0.1
    assert caught.value.where == "--layout"


@pytest.mark.parametrize(
    ("key", "value", "word"), [("layout__deadline", "1s", "deadline"), ("layout__budget_usd", 0.5, "budget")]
)
def test_limits_that_nothing_meets_are_exit_12(key: str, value: object, word: str) -> None:
    with pytest.raises(Refused) as caught:
        ask(job(LLAMA, **{key: value}), "8xH100-SXM-80GB")
    assert caught.value.exit_code == Exit.DEADLINE
    assert word in caught.value.message
    use = caught.value.use.partition(" = ")[2].strip('"')
    looser = ask(job(LLAMA, **{key: use if word == "deadline" else float(use)}), "8xH100-SXM-80GB")
    assert looser.best.hours is not None


def test_a_deadline_can_force_distribution() -> None:
    slow, fast = "16xH100-SXM-80GB", {"data__sequence_length": 512, "train__global_batch_size": 256}
    base = job({"model.preset": "llama-3.2-1b", "train.steps": 1000, "data.tokenizer": "bpe:8192"}, **fast)
    cheap = ask(base.replace({"layout.objective": "cost"}), slow)
    late = cheap.best.hours
    assert late is not None
    hurried = base.replace({"layout.objective": "cost", "layout.deadline": f"{late[1] * 3600 / 4:.0f}s"})
    found = ask(hurried, slow)
    assert found.layout.world_size > cheap.layout.world_size
    assert any(r.kind == "deadline" for r in found.rejected)


def test_objectives_differ() -> None:
    time, memory = (ask(job(LLAMA, layout__objective=o), "8xH100-SXM-80GB") for o in ("time", "memory"))
    assert memory.best.memory_gib[2] < time.best.memory_gib[2]
    assert time.best.step_s[1] < memory.best.step_s[1]


def test_ties_are_called_ties() -> None:
    found = ask(measured=None)
    assert any("tied with 1" in c.verdict for c in found.candidates[1:])
    assert found.candidates[0].verdict == "chosen"


def test_unmeasured_is_wide_and_said() -> None:
    wide, narrow = ask(measured=None), ask()
    assert wide.best.step_s[2] / wide.best.step_s[0] > 3
    assert narrow.best.step_s[2] / narrow.best.step_s[0] < 2.3
    assert any("catalogue" in text for text in wide.assumed)
    assert not any("catalogue" in text for text in narrow.assumed)


def test_a_measurement_of_this_machine_says_nothing_about_another() -> None:
    found = ask(job(LLAMA), "8xH100-SXM-80GB", measured=measurement())
    assert any("H100-SXM-80GB from the catalogue" in text for text in found.assumed)


def test_a_given_layout_gets_its_micro_batch_and_is_not_replaced() -> None:
    found = ask(layout="dp=2")
    assert str(found.layout.replace(mbs=None)) == "dp=2"
    assert found.layout.mbs is not None
    assert ask(layout="fsdp=2,mbs=4").layout == Layout.parse("fsdp=2,mbs=4")
    assert ask(layout="fsdp=auto").layout.fsdp == 2
    assert ask(layout="fsdp=4").layout.world_size == 4  # a CPU runs as many processes as asked for


def test_rules_are_asked_first() -> None:
    with pytest.raises(Refused) as caught:
        ask(layout="tp=3")
    assert caught.value.exit_code == Exit.RULE
    assert caught.value.use == "--layout tp=2"


def test_what_if_and_crossings_answer_other_questions() -> None:
    found = ask(
        job(LLAMA),
        "8xH100-SXM-80GB",
        what_if={"cluster": ["16xH100-SXM-80GB", "1xH100-SXM-80GB"], "train.steps": [10]},
    )
    larger, smaller, short = found.what_if
    assert larger["step_s"] < found.best.step_s[1]
    assert smaller["exit_code"] == Exit.MEMORY
    assert short["hours"] < found.best.hours[1]  # type: ignore[index]
    two = ask(what_if={"layout.use": ["dp=2", "tp=3"]}).what_if
    assert two[0]["layout"].startswith("dp=2,mbs=")
    assert two[1]["exit_code"] == Exit.RULE
    assert any(text.startswith("hosts=2 → ") for text in found.crossovers)
    assert "dp=8 does not fit" in found.shortcut


def test_the_plan_is_a_job_file_that_runs_it(tmp_path: Path) -> None:
    from paceline.job.load import load

    found = ask(job(data__train="input.txt"))
    found.save(tmp_path / "planned.toml")
    (tmp_path / "input.txt").write_text("text")
    assert load(tmp_path / "planned.toml").job.layout.use == str(found.layout)


def test_to_dict_is_json_and_the_record_has_known_fields() -> None:
    from paceline.ledger.records import FIELDS

    found = ask(job(LLAMA), "8xH100-SXM-80GB")
    told = json.loads(json.dumps(found.to_dict()))
    assert told["best"]["layout"] == str(found.layout)
    assert "causal attention half" in told["model"]["flops_convention"]
    record = found.record()
    assert set(record) <= set(FIELDS)
    assert record["decision"]["reason"] == found.reason
    assert all({"alternative", "reason", "value", "limit", "wins_when"} == set(r) for r in record["rejected"])
    json.dumps(record)


def test_sources_that_are_not_prepared_are_sized_and_said(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("x" * 4_000_000)
    base = {"model.preset": "tiny", "data.tokenizer": "bpe:8192", "data.sequence_length": 100}
    found = ask(
        job(base, data__train=str(tmp_path / "*.txt"), train__epochs=1.0, train__global_batch_size=10)
    )
    assert found.facts.steps == 1000
    assert any("tokens = bytes/4" in text for text in found.assumed)
    assert ask(job(base, train__epochs=1.0), tokens=2000).facts.steps == 1
    unknown = ask(job(base, train__epochs=1.0))
    assert unknown.facts.steps is None
    assert unknown.best.hours is None


def test_plan_needs_no_torch_and_answers_fast() -> None:
    import subprocess
    import sys

    code = (
        "import sys, time\n"
        "from tests.plan.answers import ask, job, LLAMA\n"
        "began = time.process_time()\n"
        "ask(job(LLAMA), '64x8xH100-SXM-80GB')\n"
        "assert 'torch' not in sys.modules\n"
        "print(time.process_time() - began)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) < 12.0  # CPU seconds for a million layouts; a fifth of it on an idle machine


def test_measured_is_typed() -> None:
    assert isinstance(ask(cluster=machine(), measured=Measured.from_dict({"schema": 0})), Plan)


def test_a_cluster_says_why_one_host_was_not_enough() -> None:
    found = ask(job(LLAMA), "2x8xH100-SXM-80GB")
    assert found.best.scope == "cluster"
    assert "does not fit one device" in found.reason
    assert "one host (fsdp=8" in found.reason
    assert set(found.scopes) == {"host", "cluster"}


def test_data_that_is_not_here_is_said() -> None:
    """A plan needs no data, but it must not look as if it had seen some."""
    found = ask(job().replace({"data.train": "nowhere/*.txt"}))
    assert any("data.train is not here" in line for line in found.assumed)


@pytest.mark.parametrize(("layout", "batch"), [("pp=2", 1), ("pp=4", 3), ("pp=2:dualpipev", 3)])
def test_a_batch_that_no_micro_batch_cuts_for_the_schedule_is_refused_by_the_book(
    layout: str, batch: int
) -> None:
    """The micro-batch is the planner's to choose, and there is none: that is a rule and no fault of ours."""
    with pytest.raises(Refused) as caught:
        ask(job(**{"train.global_batch_size": batch}), layout=layout)
    assert caught.value.exit_code == Exit.RULE
    assert "micro-batch" in caught.value.message
    assert caught.value.use.startswith("--layout ")


def _while_busy() -> Measured:
    """One rank was timed while others held the cores, several ranks a moment later when they had gone."""
    quiet = measurement(link=50e9, alone=80e9, shared=75e9)
    slow = [
        row | {"flops_per_s": row["flops_per_s"] / (1000 if row["processes"] == 1 else 1)}
        for row in quiet.matmul
    ]
    blocks = [
        row | {"layer_s": row["layer_s"] * (50 if row["processes"] == 1 else 1)} for row in quiet.blocks
    ]
    return replace(quiet, matmul=slow, blocks=blocks, dispatch_s=0.1, cpu_share=0.1)


@pytest.mark.parametrize("cores", [2, 4, 8])
def test_a_busy_measurement_never_makes_many_ranks_win(cores: int) -> None:
    here = replace(machine(), devices=cores)
    found = ask(cluster=here, measured=_while_busy(), top=50)
    assert str(found.layout.replace(mbs=None)) == "single"
    alone = found.best.step_s
    for candidate in found.candidates:
        assert alone[1] / candidate.step_s[1] <= 1.05 * cores, candidate.layout
        assert candidate.step_s[0] <= alone[1] <= candidate.step_s[2] or candidate.step_s[1] > alone[1]


def test_a_busy_measurement_is_said_where_the_plan_is() -> None:
    busy, quiet = ask(measured=_while_busy()), ask()
    assert "measured on a busy machine" in summary(busy)
    assert "while busy" in table(busy)
    assert busy.to_dict()["measured_busy"]
    assert "busy" not in summary(quiet)
    assert "busy" not in table(quiet)
