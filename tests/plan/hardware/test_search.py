"""The real search over small menus: brute force, limits, own against rented."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from paceline.job import Job
from paceline.ledger.outcome import Exit, Refused
from paceline.plan.hardware.menu import parse_menu
from paceline.plan.hardware.search import Hardware, choose_hardware
from paceline.plan.layout import Layout
from paceline.plan.rates import rates
from tests.plan.answers import LLAMA, job

AUTO = Layout(auto=True)


def chosen(menu: str, asked: Job | None = None, prune: bool = True, layout: Layout = AUTO) -> Hardware:
    return choose_hardware(
        asked or job(LLAMA), parse_menu(menu), measured=None, layout=layout, menu=menu, prune=prune
    )


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("objective", ["time", "cost"])
def test_pruning_finds_what_searching_everything_finds(seed: int, objective: str) -> None:
    pick = random.Random(seed)
    shapes = [name for name in rates() if not name.startswith("trn")]
    names = [f"{name}x{pick.choice([1, 2, 4])}" for name in pick.sample(shapes, 5)]
    asked = job(LLAMA, layout__objective=objective)
    quick, slow = chosen(",".join(names), asked), chosen(",".join(names), asked, prune=False)
    assert slow.searched >= quick.searched
    assert quick.chosen == slow.chosen
    real = {row.name: row for row in slow.rows}
    for row in quick.rows:
        if row.word == "pruned" and real[row.name].layout:
            assert row.hours <= real[row.name].hours
            assert (row.usd or 0.0) <= (real[row.name].usd or 0.0)


def test_the_cheapest_within_the_deadline_by_brute_force() -> None:
    """Without the deadline something cheaper and slower is taken."""
    menu = "p5.48xlarge,p4de.24xlarge,a3-highgpu-8g"
    asked = job(LLAMA, layout__objective="cost")
    free = chosen(menu, asked)
    limit_h = free.chosen.hours / 3
    found = chosen(menu, asked.replace({"layout.deadline": f"{limit_h:.3f}h"}), prune=False)
    fitting = [row for row in found.rows if row.word in ("chosen", "fits")]
    assert found.chosen.usd == min(row.usd or 0.0 for row in fitting)
    assert found.chosen.hours < limit_h
    assert (found.chosen.usd or 0.0) > (free.chosen.usd or 0.0)
    late = [row for row in found.rows if row.word == "late"]
    assert free.chosen.name in {row.name for row in late}
    for row in late:
        assert row.needs > limit_h or row.hours > limit_h


def test_rent_by_hand() -> None:
    found = chosen("p5.48xlargex2", job(LLAMA))
    parts = dict(found.chosen.usd_parts)
    assert parts["rent"] == pytest.approx(found.chosen.hours * 2 * 55.04)
    assert found.chosen.usd == pytest.approx(sum(parts.values()))


def test_a_budget_takes_the_fastest_inside_it_and_none_the_cheapest_and_a_tenth() -> None:
    menu = "p5.48xlarge"
    least = chosen(menu, job(LLAMA, layout__objective="cost")).chosen
    plain = chosen(menu).chosen
    assert plain.usd is not None
    assert least.usd is not None
    assert plain.usd <= 1.1 * least.usd
    rich = chosen(menu, job(LLAMA, layout__budget_usd=10 * least.usd)).chosen
    assert rich.hosts > plain.hosts
    assert rich.hours < plain.hours


def lab(folder: Path, experiments: int) -> str:
    path = folder / f"lab{experiments}.toml"
    path.write_text(
        '[cluster]\nuse = "8xH100-SXM-80GB"\n[own]\nusd_initial = 300_000\n'
        f"experiments = {experiments}\nusd_per_kwh = 0.15\nwatts_per_device = 1200\npue = 1.4\n"
    )
    return str(path)


def test_own_is_cheaper_than_the_cloud_from_the_stated_number_of_experiments_on(tmp_path: Path) -> None:
    asked = job(LLAMA, layout__objective="cost")
    few = chosen(f"{lab(tmp_path, 10)},p5.48xlargex1", asked)
    assert few.chosen.name == "p5.48xlargex1"
    (told,) = [note for note in few.notes if "pays from" in note]
    power = few.chosen.hours * 8 * 1.2 * 1.4 * 0.15  # the same machine, the same layout and time
    count = int(told.split("pays from ")[1].split()[0])
    rented = few.chosen.usd or 0.0
    assert 300_000 / count + power <= rented < 300_000 / (count - 1) + power
    assert "10 are stated" in told
    assert chosen(f"{lab(tmp_path, count)},p5.48xlargex1", asked).chosen.offer == lab(tmp_path, count)
    assert chosen(f"{lab(tmp_path, count - 1)},p5.48xlargex1", asked).chosen.name == "p5.48xlargex1"


def test_what_cannot_hold_the_model_is_a_row_and_not_the_answer() -> None:
    found = chosen(
        "Standard_NC96ads_A100_v4x1,g6.48xlargex1,p5.48xlargex1", job(LLAMA, layout__objective="cost")
    )
    assert found.chosen.word == "chosen"
    large = job(LLAMA, model__preset="llama-3.1-70b")
    with pytest.raises(Refused) as caught:
        chosen("g6.48xlargex1,g5.48xlargex1", large)
    assert caught.value.exit_code == Exit.MEMORY
    some = chosen("g6.48xlargex1,p5.48xlargex4", large)
    words = {row.name: row.word for row in some.rows}
    assert words == {"p5.48xlargex4": "chosen", "g6.48xlargex1": "no fit"}


@pytest.mark.parametrize(("key", "value"), [("layout__deadline", "1min"), ("layout__budget_usd", 5.0)])
def test_the_limit_in_the_repair_is_one_that_is_met(key: str, value: object) -> None:
    menu = "p5.48xlargex2,p4d.24xlargex4"
    with pytest.raises(Refused) as caught:
        chosen(menu, job(LLAMA, **{key: value}))
    assert caught.value.exit_code == Exit.DEADLINE
    flag, limit = caught.value.use.split()
    assert flag == {"layout__deadline": "--deadline", "layout__budget_usd": "--budget"}[key]
    number = limit if key == "layout__deadline" else float(limit)
    assert chosen(menu, job(LLAMA, **{key: number})).chosen.word == "chosen"


def test_a_run_of_unknown_length_is_compared_by_a_million_tokens() -> None:
    unknown = job({k: v for k, v in LLAMA.items() if k != "train.steps"})
    found = chosen("p5.48xlargex1,p4de.24xlargex1", unknown)
    assert not found.known
    assert found.to_dict()["of"] == "a million tokens"
    assert set(dict(found.chosen.usd_parts)) == {"rent"}
    known = chosen("p5.48xlargex1", job(LLAMA)).chosen
    tokens = 3000 * 256 * 2048
    each = next(row for row in found.rows if row.name == "p5.48xlargex1")
    assert each.hours * tokens / 1e6 == pytest.approx(known.hours, rel=1e-6)


def test_no_price_is_no_offer() -> None:
    with pytest.raises(Refused, match="no hardware of the list has a price") as caught:
        chosen("8xA800-SXM-80GB,8xH800-SXM-80GB")
    assert caught.value.exit_code == Exit.USAGE
    found = chosen("1x8xA800-SXM-80GB,p5.48xlargex1")
    assert [row.word for row in found.rows] == ["chosen", "no price"]


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"cluster__hosts": 2}, "cluster.hosts"),
        ({"cluster__usd_per_device_hour": 2.0}, "cluster.usd_per_device_hour"),
        ({"layout__objective": "memory"}, "layout.objective"),
    ],
)
def test_what_asks_for_one_cluster_is_refused(changes: dict[str, object], key: str) -> None:
    with pytest.raises(Refused) as caught:
        chosen("aws", job(LLAMA, **changes))
    assert (caught.value.exit_code, caught.value.key) == (Exit.USAGE, key)


def test_a_layout_that_is_asked_for_is_priced_on_each() -> None:
    found = chosen("p5.48xlarge,p4de.24xlarge", layout=Layout.parse("fsdp=16", "--layout"))
    assert {row.hosts for row in found.rows if row.layout} == {2}
    assert found.chosen.layout.startswith("fsdp=16")
