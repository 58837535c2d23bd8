"""``pl.plan`` and the questions that ``paceline plan`` asks with it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

import paceline as pl
from paceline.api.ground import refuse_elsewhere
from paceline.api.jobs import load_job
from paceline.api.plan import check_save, parse_counts, parse_what_if, resolve_cluster, scale_by
from paceline.api.record import save_plan
from paceline.api.start import _again
from paceline.ledger.folder import RunFolder
from tests.api.measured import plant


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> pl.Job:
    monkeypatch.setattr("paceline.api.plan.cache_folder", lambda: tmp_path)
    plant(tmp_path)
    (tmp_path / "a.txt").write_text("word " * 4000)
    path = tmp_path / "job.toml"
    path.write_text('data.train = "a.txt"\nmodel.preset = "tiny"\ntrain.steps = 20\n')
    return pl.Job.load(path)


def test_this_machine_is_planned_from_its_measurement(job: pl.Job) -> None:
    found = pl.plan(job)
    assert found.measured_at == "2026-11-30T00:00:00Z"
    assert found.best.layout == found.layout
    assert str(pl.plan(job, layout="single").layout.replace(mbs=None)) == "single"


def test_another_cluster_by_name(job: pl.Job) -> None:
    assert pl.plan(job, cluster="8xH100-SXM-80GB").cluster.world == 8
    with pytest.raises(pl.Refused) as caught:
        pl.plan(job, cluster="8xH1000")
    assert caught.value.exit_code == 2


def test_scale_gives_cost_and_speed_up_by_device_count(job: pl.Job) -> None:
    rows = scale_by(job, [1, 2, 8], cluster="8xH100-SXM-80GB")
    assert [row["devices"] for row in rows] == [1, 2, 8]
    assert rows[0]["speed_up"] == 1.0
    assert all(row["usd"] is not None for row in rows)
    assert pl.Layout.parse(rows[0]["layout"]).world_size == 1
    eight = rows[2]
    assert eight["efficiency"] == pytest.approx(eight["speed_up"] / eight["uses"])
    tokens = eight["tokens_per_s"] * eight["goodput"] * eight["hours"][1] * 3600
    assert eight["usd_per_million_tokens"] == pytest.approx(eight["usd"][1] / tokens * 1e6)
    assert eight["kwh"][1] == pytest.approx(eight["uses"] * 0.7 * eight["hours"][1])  # 700 W each
    assert eight["hours"][0] < eight["hours"][1] < eight["hours"][2]


def test_scale_says_what_is_refused(job: pl.Job) -> None:
    rows = scale_by(job.replace({"model.preset": "llama-3.1-8b"}), [1, 8], cluster="8xH100-SXM-80GB")
    assert rows[0]["exit_code"] == 11
    assert rows[1]["speed_up"] == 1.0


@pytest.mark.parametrize("text", ["", "1,,2", "0", "two", "1.5", "-1"])
def test_counts_are_whole_numbers_above_zero(text: str) -> None:
    with pytest.raises(pl.Refused) as caught:
        parse_counts(text)
    assert caught.value.exit_code == 2


def test_counts_are_sorted_and_each_once() -> None:
    assert parse_counts("8, 1,2,8") == [1, 2, 8]


@pytest.mark.parametrize(
    ("words", "asked"),
    [
        (["devices=4,8"], {"devices": [4, 8]}),
        (["link.inter=400Gbit"], {"link.inter": ["400Gbit"]}),
        (["layout.use=fsdp=2,mbs=4", "layout.use=dp=2"], {"layout.use": ["fsdp=2,mbs=4", "dp=2"]}),
        (['train.precision="fp32"', "hosts=1,2"], {"train.precision": ["fp32"], "hosts": [1, 2]}),
    ],
)
def test_what_if_words(words: list[str], asked: dict[str, list[object]]) -> None:
    assert parse_what_if(words) == asked


def test_a_job_is_not_saved_over_what_it_was_read_from(tmp_path: Path) -> None:
    base, mine = tmp_path / "base.toml", tmp_path / "j.toml"
    for path in (base, mine):
        path.write_text("")
    (tmp_path / "link.toml").symlink_to("j.toml")
    for target in ("j.toml", "base.toml", "link.toml"):
        with pytest.raises(pl.Refused) as caught:
            check_save(tmp_path / target, [base, mine])
        assert caught.value.exit_code == 2
        assert "-planned.toml" in caught.value.use
    check_save(tmp_path / "new.toml", [base, mine])


def test_a_bad_place_is_refused_at_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from tests.cli.shell import in_process

    (tmp_path / "a.txt").write_text("word " * 400)
    path = tmp_path / "j.toml"
    text = 'data.train = "a.txt"\nmodel.preset = "tiny"\ntrain.steps = 20\n'
    path.write_text(text)
    for place in (path, tmp_path, tmp_path / "gone" / "p.toml", ""):
        done = in_process(capsys, "plan", str(path), "--save", str(place))
        assert done.code == 2, done.err
        assert "  use      " in done.err
    assert path.read_text() == text


def test_a_cluster_file_is_no_job(tmp_path: Path) -> None:
    lab = tmp_path / "lab.toml"
    lab.write_text("cluster.hosts = 2\n[measured]\nat = 1\n")
    with pytest.raises(pl.Refused, match="is a cluster file, not a job") as caught:
        load_job(lab)
    assert caught.value.use == f"paceline plan job.toml --cluster {lab}"
    over = tmp_path / "over.toml"  # what a job extends may hold a cluster alone
    lab.write_text("cluster.hosts = 2\n")
    over.write_text('extends = "lab.toml"\ntrain.steps = 7\n')
    assert load_job(over).job.cluster.hosts == 2


def test_train_elsewhere_advises_the_file_and_not_its_stem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lab.toml").write_text('[cluster]\nhosts = 2\naccelerator = "A100-SXM-80GB"\n')
    word = str(tmp_path / "lab.toml")
    with pytest.raises(pl.Refused) as caught:
        refuse_elsewhere(resolve_cluster(word), word)
    assert caught.value.use.endswith("paceline plan JOB --cluster lab.toml")


def test_the_record_of_a_plan_names_a_file_that_is_there(job: pl.Job) -> None:
    folder = RunFolder(Path("runs/my run"))
    for asked, more in (("auto", ""), ("dp=2", " --layout dp=2")):
        ground = SimpleNamespace(asked=asked, job=job)
        assert _again(folder, ground) == f"paceline plan 'runs/my run/job.toml'{more}"  # type: ignore[arg-type]


@pytest.mark.parametrize("word", ["link.inter=", "link.inter= ", "link.inter=1Gbit,", "devices=,2"])
def test_what_if_of_an_empty_value_is_refused(word: str) -> None:
    with pytest.raises(pl.Refused) as caught:
        parse_what_if([word])
    assert caught.value.exit_code == 2
    assert caught.value.key == "--what-if"
    assert caught.value.use != f"--what-if {word}"


def test_a_suffix_is_one_in_any_case(job: pl.Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = pl.plan(job)
    for name in ("planned.TOML", "plan.Html"):
        check_save(name, ())
        save_plan(found, name)
    assert Path("plan.Html").read_text().lower().startswith("<!doctype html>")
    assert load_job("planned.TOML").job.layout.use == str(found.best.layout)
    Path("lab.TOML").write_text('cluster.use = "2xCPU"\n')
    assert resolve_cluster("lab.TOML").devices == 2


def test_only_a_job_is_suggested_for_one_that_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, text in (
        ("proj.toml", "[project]\nname = 'x'\n"),
        ("projx.toml", "[cluster]\nuse = '8xB200'\n"),
        ("projy.toml", "[cluster\n"),
        ("projz.toml", ""),
    ):
        Path(name).write_text(text)
    with pytest.raises(pl.Refused) as caught:
        load_job("proj")
    assert caught.value.use == "paceline job new > job.toml"
    Path("project.toml").write_text("train.steps = 3\n")
    with pytest.raises(pl.Refused) as caught:
        load_job("proj")
    assert caught.value.use == "project.toml"
