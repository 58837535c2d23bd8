"""A cluster of one's own: what it costs by hand, and what is not in the cost."""

from __future__ import annotations

from pathlib import Path

import pytest

from paceline.ledger.outcome import Exit, Refused
from paceline.plan import money
from paceline.plan.cluster import Cluster, parse_cluster
from tests.plan.answers import LLAMA, ask, job

FULL = "usd_initial = 1_200_000\nexperiments = 400\nusd_per_kwh = 0.12\nwatts_per_device = 1300\npue = 1.3\n"


def lab(folder: Path, own: str, cluster: str = 'use = "4x8xH100-SXM-80GB"\n') -> Cluster:
    path = folder / "lab.toml"
    path.write_text(f"[cluster]\n{cluster}[own]\n{own}")
    return parse_cluster(str(path))


def test_an_experiment_pays_its_share_and_its_power(tmp_path: Path) -> None:
    """32 devices for 10 hours: 1 200 000 / 400, and 32 × 1.3 kW × 1.3 × 10 h × 0.12."""
    cluster = lab(tmp_path, FULL)
    assert cluster.usd_per_device_hour is None  # not rented
    parts = money.usd_parts(cluster, 10.0, 32, 1e12)
    assert parts == {"initial": 3000.0, "power": pytest.approx(64.896)}
    assert money.usd(cluster, 10.0, 16, 1e12) == pytest.approx(3000 + 64.896 / 2)


def test_over_a_lifetime_the_whole_cluster_ages_while_it_is_taken(tmp_path: Path) -> None:
    own = (
        'usd_initial = 1_000_000\nlifetime = "1000d"\nusd_per_kwh = 0.1\nwatts_per_device = 1000\npue = 1.0\n'
    )
    cluster = lab(tmp_path, own)
    for world in (1, 32):
        parts = money.usd_parts(cluster, 24.0, world, 0.0)
        assert parts["initial"] == pytest.approx(1000.0)  # one day of a thousand
        assert parts["power"] == pytest.approx(24 * 0.1 * world)
    assert not [note for note in money.unknown(cluster) if note.startswith("own.")]


def test_what_is_not_stated_is_said_and_not_counted_as_nothing(tmp_path: Path) -> None:
    no_power = lab(tmp_path, "usd_initial = 100\nexperiments = 2\n")
    assert money.usd_parts(no_power, 1.0, 8, 0.0) == {"initial": 50.0}
    assert any("usd_per_kwh not stated: power is not in the cost" in note for note in money.unknown(no_power))
    power = lab(tmp_path, "usd_per_kwh = 0.2\n")
    assert money.usd_parts(power, 1.0, 8, 0.0) == {"power": pytest.approx(8 * 0.7 * 0.2)}  # H100: 700 W
    said = " ".join(money.unknown(power))
    assert "usd_initial not stated" in said
    assert "700 W a device" in said
    assert "cooling is not" in said
    nothing = lab(tmp_path, "")
    assert money.usd(nothing, 1.0, 8, 0.0) is None


def test_a_plan_on_ones_own_cluster_has_its_parts(tmp_path: Path) -> None:
    found = ask(job(LLAMA), lab(tmp_path, FULL))
    best = found.best
    assert best.hours is not None
    assert best.usd_parts["initial"] == 3000
    power = best.layout.world_size * 1.3 * 1.3 * 0.12 * best.hours[1]
    assert best.usd_parts["power"] == pytest.approx(power)
    assert best.usd == pytest.approx(3000 + power)
    by_cost = ask(job(LLAMA, layout__objective="cost"), lab(tmp_path, FULL))
    assert by_cost.best.layout.world_size == 32  # bought devices are no cheaper idle


def test_a_budget_counts_the_share_and_the_power(tmp_path: Path) -> None:
    cluster = lab(tmp_path, FULL, 'use = "8xH100-SXM-80GB"\n')
    free = ask(job(LLAMA), cluster).best
    assert free.usd is not None
    assert free.hours is not None
    upper = free.usd * free.hours[2] / free.hours[1]
    with pytest.raises(Refused) as caught:
        ask(job(LLAMA, layout__budget_usd=0.5 * free.usd), cluster)
    assert caught.value.exit_code == Exit.DEADLINE
    found = ask(job(LLAMA, layout__budget_usd=1.01 * upper), cluster)
    assert found.best.usd is not None
    assert found.best.usd < 1.01 * upper


@pytest.mark.parametrize(
    ("own", "key", "says"),
    [
        ("usd_initial = 5\n", "own", "spread over nothing known"),
        ('usd_initial = 5\nexperiments = 2\nlifetime = "3d"\n', "own", "spread over nothing known"),
        ("usd_initial = -5\nexperiments = 2\n", "own", "own.usd_initial is not possible"),
        ("pue = 0.5\n", "own", "own.pue is not possible"),
        ("experiments = true\n", "own", "own.experiments is not possible"),
        ('lifetime = "soon"\n', "own", "own.lifetime is not possible"),
        ("watts = 5\n", "own", "own.watts is no key"),
    ],
)
def test_what_is_not_possible_is_refused_by_key(tmp_path: Path, own: str, key: str, says: str) -> None:
    with pytest.raises(Refused) as caught:
        lab(tmp_path, own)
    assert (caught.value.exit_code, caught.value.key) == (Exit.USAGE, key)
    assert says in caught.value.message
    assert caught.value.where.endswith("lab.toml")


def test_rented_and_owned_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="rented and owned"):
        lab(tmp_path, FULL, 'use = "8xB200"\nusd_per_device_hour = 2.0\n')
