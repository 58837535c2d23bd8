"""Job files and defaults files as layers: read within limits, checked, their paths made absolute."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from pathlib import Path
from shlex import quote

from paceline.job.anchors import anchored
from paceline.job.layers import Layer, checked, placed
from paceline.job.lines import places, shortened
from paceline.job.refusals import wrong_value
from paceline.job.schema import flatten
from paceline.ledger.outcome import Exit, Refused

DEFAULTS_FILES = ("/etc/paceline/defaults.toml", "~/.config/paceline/defaults.toml")
LARGEST_JOB_FILE_BYTES = 1 << 20
DEEPEST_EXTENDS = 16
_HARMLESS_TABLES = ("run", "track", "cluster", "launch", "restart")
_CLUSTER_FILE = {"cluster", "measured", "schema"}
_HARMLESS_KEYS = ("checkpoint.store",)


def from_text(text: str, name: str, base: Path) -> tuple[Layer, str | None]:
    """(layer, ``extends``) of a TOML text that stands in folder ``base``."""
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise _syntax(str(error), name, text) from None
    except (
        ValueError,
        RecursionError,
    ) as error:  # an integer of thousands of digits, brackets by the thousand
        raise _syntax(str(error), name, text) from None
    layer = Layer(name, dict(flatten(document)), places(text))
    extends = layer.values.pop("extends", None)
    if extends is not None and (not isinstance(extends, str) or not extends):
        raise placed(
            wrong_value("extends", extends, "the path of a job file, in quotes"), layer.where("extends")
        )
    layer = checked(layer)
    layer.values = {key: anchored(key, value, base) for key, value in layer.values.items()}
    return layer, extends


def _syntax(message: str, name: str, text: str) -> Refused:
    line = message.partition("(at line ")[2].partition(",")[0]
    number = int(line) if line.isdigit() else text.count("\n") + 1 if "end of document" in message else 1
    lines = text.splitlines()
    seen = lines[number - 1] if 0 < number <= len(lines) else ""
    return Refused(
        f"{name} is not valid TOML",
        exit_code=Exit.USAGE,
        seen=shortened("".join(c if c.isprintable() else " " for c in seen)) or "end of the file",
        rule=shortened(message),
        use="correct the line; text stands in quotes, tables in [brackets]",
        where=f"{name}:{number}",
    )


def read_text(path: Path, name: str, *, where: str = "") -> str:
    """A job file's text: a regular size, UTF-8."""
    try:
        with path.open("rb") as file:
            raw = file.read(LARGEST_JOB_FILE_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise Refused(
            f"{name} cannot be read",
            exit_code=Exit.USAGE,
            seen=f"{name}: {reason}",
            rule="a job is a TOML file, or a run's folder",
            use="paceline job new > job.toml",
            where=where,
        ) from None
    if len(raw) > LARGEST_JOB_FILE_BYTES:
        raise Refused(
            f"{name} is too large for a job file",
            exit_code=Exit.USAGE,
            seen=f"more than {LARGEST_JOB_FILE_BYTES} bytes",
            rule="a job file is settings; data is named by data.train",
            use='data.train = "input.txt"',
        )
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise Refused(
            f"{name} is not UTF-8",
            exit_code=Exit.USAGE,
            seen=f"byte 0x{raw[error.start]:02x} at position {error.start}",
            rule="TOML is UTF-8",
            use="save the file as UTF-8",
            where=f"{name}:{line}",
        ) from None


def read_file(path: Path, name: str) -> list[tuple[Path, Layer]]:
    """The layers of a job file: its chain of ``extends`` from the base up, the file itself last."""
    chain: list[tuple[Path, Layer]] = []
    seen: list[Path] = []
    where = ""
    while True:
        text = read_text(path, name, where=where)
        if not chain:
            _refuse_cluster(text, name)
        resolved = path.resolve()
        if resolved in seen or len(seen) == DEEPEST_EXTENDS:
            raise Refused(
                "extends goes round in a circle" if resolved in seen else "extends is too deep",
                exit_code=Exit.USAGE,
                key="extends",
                seen=" → ".join(p.name for p in [*seen, resolved]),
                rule=f"a chain of base jobs ends, after at most {DEEPEST_EXTENDS}",
                use="leave one extends out",
                where=where,
            )
        seen.append(resolved)
        layer, extends = from_text(text, name, path.parent)
        chain.insert(0, (path, layer))
        if extends is None:
            return chain
        where = layer.where("extends")
        path = path.parent / Path(extends).expanduser()
        name = str(path)


def is_job_file(path: Path) -> bool:
    """Whether a file would be read as a job, so that it may be suggested as one."""
    try:
        text = read_text(path, str(path))
        _refuse_cluster(text, str(path))
        layer, extends = from_text(text, str(path), path.parent)
    except Refused:
        return False
    return extends is not None or any(not key.startswith("cluster.") for key in layer.values)


def _refuse_cluster(text: str, name: str) -> None:
    """Refuse (2) a cluster file in the place of a job: every key has a default, and so it would plan ``tiny``."""
    try:
        tables = tomllib.loads(text)
    except (ValueError, RecursionError):
        return  # told by from_text, with its line
    cluster = tables.get("cluster")
    hardware = isinstance(cluster, dict) and cluster.keys() & {"accelerator", "devices", "hosts"}
    if not tables.keys() <= _CLUSTER_FILE or not (hardware or "measured" in tables):
        return
    raise Refused(
        f"{name} is a cluster file, not a job",
        exit_code=Exit.USAGE,
        key="JOB",
        seen=f"{name}: only {' and '.join(f'[{table}]' for table in sorted(tables))}",
        rule="a job says what is trained; a cluster file, on what it is planned",
        use=f"paceline plan job.toml --cluster {quote(name)}",
    )


def read_defaults(files: Iterable[str | Path]) -> list[Layer]:
    """The defaults files that are there; refused when one holds what can change the mathematics."""
    found = []
    for file in files:
        path = Path(file).expanduser()
        if not path.is_file():
            continue
        layer, extends = from_text(read_text(path, str(path)), str(path), path.parent)
        keys = list(layer.values) + (["extends"] if extends else [])
        for key in keys:
            if key.partition(".")[0] not in _HARMLESS_TABLES and key not in _HARMLESS_KEYS:
                raise Refused(
                    f"{key} cannot stand in a defaults file",
                    exit_code=Exit.USAGE,
                    key=key,
                    seen=f"{key} = {layer.text(key, layer.values.get(key))}",
                    rule="a defaults file may hold only what cannot change the mathematics",
                    allowed=" ".join(f"[{t}]" for t in _HARMLESS_TABLES) + ", checkpoint.store",
                    use=f"move {key} into the job file",
                    where=layer.where(key),
                )
        found.append(layer)
    return found
