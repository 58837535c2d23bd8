"""``paceline plan``: its record as JSON, as lines, and as a page; and the code of what it does not know."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from paceline.ledger.outcome import Exit
from tests.cli.shell import paceline

CLUSTER = ("--cluster", "2xCPU")


@pytest.fixture
def job(tmp_path: Path) -> Path:
    (tmp_path / "a.txt").write_text("word " * 4000)
    path = tmp_path / "job.toml"
    path.write_text('data.train = "a.txt"\nmodel.preset = "nano"\ntrain.steps = 20\n')
    return path


def test_save_html_writes_the_page_and_says_where(job: Path) -> None:
    done = paceline("plan", "job.toml", *CLUSTER, "--save", "plan.html", cwd=job.parent)
    assert done.code == 0, done.err
    assert "saved    plan.html, the plan as a page" in done.err
    page = (job.parent / "plan.html").read_text(encoding="utf-8")
    assert page.startswith("<!doctype html>")
    assert 'id="picture"' in page
    assert not list(job.parent.glob("*-planned.toml"))


def test_save_refuses_other_names(job: Path) -> None:
    done = paceline("plan", "job.toml", *CLUSTER, "--save", "plan.pdf", cwd=job.parent)
    assert done.code == Exit.USAGE
    assert "a job file, ….toml, or a page, ….html," in done.err


def test_json_has_the_whole_record(job: Path) -> None:
    done = paceline("plan", "job.toml", *CLUSTER, "--json", cwd=job.parent)
    found = json.loads(done.out)["result"]
    assert sum(one["layouts"] for one in found["families"]) == found["searched"]["divide"]
    assert {row["assumption"] for row in found["sensitivity"]} >= {"matmul", "memory", "link.intra"}
    assert found["tied_count"] == len(found["tied"])
    assert found["inputs"]["versions"]["paceline"]


def test_sensitivity_is_asked_for_by_what_if(job: Path) -> None:
    asked = paceline("plan", "job.toml", *CLUSTER, "--what-if", "sensitivity", cwd=job.parent)
    plain = paceline("plan", "job.toml", *CLUSTER, cwd=job.parent)
    assert asked.code == 0, asked.err
    head, _, rows = asked.out.partition("sensitivity  ")
    assert head.strip() == plain.out.strip()
    assert "memory bandwidth" in rows
    given = paceline(
        "plan", "job.toml", "--layout", "dp=2", *CLUSTER, "--what-if", "sensitivity", cwd=job.parent
    )
    assert "nothing was chosen" in given.out


def test_what_is_not_known_is_14_with_the_measurement(job: Path) -> None:
    plain = json.loads(paceline("plan", "job.toml", *CLUSTER, "--json", cwd=job.parent).out)["result"]
    low, mid, high = plain["best"]["hours"]
    assert high / low > 5
    deadline = f"{mid * 3600 * 1.2:.1f}s"
    done = paceline("plan", "job.toml", *CLUSTER, "--deadline", deadline, cwd=job.parent)
    assert done.code == Exit.ABSTAIN
    assert "cluster measure --out lab.toml" in done.err
