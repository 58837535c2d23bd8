"""Quantities parse, print to what they parse from, and refuse what cannot be a quantity."""

from __future__ import annotations

import math

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from paceline.job import quantities as q
from paceline.job.interval import NEVER, Interval, parse_interval
from paceline.job.quantities import QuantityError

# A loaded machine is no failure.
PATIENT = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
GOOD = [
    (q.parse_count, 1000, 1000),
    (q.parse_count, 0, 0),
    (q.parse_count, "300k", 300_000),
    (q.parse_count, "1.5k", 1500),
    (q.parse_count, "10B", 10**10),
    (q.parse_count, "1_000", 1000),
    (q.parse_count, "2.5M", 2_500_000),
    (q.parse_duration, "30s", 30.0),
    (q.parse_duration, "5min", 300.0),
    (q.parse_duration, "2h", 7200.0),
    (q.parse_duration, "0.1s", 0.1),
    (q.parse_duration, "5us", 5e-6),
    (q.parse_bytes, "80GB", 80 * 10**9),
    (q.parse_bytes, "80GiB", 80 * 2**30),
    (q.parse_bytes, "1.5 KiB", 1536),
    (q.parse_rate, "400Gbit", 5e10),
    (q.parse_rate, "50GB", 5e10),
    (q.parse_rate, "50GB/s", 5e10),
]
BAD = [
    (
        q.parse_count,
        [True, 1.0, 1e9, -1, "-1", "1.5", "", "k", "1kk", "1e309", "nan", "inf", 2**63, None, [], "1__0"],
    ),
    (
        q.parse_duration,
        [5, 5.0, True, "5", "5m", "-5s", "1e309s", "infs", "nan", "", "h", "5 s s", "1e200h", "200000d"],
    ),
    (q.parse_bytes, [80, "80", "80gb", "80Gb", "80Gbit", "1e300GB", "-1GB", "inf", True, "9e18PB"]),
    (q.parse_rate, [400, "400", "400Gb", "400gbit", "1e300GB", "-1GB", math.nan]),
    (
        parse_interval,
        [0, -1, 0.1, 1.0, True, "0", "0%", "101%", "1.5 steps", "-5min", "0 epochs", "always", ""],
    ),
    (parse_interval, [None, "1e309 epochs", "nan", "5m", 2**63, "0s", "1e-400s", [], {}]),
]


@pytest.mark.parametrize(("parse", "text", "value"), GOOD)
def test_parses(parse, text, value):
    parsed = parse(text)
    assert parsed == value
    assert type(parsed) is type(value)


@pytest.mark.parametrize(("parse", "value"), [(parse, value) for parse, values in BAD for value in values])
def test_refuses_what_is_no_quantity(parse, value):
    with pytest.raises(QuantityError) as caught:
        parse(value)
    assert caught.value.rule


@pytest.mark.parametrize(
    ("value", "use"),
    [
        (q.parse_count, (1e9, "1000000000")),
        (q.parse_duration, (30, '"30s"')),
        (q.parse_bytes, ("80gb", '"80GB"')),
    ],
)
def test_the_refusal_says_what_was_meant(value, use):
    with pytest.raises(QuantityError) as caught:
        value(use[0])
    assert caught.value.use == use[1]


@PATIENT
@given(st.floats(min_value=0, max_value=q.LONGEST_S, allow_subnormal=True))
def test_durations_print_bit_exact(seconds):
    assert q.parse_duration(q.print_duration(seconds)) == seconds


@PATIENT
@given(st.floats(min_value=0, max_value=q.FASTEST_BYTES_PER_S))
def test_rates_print_bit_exact(rate):
    assert q.parse_rate(q.print_rate(rate)) == rate


@PATIENT
@given(st.integers(min_value=0, max_value=q.LARGEST))
def test_bytes_print_exact(size):
    assert q.parse_bytes(q.print_bytes(size)) == size


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(900.0, "15min"), (3600.0, "1h"), (5e-6, "5us"), (0.25, "250ms"), (0.0, "0s"), (1.1, "1100ms")],
)
def test_durations_print_short(seconds, text):
    assert q.print_duration(seconds) == text


@pytest.mark.parametrize(
    ("text", "interval"),
    [
        (500, Interval("steps", 500)),
        ("500 steps", Interval("steps", 500)),
        ("500", Interval("steps", 500)),
        ("1 epoch", Interval("epochs", 1.0)),
        ("0.5 epochs", Interval("epochs", 0.5)),
        ("5min", Interval("seconds", 300.0)),
        ("10%", Interval("fraction", 0.1)),
        ("never", NEVER),
    ],
)
def test_intervals(text, interval):
    assert parse_interval(text) == interval


INTERVALS = st.one_of(
    st.just(NEVER),
    st.integers(1, q.LARGEST).map(lambda n: Interval("steps", n)),
    st.floats(0, 1e9, exclude_min=True).map(lambda e: Interval("epochs", e)),
    st.floats(0, q.LONGEST_S, exclude_min=True).map(lambda s: Interval("seconds", s)),
    st.floats(0, 1, exclude_min=True).map(lambda f: Interval("fraction", f)),
)


@PATIENT
@given(INTERVALS)
def test_intervals_print_bit_exact(interval):
    assert parse_interval(str(interval)) == interval


@PATIENT
@given(st.one_of(st.text(), st.integers(), st.floats(), st.booleans(), st.none(), st.lists(st.text())))
def test_no_value_crashes_a_parser(value):
    for parse in (q.parse_count, q.parse_duration, q.parse_bytes, q.parse_rate, parse_interval):
        try:
            parse(value)
        except QuantityError:
            pass
