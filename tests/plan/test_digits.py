"""Numbers as they are shown: short, whatever they are."""

from __future__ import annotations

import pytest

from paceline.ledger.outcome import printable
from paceline.plan.digits import amount, grouped, money, three
from paceline.plan.show import seconds, table
from tests.plan.answers import LLAMA, ask, job


@pytest.mark.parametrize("show", [three, grouped, money, amount, seconds])
@pytest.mark.parametrize("value", [1e300, 1e30, 1e15, 1.7e308, 1e-300, 5e-324, 1e-13])
def test_no_number_is_long(show: object, value: float) -> None:
    assert callable(show)
    assert len(show(value)) <= 14, "under 1 cent"


def test_ordinary_numbers_have_no_power_of_ten() -> None:
    assert [three(x) for x in (6720.0, 0.488, 1.23e-5, 1.58e9)] == [
        "6 720",
        "0.488",
        "0.0000123",
        "1 580 000 000",
    ]
    assert (money(1_580_000), money(3.2), money(0.0)) == ("$1 580 000", "$3.20", "$0")


@pytest.mark.parametrize("price", [1e300, 1e30, 5e6])
def test_a_plan_at_an_absurd_price_is_no_wall_of_digits(price: float) -> None:
    asked = job(LLAMA, cluster__usd_per_device_hour=price, train__steps=10**15)
    text = table(ask(asked, "8xH100-SXM-80GB", layout="fsdp=8"), width=400)
    assert "e+" in text or price == 5e6
    assert max(sum(c.isdigit() for c in line) for line in text.splitlines()) < 120


def test_a_number_of_hundreds_of_digits_is_told_by_its_length() -> None:
    assert printable("dp=" + "9" * 200 + " is not possible") == "dp=999999… (200 digits) is not possible"
    assert printable("0" * 40) == "0" * 40
