"""The text of a plan: its parts, its width, its one line."""

from __future__ import annotations

import pytest

from paceline.plan.digits import grouped, money, three
from paceline.plan.show import answer, in_units, seconds, summary, table
from tests.plan.answers import LLAMA, ask, job, measurement


def test_the_table_has_the_parts_of_the_mock_up() -> None:
    text = table(ask(job(LLAMA), "8xH100-SXM-80GB"))
    for word in (
        "job      job · llama-3.1-8b, 8.03 B parameters",
        "GFLOP/token (causal)",
        "cluster  1 host × 8 H100-SXM-80GB · NVLink 4 450 GB/s · $3.99 a device-hour (catalogue 2026-11-09)",
        "answer   one host, 8 devices (no cluster needed): ",
        " h, $",
        ". It does not fit one device (",
        " #  layout",
        "MFU  GiB of 79",
        "rejected ",
        "--json)",
        "searched ",
        " layouts divide · ",
        " single",
        "would change the answer   ",
        "assumed  ",
        "disk     checkpoints 96.4 GB × (keep 2 + 1) = 289 GB",
        "next     on that cluster: paceline train job.toml --layout fsdp=",
    ):
        assert word in text, word


@pytest.mark.parametrize("width", [130, 80, 60])
def test_candidates_fit_the_width_by_dropping_columns(width: int) -> None:
    lines = table(ask(job(LLAMA), "8xH100-SXM-80GB"), width=width).splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith(" #"))
    rows = lines[start : start + 6]
    assert all(len(line) <= width for line in rows)
    assert "step s" in rows[0]
    assert ("verdict" in rows[0]) == (width >= 130)


def test_a_cpu_has_no_money_and_says_when_it_was_measured() -> None:
    text = table(ask())
    assert "$" not in text
    assert "1 host × 2 cores, 16 GiB · test cpu · measured 2026-11-30" in text
    assert "not measured: catalogue, wide interval" in table(ask(measured=None))


def test_the_one_line_of_train() -> None:
    line = summary(ask(measured=measurement(link=2e8, shared=32e9)))
    assert line.startswith("single,mbs=")
    assert "slower here: both cores share one memory bus) · predicts " in line
    assert line.endswith(" GiB")


def test_numbers_are_read_at_a_glance() -> None:
    assert [seconds(v) for v in (123.4, 12.34, 1.234, 0.0412)] == ["123", "12.3", "1.23", "0.0412"]
    assert grouped(65_512.3) == "65 500"
    assert grouped(19_980) == "20 000"
    assert grouped(87.6) == "88"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (48.0, "48"),
        (0.4876, "0.488"),
        (1.23e-5, "0.0000123"),
        (999.6, "1 000"),
        (6720.4, "6 720"),
    ],
)
def test_three_digits_never_have_an_exponent(value: float, text: str) -> None:
    assert three(value) == text


def test_a_cluster_elsewhere_is_not_sent_to_this_machine() -> None:
    (here,) = [line for line in table(ask()).splitlines() if line.startswith("next")]
    (there,) = [
        line for line in table(ask(cluster="8xH100-SXM-80GB")).splitlines() if line.startswith("next")
    ]
    assert here.startswith("next     paceline train ")
    assert there.startswith("next     on that cluster: paceline train ")


def test_a_verdict_gives_up_its_percentage_before_its_column() -> None:
    rows = table(ask(measured=None), width=100).splitlines()
    wide = table(ask(measured=None), width=130).splitlines()
    assert any("tied with 1 (" in line for line in wide)
    assert any("tied with 1" in line for line in rows)


@pytest.mark.parametrize(
    ("count", "text"),
    [(912, "912"), (37_200, "37.2 k"), (999_950, "1000.0 k"), (5.3e6, "5.3 M"), (8.03e9, "8.03 B")],
)
def test_a_small_model_is_not_nothing(count: float, text: str) -> None:
    assert in_units(count) == text


@pytest.mark.parametrize(
    ("usd", "text"),
    [
        (0.0, "$0"),
        (0.004, "under 1 cent"),
        (0.3, "$0.30"),
        (3.2, "$3.20"),
        (160.4, "$160"),
        (1_575_520.0, "$1 580 000"),
    ],
)
def test_what_is_cheap_is_not_free(usd: float, text: str) -> None:
    assert money(usd) == text


def test_an_answer_as_asked_is_a_sentence() -> None:
    text = answer(ask(cluster="8xH100-SXM-80GB", layout="dp=2"))
    assert ". As asked" in text
    assert "$0. " not in text
