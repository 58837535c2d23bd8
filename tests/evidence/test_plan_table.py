"""The table of candidates on a page says what the terminal says."""

from __future__ import annotations

import pytest

from paceline.evidence.sections.plan import candidates


@pytest.mark.parametrize(("mfu", "shown"), [(0.0, False), (0.45, True)])
def test_an_mfu_of_an_unknown_peak_is_a_dash(mfu: float, shown: bool) -> None:
    row = {
        "layout": "single",
        "step_s": [1.0, 2.0, 3.0],
        "tokens_per_s": 5.0,
        "mfu": mfu,
        "memory_gib": [1.0],
    }
    html = str(candidates({"best": row, "candidates": [row | {"usd": 3.0}]}))
    assert ("%</td>" in html) is shown
    assert ("–</td>" in html) is not shown
