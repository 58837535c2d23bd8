"""The environment as a value: settings, engines, and what engines leave behind."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from paceline.launch.environment import exported, read, refuse_engine_world
from paceline.ledger.outcome import Refused

HOME = {"HOME": "/home/rider"}
TORCHRUN = {
    "TORCHELASTIC_RUN_ID": "x",
    "RANK": "3",
    "WORLD_SIZE": "8",
    "LOCAL_RANK": "3",
    "MASTER_ADDR": "h",
    "MASTER_PORT": "1",
}


def test_defaults_of_an_empty_environment() -> None:
    found = read(HOME)
    assert found.runs_folder == Path("runs")
    assert found.cache_folder == Path("/home/rider/.cache/paceline")
    assert found.config_folder == Path("/home/rider/.config/paceline")
    assert (found.cuda_visible_devices, found.omp_num_threads, found.engine) == (None, None, None)
    assert (found.leftovers, found.unknown, dict(found.shown), dict(found.terminal)) == ((), (), {}, {})


def test_ours_and_the_terminals_are_read() -> None:
    given = {
        **HOME,
        "PACELINE_RUNS": "/data/runs",
        "PACELINE_CACHE": "/data/cache",
        "CUDA_VISIBLE_DEVICES": "",
        "OMP_NUM_THREADS": "4",
        "NO_COLOR": "1",
        "COLUMNS": "80",
        "SECRET_TOKEN": "hush",
    }
    found = read(given)
    assert (found.runs_folder, found.cache_folder) == (Path("/data/runs"), Path("/data/cache"))
    assert (found.cuda_visible_devices, found.omp_num_threads) == ("", 4)
    assert dict(found.terminal) == {"NO_COLOR": "1", "COLUMNS": "80"}
    assert "hush" not in str(found)
    assert set(found.shown) == {"PACELINE_RUNS", "PACELINE_CACHE", "CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS"}


@pytest.mark.parametrize(
    ("xdg", "cache"), [("/x", "/x/paceline"), ("relative", "/home/rider/.cache/paceline")]
)
def test_the_xdg_cache_counts_when_it_is_absolute(xdg: str, cache: str) -> None:
    assert read({**HOME, "XDG_CACHE_HOME": xdg}).cache_folder == Path(cache)


@pytest.mark.parametrize("threads", ["", "0", "many", "-2"])
def test_a_thread_count_that_is_none_is_not_read(threads: str) -> None:
    assert read({**HOME, "OMP_NUM_THREADS": threads}).omp_num_threads is None


def test_unknown_names_of_ours_are_listed() -> None:
    assert read({**HOME, "PACELINE_RUN": "x", "PACELINE_A": "", "PACELINE_RUNS": "r"}).unknown == (
        "PACELINE_A",
        "PACELINE_RUN",
    )


ENGINES = {
    "torchrun": TORCHRUN,
    "slurm": {"SLURM_STEP_ID": "0", "SLURM_PROCID": "3", "SLURM_NTASKS": "8"},
    "mpi": {"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "8"},
    "torch": {"RANK": "3", "WORLD_SIZE": "8", "MASTER_ADDR": "h", "MASTER_PORT": "29500"},
}


@pytest.mark.parametrize("name", ENGINES)
def test_an_engine_with_several_processes_is_refused_by_name(name: str) -> None:
    found = read({**HOME, **ENGINES[name]})
    assert found.engine is not None
    assert (found.engine.name, found.engine.rank, found.engine.world_size) == (name, 3, 8)
    assert found.leftovers == ()
    with pytest.raises(Refused, match="not in this version") as caught:
        refuse_engine_world(found)
    assert caught.value.exit_code == 2
    assert "process 3 of 8" in caught.value.seen


@pytest.mark.parametrize(
    "one",
    [
        {**TORCHRUN, "RANK": "0", "WORLD_SIZE": "1"},
        {"SLURM_STEP_ID": "0", "SLURM_PROCID": "0", "SLURM_NTASKS": "1"},
        {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "8", "SLURM_PROCID": "0"},  # a batch script, not under srun
    ],
)
def test_one_process_is_no_world(one: dict[str, str]) -> None:
    refuse_engine_world(read({**HOME, **one}))


def test_what_an_engine_left_behind_is_named() -> None:
    assert read({**HOME, "RANK": "0", "WORLD_SIZE": "4"}).leftovers == ("RANK", "WORLD_SIZE")
    assert read({**HOME, **TORCHRUN, "WORLD_SIZE": "four"}).engine is None


def test_exported_variables_are_taken_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PL_ONE", "before")
    monkeypatch.delenv("PL_TWO", raising=False)
    with exported({"PL_ONE": "inside", "PL_TWO": "inside"}):
        assert (os.environ["PL_ONE"], os.environ["PL_TWO"]) == ("inside", "inside")
    assert os.environ["PL_ONE"] == "before"
    assert "PL_TWO" not in os.environ


def test_nobody_else_reads_the_environment() -> None:
    package = Path(__file__).parents[2] / "paceline"
    readers = [
        str(path.relative_to(package))
        for path in package.rglob("*.py")
        if re.search(r"\bos\.(environ|getenv)\b", path.read_text())
    ]
    assert readers == ["launch/environment.py"]
