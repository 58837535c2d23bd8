"""What a dry run answers, refuses and prints; no torch."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from paceline.ledger.outcome import Exit, Refused
from paceline.plan.dry_run import DryRun, Message, check_question, size, text
from paceline.plan.layout import Layout

FOUND = DryRun(
    layout="fsdp=4,tp=2",
    rank=5,
    at={"dp": 0, "fsdp": 2, "tp": 1},
    precision="bf16",
    micro_batches=2,
    rows=1,
    parameters=67_300_000,
    layers=80,
    memory={"weights": 3 << 30, "activations": 1 << 30, "gradients": 0},
    moment="head and loss",
    moments={"head and loss": 4 << 30},
    messages=[Message("tp", "all_gather", 322, 43_218_108_416), Message("step", "all_reduce", 2, 40)],
    ran={"layers": (4, 5), "micro_batches": (2,)},
    assumed=["balanced routing"],
    seconds=12.5,
)


@pytest.mark.parametrize(
    ("layout", "rank", "key", "use"),
    [
        ("fsdp=4", 4, "--rank", "--rank 3"),
        ("fsdp=4", -1, "--rank", "--rank 0"),
        ("single", 1, "--rank", "--rank 0"),
        ("auto", 0, "--layout", "--layout"),
        ("dp=auto,tp=2", 0, "--layout", "--layout"),
        ("dp=128,fsdp=256", 0, "--layout", "--layout dp=128,fsdp=128"),
    ],
)
def test_refusals_name_the_repair(layout: str, rank: int, key: str, use: str) -> None:
    with pytest.raises(Refused) as caught:
        check_question(Layout.parse(layout), rank)
    assert caught.value.exit_code == Exit.USAGE
    assert caught.value.key == key
    assert str(caught.value.use).startswith(use)
    check_question(Layout.parse("dp=128,fsdp=128"), 16383)


def test_it_survives_json() -> None:
    read = json.loads(json.dumps(FOUND.to_dict()))
    assert read["kind_of_evidence"] == "fake cluster"
    assert (read["peak_bytes"], read["message_bytes"]) == (4 << 30, 43_218_108_456)
    assert DryRun.from_dict(read).to_dict() == {
        **FOUND.to_dict(), "ran": {"layers": [4, 5], "micro_batches": [2]}
    }  # fmt: skip


def test_the_text_says_where_what_and_on_what_evidence() -> None:
    told = text(FOUND)
    for words in (
        "rank 5 (fsdp 2, tp 1)",
        "80 layers, 67.3 M parameters",
        "4 GiB at most, in head and loss",
        "43,218,108,416",
        "the model with 4 and 5 layers, extended linearly",
        "balanced routing",
        "evidence fake cluster",
    ):
        assert words in told
    assert "gradients" not in told


def test_sizes_have_units() -> None:
    assert [size(n) for n in (40, 1 << 10, 1023 << 20, 3 << 40)] == ["40 B", "1 KiB", "1023 MiB", "3 TiB"]


def test_the_planners_figure_stands_beside_the_ranks() -> None:
    """The planner adds what an allocator keeps; without both figures nobody knows which of the two to believe."""
    gib = 1 << 30
    known = {"allocated": 75.0 * gib, "device": 84.4 * gib, "room": 79.2 * gib}
    line = next(one for one in text(replace(FOUND, planner=known)).splitlines() if one.startswith("planner"))
    assert "75 GiB on the fullest rank" in line
    assert line.endswith("does not fit 79.2 GiB")
    assert DryRun.from_dict(replace(FOUND, planner=known).to_dict()).planner == known
    assert "planner" not in text(FOUND)
