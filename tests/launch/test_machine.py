"""The machine, under containers that grant less than the kernel shows."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from paceline.launch.environment import read
from paceline.launch.machine import (
    Device,
    Machine,
    _control_groups,
    cpu_model,
    cpu_quota,
    machine_cluster,
    memory_limit,
    parse_devices,
    platform_note,
    probe,
    refuse_platform,
    visible,
)
from paceline.ledger.outcome import Refused

TABLE = """0, NVIDIA H100 80GB HBM3, 81559, GPU-aaaa
1, NVIDIA H100 80GB HBM3, 81559, GPU-bbbb
2, NVIDIA H100 80GB HBM3, 81559, GPU-bbcc
[N/A], broken, [N/A], x
"""


def test_this_machine_is_found() -> None:
    machine = probe(read())
    assert 1 <= machine.cores <= machine.cores_installed == os.cpu_count()
    assert 1 << 28 < machine.memory_bytes < 1 << 50
    assert machine.cpu_model
    assert machine.host


def test_the_smallest_quota_of_all_groups_counts(tmp_path: Path) -> None:
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    (inner / "cpu.max").write_text("max 100000\n")
    (tmp_path / "a" / "cpu.max").write_text("150000 100000\n")
    (inner / "memory.max").write_text("max\n")
    (tmp_path / "a" / "memory.max").write_text("1073741824\n")
    member = tmp_path / "cgroup"
    member.write_text("0::/a/b\n")
    groups = list(_control_groups(member, tmp_path))
    assert groups == [inner, tmp_path / "a", tmp_path]
    assert cpu_quota(groups) == 1.5
    assert memory_limit(groups) == 1 << 30


def test_version_1_groups_are_read_too(tmp_path: Path) -> None:
    cpu, memory = tmp_path / "cpu,cpuacct" / "box", tmp_path / "memory" / "box"
    for folder in (cpu, memory):
        folder.mkdir(parents=True)
    (cpu / "cpu.cfs_quota_us").write_text("300000\n")
    (cpu / "cpu.cfs_period_us").write_text("100000\n")
    (memory / "memory.limit_in_bytes").write_text("2147483648\n")
    member = tmp_path / "cgroup"
    member.write_text("4:cpu,cpuacct:/box\n7:memory:/box\n")
    groups = list(_control_groups(member, tmp_path))
    assert (cpu_quota(groups), memory_limit(groups)) == (3.0, 1 << 31)


def test_without_limits_there_is_none(tmp_path: Path) -> None:
    assert cpu_quota([tmp_path]) == float("inf")
    assert memory_limit([tmp_path]) == 1 << 62
    assert list(_control_groups(tmp_path / "absent", tmp_path)) == []


def test_devices_are_parsed_and_broken_lines_left_out() -> None:
    devices = parse_devices(TABLE)
    assert [d.index for d in devices] == [0, 1, 2]
    assert devices[0] == Device(0, "NVIDIA H100 80GB HBM3", 81559 << 20, "GPU-aaaa")


@pytest.mark.parametrize(
    ("mask", "shown"),
    [
        (None, [0, 1, 2]),
        ("", []),
        ("2,0", [2, 0]),
        ("GPU-aaaa,1", [0, 1]),
        ("GPU-bb", []),  # two devices begin so
        ("1,7,0", [1]),  # the first invalid entry ends the list, as in the driver
        ("1,1", [1]),
    ],
)
def test_the_mask_is_obeyed(mask: str | None, shown: list[int]) -> None:
    assert [d.index for d in visible(parse_devices(TABLE), mask)] == shown


def test_the_cluster_this_machine_is() -> None:
    machine = Machine("h", "Linux", "AMD EPYC", 6, 8, 1 << 34, tuple(parse_devices(TABLE)))
    cuda = machine_cluster(machine)
    assert (cuda.name, cuda.devices, cuda.accelerator.name) == ("this", 3, "H100-SXM-80GB")
    assert cuda.memory_bytes == 81559 << 20
    assert cuda.visible
    cpu = machine_cluster(machine, "cpu")
    assert (cpu.is_cpu, cpu.devices, cpu.memory_bytes, cpu.cpu_model) == (True, 6, 1 << 34, "AMD EPYC")


@pytest.mark.parametrize("system", ["win32", "cygwin"])
def test_windows_is_refused(system: str) -> None:
    with pytest.raises(Refused, match="Windows is not supported") as caught:
        refuse_platform(system)
    assert caught.value.exit_code == 2


def test_the_command_line_refuses_windows_in_its_first_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from paceline.__main__ import main

    monkeypatch.setattr(sys, "platform", "win32")
    with pytest.raises(SystemExit) as caught:
        main()
    assert caught.value.code == 2
    assert "WSL 2" in capsys.readouterr().err.splitlines()[0]


def test_other_systems_run_and_macos_is_said_to_be_untested() -> None:
    refuse_platform("linux")
    refuse_platform("darwin")
    assert platform_note("linux") == ""
    assert "untested" in platform_note("darwin")


def test_the_cpu_model_is_the_kernels_word(tmp_path: Path) -> None:
    (tmp_path / "cpuinfo").write_text("processor : 0\nmodel name\t: Some  CPU @ 2 GHz\n")
    assert cpu_model(tmp_path / "cpuinfo") == "Some CPU @ 2 GHz"
    assert cpu_model(tmp_path / "absent")
