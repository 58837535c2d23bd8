"""Cluster names, shapes and files; the catalogue."""

from __future__ import annotations

from pathlib import Path

import pytest

from paceline.job import Job
from paceline.ledger.outcome import Exit, Refused
from paceline.plan.cluster import CATALOG, catalogue, parse_cluster, shapes, this_cpu, with_keys
from paceline.plan.counted import MOST_DEVICES, MOST_HOSTS
from paceline.plan.search import plan


@pytest.mark.parametrize(
    ("name", "hosts", "devices", "accelerator"),
    [
        ("8xH100-SXM-80GB", 1, 8, "H100-SXM-80GB"),
        ("64x8xH100-SXM-80GB", 64, 8, "H100-SXM-80GB"),
        ("p5.48xlargex4", 4, 8, "H100-SXM-80GB"),
        ("p5.48xlarge", 1, 8, "H100-SXM-80GB"),
        ("4xrtx 4090", 1, 4, "RTX-4090"),
        ("2xMI300X", 1, 2, "MI300X"),
        ("8xL40", 1, 8, "L40S"),
    ],
)
def test_names(name: str, hosts: int, devices: int, accelerator: str) -> None:
    cluster = parse_cluster(name)
    assert (cluster.hosts, cluster.devices, cluster.accelerator.name) == (hosts, devices, accelerator)
    assert cluster.world == hosts * devices


@pytest.mark.parametrize(
    ("name", "words", "use"),
    [
        ("8xH100", "H100-PCIe-80GB, H100-SXM-80GB", "8xH100-SXM-80GB"),
        ("H100", "H100-PCIe-80GB, H100-SXM-80GB", "8xH100-SXM-80GB"),
        ("8xH1000-SXM-80GB", "", "8xH100-SXM-80GB"),
        ("0x8xB200", "", "8xB200"),
        ("8x0xB200", "", "8x1xB200"),
        ("p5.48xlargex0", "", "p5.48xlarge"),
        ("p5.48xlargx0", "", "p5.48xlarge"),
        ("2xp5.48xlarge", "", "p5.48xlargex2"),
        ("0xp5.48xlarge", "", "p5.48xlarge"),
        ("2xB200+A100", "", "2xB200"),
        ("B200", "", "8xB200"),
    ],
)
def test_unclear_names_are_refused_with_the_list(name: str, words: str, use: str) -> None:
    with pytest.raises(Refused) as caught:
        parse_cluster(name, where="job.toml:9")
    assert caught.value.exit_code == Exit.USAGE
    assert caught.value.allowed == words
    assert caught.value.use == f"--cluster {use}"
    assert caught.value.where == "job.toml:9"


NAMES_WRONG_TWICE = (
    "0xH100",
    "0xFoo",
    "0x8xB200+A100",
    "1x0xh100",
    "p5.48xlargex-1",
    "x8xB200",
    "0x8xFoo",
    "2000000xH",
)


@pytest.mark.parametrize("name", NAMES_WRONG_TWICE)
def test_what_is_suggested_is_never_refused_itself(name: str) -> None:
    with pytest.raises(Refused) as caught:
        parse_cluster(name)
    flag, _, use = caught.value.use.partition(" ")
    assert flag == "--cluster"
    assert parse_cluster(use).world > 0


@pytest.mark.parametrize(
    ("name", "use"),
    [
        ("10000000x8xB200", f"{MOST_HOSTS}x8xB200"),
        ("2x1000000xB200", f"2x{MOST_DEVICES}xB200"),
        ("p5.48xlargex" + "9" * 5000, f"p5.48xlargex{MOST_HOSTS}"),
    ],
)
def test_a_limit_of_a_name_is_named_and_short(name: str, use: str) -> None:
    with pytest.raises(Refused) as caught:
        parse_cluster(name)
    assert str(MOST_HOSTS) in caught.value.rule
    assert str(MOST_DEVICES) in caught.value.rule
    assert caught.value.use == f"--cluster {use}"
    assert len(caught.value.message) < 110
    assert len(str(caught.value.seen)) < 80


