"""``paceline plan --dry-run`` on the command line: one whole answer, and what is refused without torch."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.shell import in_process, paceline

JOB = """
[model]
preset = "tiny"
[data]
train = "corpus.txt"
tokenizer = "bytes"
sequence_length = 64
[train]
steps = 2
global_batch_size = 8
precision = "fp32"
"""


@pytest.fixture
def job(tmp_path: Path) -> str:
    (tmp_path / "corpus.txt").write_text("text " * 500)
    path = tmp_path / "job.toml"
    path.write_text(JOB)
    return str(path)


def test_any_rank_of_any_layout_answers(job: str) -> None:
    done = paceline(
        "plan", job, "--layout", "fsdp=2,tp=2,mbs=2", "--dry-run", "--rank", "3", "--json", limit_s=280
    )
    assert done.code == 0, done.err
    found = done.object.get("result", done.object)
    assert found["kind_of_evidence"] == "fake cluster"
    assert (found["rank"], found["at"]["fsdp"], found["at"]["tp"]) == (3, 1, 1)
    assert found["peak_bytes"] == sum(found["memory"].values()) > found["memory"]["weights"] > 0
    assert {row["axis"] for row in found["messages"]} >= {"fsdp", "tp", "step"}


@pytest.mark.parametrize(
    ("words", "use"),
    [
        (("--layout", "fsdp=2,mbs=1", "--dry-run", "--rank", "2"), "--rank 1"),
        (("--rank", "1"), "--dry-run --rank R"),
        (("--dry-run", "--save", "planned.toml"), "leave --save out"),
        (
            ("--layout", "dp=32768,mbs=1", "--dry-run", "--set", "train.global_batch_size=32768"),
            "--layout dp=16384",
        ),
    ],
)
def test_what_cannot_be_answered_is_refused(
    job: str, words: tuple[str, ...], use: str, capsys: pytest.CaptureFixture[str]
) -> None:
    done = in_process(capsys, "plan", job, *words)
    assert done.code == 2, done.err
    assert use in done.err
