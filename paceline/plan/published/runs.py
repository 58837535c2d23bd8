"""A table of measured runs as typed rows. Blank cells are None."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import NoReturn

from paceline.ledger.outcome import Exit, Refused

OPEN = tuple(sorted((Path(__file__).parent / "open").glob("*.csv")))
"""The packaged tables; ``open/README.md`` says where they are from."""


@dataclass(frozen=True)
class Run:
    """One measured run; names are the columns of the table.

    Attributes:
        params_b: parameters in billions. ffn: width of the dense feed-forward. n_gpus, gpus_per_node: accelerators.
        micro_batch: sequences a data rank. global_batch: sequences a step. tokens_per_s_per_gpu: of one
            accelerator. step_time_s: seconds. peak_mem_gb: by ``mem_kind``.
    """

    id: str
    source_id: str
    task: str
    model_kind: str
    model_name: str
    gpu_type: str
    framework: str
    precision: str
    arch_extra: str
    fsdp_or_zero_stage: str
    inter_node_link: str
    recompute: str
    flash_attention: str
    mem_kind: str
    quality: str
    completeness: str
    year: int | None = None
    layers: int | None = None
    hidden: int | None = None
    heads: int | None = None
    kv_heads: int | None = None
    ffn: int | None = None
    vocab: int | None = None
    seq_len: int | None = None
    experts: int | None = None
    topk: int | None = None
    n_gpus: int | None = None
    gpus_per_node: int | None = None
    dp: int | None = None
    tp: int | None = None
    pp: int | None = None
    vpp: int | None = None
    ep: int | None = None
    etp: int | None = None
    cp: int | None = None
    micro_batch: int | None = None
    grad_accum: int | None = None
    global_batch: int | None = None
    global_batch_tokens: int | None = None
    params_b: float | None = None
    tokens_per_s_per_gpu: float | None = None
    step_time_s: float | None = None
    peak_mem_gb: float | None = None


_TYPES = {field.name: field.type for field in fields(Run)}
NEEDED = ("id", "n_gpus", "layers", "hidden", "seq_len", "gpu_type")
"""Columns without which no row says enough."""


MOST = {"layers": 10_000, "n_gpus": 1 << 26, "gpus_per_node": 1 << 16, "experts": 1 << 16}
MOST_OF_ALL = 1 << 50
"""Counts beyond these are slips of the keyboard; 10 000 layers is also the most that a config.json may say."""


def read_runs(paths: Iterable[Path], where: str = "") -> list[Run]:
    """The rows of tables, in order.

    Raises:
        Refused: exit 2, a file that cannot be read, lacks a needed column, repeats an id or has text for a number.
    """
    found: list[Run] = []
    seen: set[str] = set()
    for path in paths:
        for line, row in _rows(path, where):
            run = _run(row, f"{path.name}:{line}", where)
            if run.id in seen:
                _refuse(f"{run.id} is there twice", f"{path.name}:{line}", "every run has its own id", where)
            seen.add(run.id)
            found.append(run)
    return found


def _rows(path: Path, where: str) -> list[tuple[int, Mapping[str, str]]]:
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file)
            names = list(reader.fieldnames or ())
            rows: list[tuple[int, Mapping[str, str]]] = [(reader.line_num, row) for row in reader]
    except OSError as error:  # without its number in brackets, which is for programs
        reason = (
            "there is no such file" if isinstance(error, FileNotFoundError) else error.strerror or str(error)
        )
        _refuse(f"{path} cannot be read as a table", path, reason, where)
    except (UnicodeDecodeError, csv.Error) as error:
        _refuse(f"{path} cannot be read as a table", path, str(error), where)
    missing = [name for name in NEEDED if name not in names]
    if missing and len(names) == 1 and ";" in names[0]:
        _refuse(f"{path.name} is separated by semicolons", names[0], "columns are separated by commas", where)
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        _refuse(f"{path.name} has a column twice", twice[0], "every column has its own name", where)
    if missing:
        _refuse(f"{path.name} lacks columns", ", ".join(missing), f"needed: {', '.join(NEEDED)}", where)
    return rows


def _run(row: Mapping[str, str], place: str, where: str) -> Run:
    values: dict[str, object] = {}
    for name, kind in _TYPES.items():
        text = (row.get(name) or "").strip()
        if kind == "str":
            values[name] = text
        elif text:
            values[name] = _number(name, text, str(kind), place, where)
    if not values["id"]:
        _refuse("a run without an id", place, "every run has its own id", where)
    return Run(**values)  # type: ignore[arg-type]


def _number(name: str, text: str, kind: str, place: str, where: str) -> float | int:
    try:
        value = float(text)
    except ValueError:
        _refuse(f"{name} is not a number", f"{text!r} in {place}", "a number, or blank where unknown", where)
    if not 0 <= value < float("inf"):
        _refuse(f"{name} is not possible", f"{text!r} in {place}", "a number of at least 0, or blank", where)
    if kind.startswith("int"):
        if value > MOST.get(name, MOST_OF_ALL):
            rule = f"at most {MOST.get(name, MOST_OF_ALL):,} {name}"
            _refuse(f"{name} is out of range", f"{text!r} in {place}", rule, where)
        if value != int(value):
            _refuse(
                f"{name} is not a whole number", f"{text!r} in {place}", "a whole number, or blank", where
            )
        return int(value)
    return value


def _refuse(message: str, seen: object, rule: str, where: str) -> NoReturn:
    raise Refused(
        message,
        exit_code=Exit.USAGE,
        key="--score",
        seen=seen,
        rule=rule,
        use="a CSV table with the columns of docs/plan-accuracy.md",
        where=where,
    )