def test_the_limits_of_a_name_are_those_of_the_keys() -> None:
    assert parse_cluster("1000000x8xB200").hosts == 1_000_000
    for key, most in (("hosts", MOST_HOSTS), ("devices", MOST_DEVICES)):
        Job(cluster={key: most})
        with pytest.raises(Refused):
            Job(cluster={key: most + 1})


def test_every_row_of_the_catalogue_states_where_it_is_from() -> None:
    assert len(catalogue()) >= 41
    for name, sheet in catalogue().items():
        assert sheet.peak_flops, name
        assert sheet.source, name
        assert sheet.usd_per_hour is None or (sheet.price_date and sheet.price_provider), name
        assert name == name.replace(" ", "-")
    for path in CATALOG.glob("*.toml"):
        assert "source_date" in path.read_text(encoding="utf-8"), path


def test_every_shape_is_a_cluster() -> None:
    for shape, host in shapes().items():
        assert parse_cluster(shape).accelerator.name == host.partition("x")[2]


def test_figures_of_a_sheet() -> None:
    cluster = parse_cluster("2x8xH100-SXM-80GB")
    assert cluster.accelerator.peak_flops["bf16"] == pytest.approx(989.4e12)
    assert cluster.link_bytes_per_s == 450e9
    assert cluster.nic_bytes_per_s == 50e9
    assert 79 <= cluster.memory_bytes / 2**30 < 80
    assert [cluster.scope(n) for n in (1, 8, 16)] == ["device", "host", "cluster"]


def test_this_is_what_the_caller_probed() -> None:
    here = this_cpu(4, 8 << 30, "some cpu")
    assert parse_cluster("this", this=here) is here
    assert here.memory_of_rank(4) == 2 << 30
    with pytest.raises(Refused) as caught:
        parse_cluster("this")
    assert caught.value.exit_code == Exit.CLUSTER


def test_a_cluster_file_overrides_its_base_and_carries_its_measurement(tmp_path: Path) -> None:
    file = tmp_path / "lab.toml"
    file.write_text(
        '[cluster]\nuse = "2x4xA100-SXM-80GB"\nmemory = "40GiB"\nlink.inter = "400Gbit"\n'
        "usd_per_device_hour = 1.5\n[measured]\nschema = 1\n",
        encoding="utf-8",
    )
    cluster = parse_cluster(str(file))
    assert cluster.name == "lab"
    assert cluster.memory_bytes == 40 << 30
    assert cluster.nic_bytes_per_s == 50e9
    assert cluster.usd_per_device_hour == 1.5
    assert cluster.measured == {"schema": 1}


@pytest.mark.parametrize("text", ["[cluster", "[clusters]\nuse = 'this'\n"])
def test_a_broken_cluster_file_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "lab.toml"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(Refused) as caught:
        parse_cluster(str(file))
    assert caught.value.exit_code == Exit.USAGE
    with pytest.raises(Refused):
        parse_cluster(str(tmp_path / "absent.toml"))


@pytest.mark.parametrize(
    ("keys", "key"),
    [
        ("hosts = 0", "cluster.hosts"),
        ("hosts = -1", "cluster.hosts"),
        ("hosts = 2.5", "cluster.hosts"),
        ("devices = true", "cluster.devices"),
        ("usd_per_device_hour = -1", "cluster.usd_per_device_hour"),
        ("usd_per_device_hour = nan", "cluster.usd_per_device_hour"),
        ('link.intra = "0GB"', "cluster.link.intra"),
        ('latency.inter = "-1s"', "cluster.latency.inter"),
        ('device_mtbf = "0s"', "cluster.device_mtbf"),
        ("link = 3", "cluster.link"),
        ("memori = 3", "cluster.memori"),
        ('use = "lab.toml"', "cluster.use"),
        ("use = 7", "cluster.use"),
    ],
)
def test_a_files_keys_are_held_to_what_a_jobs_are(tmp_path: Path, keys: str, key: str) -> None:
    file = tmp_path / "lab.toml"
    used = "" if keys.startswith("use") else 'use = "2x8xH100-SXM-80GB"\n'
    file.write_text(f"[cluster]\n{used}{keys}\n", encoding="utf-8")
    with pytest.raises(Refused) as caught:
        parse_cluster(str(file))
    assert (caught.value.exit_code, caught.value.key) == (Exit.USAGE, key)


