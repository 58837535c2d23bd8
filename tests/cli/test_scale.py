"""``plan --scale`` as a person sees it."""

from __future__ import annotations

from typing import Any

from paceline.cli.scale import scale_text
from paceline.plan.scaling import compared, turning


def answered(uses: int, tokens_per_s: float, price: float | None = 2.0) -> dict[str, Any]:
    hours = [10 / tokens_per_s, 11 / tokens_per_s, 12 / tokens_per_s]
    return {
        "devices": uses, "uses": uses, "layout": f"dp={uses}", "step_s": [0.9, 1.0, 1.1],
        "tokens_per_s": tokens_per_s, "hours": hours, "usd": price and [uses * price * h for h in hours],
        "usd_per_million_tokens": price and uses / tokens_per_s * price / 3600 * 1e6,
        "device_s_per_million_tokens": uses / tokens_per_s * 1e6, "kwh": None,
    }  # fmt: skip


REFUSED = {"devices": 8, "refused": "no layout fits in memory", "exit_code": 11}


def test_counts_that_cannot_are_a_row_and_a_reason() -> None:
    rows = compared([REFUSED, answered(16, 100.0), answered(32, 150.0)])
    text = scale_text(rows, 120)
    assert "8: no layout fits in memory (exit 11)" in text
    assert "against 16 devices" in text
    assert rows[2]["efficiency"] == 0.75
    lines = [line for line in text.splitlines() if line.startswith(" ")]
    assert len({line.index("dp=") for line in lines if "dp=" in line}) == 1


def test_the_turn_is_where_a_token_costs_least() -> None:
    rows = [answered(1, 10.0), answered(2, 22.0), answered(4, 30.0)]
    text = turning(rows)
    assert text.startswith("a million tokens cost least with 2: $")
    assert "10 % more with 1" in text
    assert "47 % more with 4" in text
    assert turning([{**one, "usd_per_million_tokens": None} for one in rows]).endswith("with 4")


def test_nothing_but_refusals_is_still_a_table() -> None:
    assert "no layout fits" in scale_text(compared([REFUSED]), 80)
    assert scale_text([], 80) == ""
