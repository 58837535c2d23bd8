"""The report explains any run: one that went well, one that died, one whose files are missing or torn."""

from __future__ import annotations

import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import pytest

from paceline.evidence.facts import Facts
from paceline.evidence.page.numbers import figures, grouped
from paceline.evidence.plan_page import write_plan_page
from paceline.evidence.report import SECTIONS, write_report
from paceline.ledger.folder import RunFolder, Status, create
from tests.evidence.synthetic_run import Story, plan_dict, write_run

VOID = {"meta", "link", "line", "rect", "circle", "polyline", "path", "br", "hr"}
FATES = {
    "done": Story(steps=60),
    "four ranks, resumed": Story(ranks=4, steps=40, resumed_at=20, slow_rank=2, usd=True),
    "died": Story(steps=60, died_at=23),
    "died at once": Story(steps=60, died_at=1),
}


class Reader(HTMLParser):
    """Checks that every tag is closed in order, and collects text, tags and addresses."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.text: list[str] = []
        self.tags: list[str] = []
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.addresses += [v or "" for k, v in attrs if k in ("href", "src", "action", "data", "xlink:href")]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if not self.open or self.open[-1] not in ("script", "style"):
            self.text.append(data)

    @property
    def words(self) -> str:
        return re.sub(r"[\s\u202f]+", " ", " ".join(self.text))


def read_page(path: Path) -> Reader:
    reader = Reader()
    reader.feed(path.read_text(encoding="utf-8"))
    assert reader.open == []
    return reader


@pytest.mark.parametrize("fate", FATES)
def test_every_fate_gives_a_whole_page_without_any_request(tmp_path: Path, fate: str) -> None:
    path = write_report(write_run(tmp_path, FATES[fate]))
    page = read_page(path)
    for anchor, _, _ in SECTIONS:
        assert f"#{anchor}" in page.addresses
    assert all(a.startswith(("#", "data:,")) for a in page.addresses)
    text = path.read_text(encoding="utf-8")
    assert not re.search(r"https?:|url\(|@import|fetch\(|XMLHttp", text)
    assert "default-src 'none'" in text
    assert "nan" not in page.words.lower().split()


def test_the_figures_of_the_records_are_on_the_page(tmp_path: Path) -> None:
    folder = write_run(tmp_path, Story(ranks=4, steps=60, slow_rank=2, usd=True))
    facts, words = Facts(folder), read_page(write_report(folder)).words
    held = facts.last_eval or {}
    best = facts.plan["best"]
    times = facts.step_times
    assert times is not None
    expected = [
        "done: 60 of 60 steps",
        figures(held["loss"], 4),
        figures(held["bits_per_byte"]),
        "unigram model: 6.99, 2.67 bits per byte",
        "trigram model: 5.29, 2.02 bits per byte",
        grouped(facts.median("tokens_per_s")),
        figures(times.p50),
        f"{figures(best['step_s'][1])} ({figures(best['step_s'][0])}–{figures(best['step_s'][2])})",
        "fsdp=4,mbs=16",
        "Rejected: 28",
        "9.40 GiB",
        "waiting for a late rank",
        "rank 2 was waited for most",
        "sha256:6a1f09",
        "2.13.0",
        "PSF-2.0",
        "--set",  # the origin of train.steps
        "times_read 11",
        "4 cores → dp=2",
        "$" + f"{facts.peak('cost_usd'):.2f}",
    ]
    for row in facts.time_rows:
        expected.append(f"{100 * row['share']:.2f} %")
    missing = [e for e in expected if re.sub(r"[\s\u202f]+", " ", e) not in words]
    assert missing == []


def test_each_figure_carries_its_kind_of_evidence(tmp_path: Path) -> None:
    text = write_report(write_run(tmp_path, Story(steps=40))).read_text()
    for figure in re.findall(r"<figcaption>.*?</figcaption>", text):
        assert 'class="kind' in figure
    for tile in re.findall(
        r'<div class="tile">.*?<div class="figure">.*?</div>.*?(?=<div class="tile">|</header>)', text
    ):
        assert 'class="kind' in tile or '<div class="name">layout' in tile


def test_a_run_that_died_says_so_and_shows_its_gaps(tmp_path: Path) -> None:
    words = read_page(write_report(write_run(tmp_path, Story(steps=60, died_at=23)))).words
    assert "lost: its process is gone and said nothing after step 23 of 60" in words
    assert words.count("left no record") == 2  # update and recover never came to theirs
    assert "No checkpoint is in the run's folder" in words


def test_an_empty_run_is_a_page_too(tmp_path: Path) -> None:
    folder = create(tmp_path, "bare")
    Status("failed", exit_code=20, message="data refused").write(folder.status)
    words = read_page(write_report(folder)).words
    for gap in (
        "failed after 0 steps: data refused (exit 20)",
        "Nothing was measured before this run ended",
        "No plan was recorded",
        "No ledger could be read",
        "No manifest could be read",
        "job.toml cannot be read",
    ):
        assert gap in words


PARTS = [
    "job.toml",
    "manifest.json",
    "status.json",
    "metrics.jsonl",
    "ledger",
    "phases",
    "evidence",
    "checkpoints",
]


@pytest.mark.parametrize("damage", ["missing", "torn"])
@pytest.mark.parametrize("part", PARTS)
def test_no_missing_or_torn_file_stops_the_report(tmp_path: Path, part: str, damage: str) -> None:
    folder = write_run(tmp_path, Story(ranks=2, steps=20))
    target = folder.path / part
    if damage == "missing":
        shutil.rmtree(target) if target.is_dir() else target.unlink()
    else:
        files = [f for f in target.rglob("*") if f.is_file()] if target.is_dir() else [target]
        for file in files:
            content = file.read_bytes()
            file.write_bytes(content[: len(content) // 2] + b"\xff\x00")
    read_page(write_report(folder))


def test_of_a_step_done_twice_the_last_attempt_is_drawn(tmp_path: Path) -> None:
    folder = write_run(tmp_path, Story(steps=40, resumed_at=20))
    facts = Facts(folder)
    assert facts.train["step"] == list(range(1, 41))
    assert [a for s, a in zip(facts.train["step"], facts.train["attempt"], strict=True) if s > 20] == [1] * 20
    assert facts.restarts == [20]
    assert "Of steps that were done twice, the last attempt is shown" in read_page(write_report(folder)).words


EVIL = '"><script>alert(1)</script><img src=x onerror=alert(2)>'


def test_no_text_of_a_user_becomes_markup(tmp_path: Path) -> None:
    import tomli_w

    from paceline.ledger.atomic import read_json, write_json

    folder = write_run(tmp_path, Story(steps=20))
    job = {"run": {"note": EVIL, "tags": [EVIL]}, "model": {"preset": EVIL}, EVIL: {EVIL: EVIL}}
    folder.job_toml.write_text(tomli_w.dumps(job))
    Status("failed", message=EVIL, layout=EVIL).write(folder.status)
    for path in (folder.manifest, folder.evidence / "plan.json", *folder.phases.iterdir()):
        write_json(path, poisoned(read_json(path)))
    path = write_report(folder)
    page = read_page(path)
    assert page.tags.count("script") == 3  # two charts' values and the hover script
    assert "img" not in page.tags
    assert "alert(1)" in page.words
    write_plan_page(poisoned(plan_dict()), tmp_path / "plan.html")
    assert read_page(tmp_path / "plan.html").tags.count("script") == 1


def poisoned(value: object) -> object:
    """The same structure with markup in every text and key."""
    if isinstance(value, dict):
        return {k: poisoned(v) for k, v in value.items()} | {EVIL: EVIL}
    if isinstance(value, list):
        return [poisoned(v) for v in value]
    return value + EVIL if isinstance(value, str) else value


def test_the_plan_is_read_from_record_one_when_there_is_no_plan_file(tmp_path: Path) -> None:
    from paceline.ledger.records import PhaseRecord, write

    folder = create(tmp_path, "r")
    record = PhaseRecord(
        decision={
            "layout": "dp=2",
            "reason": "two cores",
            "step_s": [0.1, 0.2, 0.3],
            "memory_gib": [1, 2, 3],
        },
        rejected=[
            {"alternative": "single", "reason": "slower", "value": 0.5, "limit": 0.2, "wins_when": "1 core"}
        ],
    )
    write(folder, 1, record)
    words = read_page(write_report(folder)).words
    assert "Chosen: dp=2 – two cores" in words
    assert "single slower 0.500 0.200 1 core" in words


def test_the_plan_page_holds_every_candidate_and_rejection(tmp_path: Path) -> None:
    plan = plan_dict(Story(ranks=2, usd=True))
    page = read_page(write_plan_page(plan, tmp_path / "plan.html"))
    assert all(a.startswith(("#", "data:,")) for a in page.addresses)
    for row in (*plan["candidates"], *plan["rejected"]):
        assert row["layout"] in page.words
    for told in ("distribute: fsdp=2,mbs=16", "MFU 24 %", "5.30 M parameters", "4 cores → dp=2", "189 MB"):
        assert told in page.words
    read_page(write_plan_page({}, tmp_path / "empty.html"))


CHROMIUM = next((p for p in map(shutil.which, ("chromium", "chromium-browser", "google-chrome")) if p), None)


@pytest.mark.skipif(
    CHROMIUM is None, reason="needs a Chromium on this machine; the page is checked without it above"
)
def test_a_real_browser_opens_it_without_a_word(tmp_path: Path) -> None:
    folder: RunFolder = write_run(tmp_path, Story(ranks=4, steps=40))
    path = write_report(folder)
    done = subprocess.run(
        [
            str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr",
            f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom", path.as_uri(),
        ],
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert "CONSOLE" not in done.stderr
    assert done.stdout.count("<svg") == path.read_text().count("<svg")