@pytest.mark.parametrize("text", ["", "[cluster]\n", "[fabric]\npod_hosts = 2\noversubscription = 4\n"])
def test_a_file_that_says_nothing_of_a_cluster_is_not_this_machine(tmp_path: Path, text: str) -> None:
    file = tmp_path / "lab.toml"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(Refused) as caught:
        parse_cluster(str(file), this=this_cpu(4, 8 << 30))
    assert (caught.value.exit_code, caught.value.key) == (Exit.USAGE, "cluster.use")
    file.write_text(caught.value.use, encoding="utf-8")
    assert parse_cluster(str(file)).world == 8


def test_two_hosts_like_this_one_are_not_this_one_and_need_their_link(tmp_path: Path) -> None:
    here, file = this_cpu(4, 8 << 30), tmp_path / "lab.toml"
    file.write_text("[cluster]\nhosts = 2\n", encoding="utf-8")
    with pytest.raises(Refused) as caught:
        parse_cluster(str(file), this=here)
    assert (caught.value.exit_code, caught.value.key) == (Exit.USAGE, "cluster.link.inter")
    file.write_text('[cluster]\nhosts = 2\nlink.inter = "10Gbit"\n', encoding="utf-8")
    two = parse_cluster(str(file), this=here)
    assert (two.hosts, two.devices, two.visible) == (2, 4, False)
    job = Job(model={"preset": "tiny"}, train={"steps": 3}, data={"tokenizer": "bpe:8192"})
    found = plan(job, cluster=two, measured=None)
    assert any("priced as those of one" in text for text in found.assumed)
    file.write_text("[cluster]\nhosts = 1\n", encoding="utf-8")
    assert parse_cluster(str(file), this=here).visible


@pytest.mark.parametrize("use", ["1xH100-SXM-80GB", "8xH100-SXM-80GB", "2x8xH100-SXM-80GB"])
@pytest.mark.parametrize("link", ["intra", "inter"])
@pytest.mark.parametrize("zero", ["0GB", "0Gbit", "0.0GB/s"])
def test_a_link_that_carries_nothing_is_refused_on_every_cluster(
    tmp_path: Path, use: str, link: str, zero: str
) -> None:
    file = tmp_path / "lab.toml"
    file.write_text(f'[cluster]\nuse = "{use}"\nlink.{link} = "{zero}"\n', encoding="utf-8")
    for ask in (lambda: parse_cluster(str(file)), lambda: Job(cluster={"link": {link: zero}})):
        with pytest.raises(Refused) as caught:
            ask()
        assert (caught.value.exit_code, caught.value.key) == (Exit.USAGE, f"cluster.link.{link}")
        assert "leave the key out" in caught.value.rule
        assert caught.value.use == f'cluster.link.{link} = "450GB"'


def test_single_keys_override_a_name() -> None:
    keys = Job().replace({"cluster.hosts": 2, "cluster.accelerator": "B200", "cluster.memory": "1GB"})
    cluster = with_keys(parse_cluster("8xH100-SXM-80GB"), keys.cluster)
    assert (cluster.hosts, cluster.accelerator.name, cluster.memory_bytes) == (2, "B200", 10**9)


def test_a_files_failures_count_as_the_jobs_own(tmp_path: Path) -> None:
    file = tmp_path / "lab.toml"
    file.write_text('[cluster]\nuse = "4x8xH100-SXM-80GB"\ndevice_mtbf = "100h"\n', encoding="utf-8")
    job = Job().replace({"model.preset": "llama-3.2-1b", "train.steps": 3000, "train.global_batch_size": 256})
    told = plan(job, cluster=parse_cluster(str(file)), measured=None, tokens=10**9)
    same = plan(
        job.replace({"cluster.device_mtbf": "100h"}),
        cluster=parse_cluster("4x8xH100-SXM-80GB"),
        measured=None,
        tokens=10**9,
    )
    assert told.best.layout == same.best.layout
    assert told.best.goodput == same.best.goodput < 0.99
