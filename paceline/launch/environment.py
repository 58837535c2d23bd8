"""The environment, read once. Below this file there are values.

Three kinds of variables matter: the ones of Paceline and of the terminal, which are settings; the ones of an
engine (torchrun, srun, mpirun), which say that this process is one of many; and those that an engine left
behind in a shell, which look like the second kind and are not.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from paceline.ledger.outcome import Exit, Refused

OURS = ("PACELINE_RUNS", "PACELINE_CACHE")
TERMINAL = ("NO_COLOR", "FORCE_COLOR", "TERM", "CI", "COLUMNS")
_TORCH = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_LEFT_BEHIND = (*_TORCH, "LOCAL_RANK", "LOCAL_WORLD_SIZE", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID")


@dataclass(frozen=True, slots=True)
class Engine:
    """The engine that started this process, as its variables say.

    Attributes:
        name: torchrun, slurm, mpi, or torch (``RANK`` and its companions, set by hand or by an operator).
        rank, world_size: this process among those that the engine started.
        variables: the names that say so.
    """

    name: str
    rank: int
    world_size: int
    variables: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Environment:
    """What was read.

    Attributes:
        runs_folder: the folder of runs, ``PACELINE_RUNS`` or ``runs``.
        cache_folder: ``PACELINE_CACHE``, else ``paceline`` in the XDG cache.
        config_folder: where the user's ``defaults.toml`` is looked for.
        hub_folder: Hugging Face's cache of the hub: ``HF_HUB_CACHE``, else ``hub`` in ``HF_HOME``. Only read.
        cuda_visible_devices: as set, or ``None``.
        omp_num_threads: a positive number, or ``None``.
        terminal: the variables of :data:`TERMINAL` that are set.
        engine: who started this process, or ``None``.
        leftovers: variables of an engine that do not make a world.
        unknown: names that begin with ``PACELINE_`` and mean nothing.
        shown: every variable that matters and is set, for the manifest. None of them holds a secret.
    """

    runs_folder: Path
    cache_folder: Path
    config_folder: Path
    hub_folder: Path
    cuda_visible_devices: str | None
    omp_num_threads: int | None
    terminal: Mapping[str, str]
    engine: Engine | None
    leftovers: tuple[str, ...]
    unknown: tuple[str, ...]
    shown: Mapping[str, str]


def read(variables: Mapping[str, str] | None = None) -> Environment:
    """The environment of this process (or the one given) as values."""
    given = dict(os.environ if variables is None else variables)
    home = Path(given.get("HOME") or Path.home())
    engine = _engine(given)
    used = engine.variables if engine else ()
    matter = (*OURS, "CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS", *used)
    threads = given.get("OMP_NUM_THREADS", "")
    return Environment(
        runs_folder=Path(given.get("PACELINE_RUNS") or "runs"),
        cache_folder=_folder(given, "PACELINE_CACHE", "XDG_CACHE_HOME", home / ".cache"),
        config_folder=_folder(given, "", "XDG_CONFIG_HOME", home / ".config"),
        hub_folder=_hub(given, home),
        cuda_visible_devices=given.get("CUDA_VISIBLE_DEVICES"),
        omp_num_threads=int(threads) if threads.isdecimal() and int(threads) else None,
        terminal=MappingProxyType({name: given[name] for name in TERMINAL if name in given}),
        engine=engine,
        leftovers=() if engine else tuple(name for name in _LEFT_BEHIND if name in given),
        unknown=tuple(sorted(n for n in given if n.startswith("PACELINE_") and n not in OURS)),
        shown=MappingProxyType({name: given[name] for name in matter if name in given}),
    )


def refuse_engine_world(environment: Environment) -> None:
    """Several processes of one engine would each start a run of their own: refused by name until they are
    one.

    Raises:
        Refused: exit 2, when an engine says that it started more than one process.
    """
    engine = environment.engine
    if engine is None or engine.world_size == 1:
        return
    size = engine.world_size
    raise Refused(
        f"a run under {engine.name} is not in this version (it arrives with the launchers)",
        exit_code=Exit.USAGE,
        seen=f"process {engine.rank} of {size}, by {' '.join(engine.variables)}",
        rule="one `paceline train` starts every rank of its host; an engine starts one of them a host",
        use=f"paceline train JOB --layout fsdp={size}, without {engine.name}"
        if engine.name != "torch"
        else f"unset {' '.join(engine.variables)}",
    )


def for_ranks(threads: int) -> dict[str, str]:
    """What a rank's process must find in its environment before torch is loaded."""
    count = str(threads)
    return {
        "OMP_NUM_THREADS": count,
        "MKL_NUM_THREADS": count,
        "OPENBLAS_NUM_THREADS": count,
        "TORCH_CPP_LOG_LEVEL": "ERROR",
        "CUBLAS_WORKSPACE_CONFIG": ":4096:8",  # cuBLAS is deterministic only with it (train.deterministic)
    }


@contextmanager
def exported(variables: Mapping[str, str]) -> Iterator[None]:
    """Sets variables for the processes started inside, and takes them back."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _folder(given: Mapping[str, str], ours: str, xdg: str, default: Path) -> Path:
    if given.get(ours):
        return Path(given[ours])
    base = Path(given.get(xdg, ""))
    return (base if base.is_absolute() else default) / "paceline"  # XDG: a relative path is to be ignored


def _hub(given: Mapping[str, str], home: Path) -> Path:
    """As ``huggingface_hub`` finds it."""
    if given.get("HF_HUB_CACHE"):
        return Path(given["HF_HUB_CACHE"]).expanduser()
    if given.get("HF_HOME"):
        return Path(given["HF_HOME"]).expanduser() / "hub"
    base = Path(given.get("XDG_CACHE_HOME") or home / ".cache")
    return base / "huggingface" / "hub"


def _engine(given: Mapping[str, str]) -> Engine | None:
    candidates = (
        ("torchrun", "TORCHELASTIC_RUN_ID", "RANK", "WORLD_SIZE"),
        ("slurm", "SLURM_STEP_ID", "SLURM_PROCID", "SLURM_NTASKS"),
        ("mpi", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
        ("mpi", "PMI_RANK", "PMI_RANK", "PMI_SIZE"),
    )
    for name, sign, rank, size in candidates:
        if sign in given and (found := _engine_of(given, name, rank, size)):
            return found
    return _engine_of(given, "torch", *_TORCH[:2]) if all(name in given for name in _TORCH) else None


def _engine_of(given: Mapping[str, str], name: str, rank: str, size: str) -> Engine | None:
    values = given.get(rank, ""), given.get(size, "")
    if not all(value.isdecimal() for value in values) or not int(values[1]):
        return None
    return Engine(name, int(values[0]), int(values[1]), _TORCH if name == "torch" else (rank, size))
