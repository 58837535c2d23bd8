"""Where documents come from: ``data.train`` and ``data.eval`` resolved to files, each refusal with its
repair.

A source is a path, a glob, ``python-stdlib``, a list of these, or ``{name = {path, weight}}``.
``python-stdlib`` is the ``.py`` source of the running standard library (``sysconfig``'s ``stdlib``
folder) without ``test``, ``tests`` and ``idle_test`` (distributions leave them out), installed packages
and empty files.
"""

from __future__ import annotations

import difflib
import glob
import os
import re
import stat
import sysconfig
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline.compute.data.patterns import match
from paceline.ledger.outcome import Exit, Refused

STDLIB = "python-stdlib"
BLOCK_BYTES = 64 * 1024
"""A file that is one document is held out by its blocks of this size."""
WHOLE_FILE_BYTES = 4 * 1024 * 1024
"""A text file above this is always read by blocks, so that memory stays bounded."""

_NOT_SOURCE = {"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__"}
_LATER = re.compile(r"^[a-z0-9+.-]+://|\.py:\w+$", re.IGNORECASE)
_BINARY = {".parquet", ".arrow", ".gz", ".zst", ".xz", ".bz2", ".zip", ".tar", ".npz"}
_BINARY |= {".bin", ".pt", ".safetensors"}


@dataclass(frozen=True)
class SourceItem:
    """One entry of a Source: paths under a name; ``weight`` is None where the job gives none."""

    paths: tuple[str, ...]
    name: str = ""
    weight: float | None = None


@dataclass(frozen=True)
class SourceFile:
    """One file to read. ``blocks`` is its hold-out block in bytes, 0 where the whole file is one document."""

    path: str
    kind: str
    """``text``, ``jsonl`` or ``npy``."""
    size_bytes: int
    mtime_ns: int
    group: int
    blocks: int = 0


def as_items(value: Any, key: str = "data.train") -> tuple[SourceItem, ...]:
    """The Source of a job, in any of its spellings, as items. Raises Refused(2) for what is no Source."""
    if isinstance(value, str | os.PathLike):
        return (SourceItem((os.fspath(value),)),)
    if isinstance(value, SourceItem):
        return (value,)
    if isinstance(value, Mapping):
        if "path" in value:
            return (_named("", value, key),)
        return tuple(_named(str(name), entry, key) for name, entry in value.items())
    if hasattr(value, "path"):
        entry = {"path": value.path, "weight": getattr(value, "weight", None)}
        return (_named(getattr(value, "name", "") or "", entry, key),)
    if isinstance(value, Iterable):
        return _merged([item for entry in value for item in as_items(entry, key)])
    raise Refused(
        f"{key} is not a source",
        exit_code=Exit.USAGE,
        key=key,
        seen=repr(value),
        rule="a source is a path, a glob, python-stdlib, a list of these, or {name = {path, weight}}",
        use=f'{key} = "corpus/*.txt"',
    )


def _named(name: str, entry: Any, key: str) -> SourceItem:
    if not isinstance(entry, Mapping):
        return SourceItem(tuple(p for item in as_items(entry, key) for p in item.paths), name)
    paths = tuple(p for item in as_items(entry["path"], key) for p in item.paths)
    weight = entry.get("weight")
    if weight is not None and not 0 < float(weight) < float("inf"):
        raise Refused(
            f"{key}: the weight of source {name!r} must be above zero",
            exit_code=Exit.USAGE,
            key=f"{key}.{name}.weight",
            seen=weight,
            rule="a weight is a finite share above zero; leave a source out instead of giving it none",
            use=f"{key}.{name}.weight = 1.0",
        )
    return SourceItem(paths, name, None if weight is None else float(weight))


def _merged(items: list[SourceItem]) -> tuple[SourceItem, ...]:
    """Unnamed entries of a list are one source; named ones stay apart."""
    plain = tuple(path for item in items if not item.name for path in item.paths)
    named = [item for item in items if item.name]
    return ((SourceItem(plain),) if plain else ()) + tuple(named)


def resolve(
    items: Iterable[SourceItem],
    *,
    key: str = "data.train",
    skip_empty: bool = False,
    hold_out: bool = True,
) -> list[SourceFile]:
    """Every file of the items, in a fixed order, each once; ``group`` is the item's number.

    Args:
        items: the source.
        key: the job's key, for errors.
        skip_empty: leave files of 0 bytes out instead of refusing them.
        hold_out: a part will be held out, so the only file of a source is cut into blocks.

    Raises:
        Refused: 2 for what has not arrived, 20 for a file that is missing, empty, a folder or not readable.
    """
    files: list[SourceFile] = []
    seen: set[tuple[int, str]] = set()  # by the real path: a link to a file is that file
    for group, item in enumerate(items):
        for path in item.paths:
            for found, may_be_empty in _expand(path, key):
                real = os.path.realpath(found)
                if (group, real) not in seen:
                    seen.add((group, real))
                    files.extend(_probe(found, group, key, skip_empty or may_be_empty))
    if not files:
        raise _refused(key, "no document", "the sources hold nothing but empty files", "a source with text")
    return _with_blocks(files, hold_out)


def refuse_same_files(train: list[SourceFile], held_out: list[SourceFile]) -> None:
    """A held-out loss on what was trained on is a wrong result. Raises Refused(20)."""
    trained_on = {os.path.realpath(file.path) for file in train}
    both = [file.path for file in held_out if os.path.realpath(file.path) in trained_on]
    if not both:
        return
    more = f", and {len(both) - 1} more" if len(both) > 1 else ""
    raise Refused(
        "data.eval names files that data.train names, too",
        exit_code=Exit.DATA,
        key="data.eval",
        seen=f"{both[0]}{more}",
        rule="what is held out is not trained on; a share of data.train is held out by a number",
        use="data.eval = 0.05, or files of its own",
        where="data.eval",
    )


def _with_blocks(files: list[SourceFile], hold_out: bool) -> list[SourceFile]:
    """A text file is cut where it is the only file of its source, or too large to be read whole.

    A block is what is held out; neighbouring blocks on the same side are one document again.

    The block is 64 KiB, or a sixteenth of a file below 1 MiB, so that a small file can be held out from, too.
    """
    counts = Counter(file.group for file in files)
    out = []
    for file in files:
        cut = (hold_out and counts[file.group] == 1) or file.size_bytes > WHOLE_FILE_BYTES
        block = min(BLOCK_BYTES, max(8, -(-file.size_bytes // 16))) if cut and file.kind != "jsonl" else 0
        out.append(SourceFile(file.path, file.kind, file.size_bytes, file.mtime_ns, file.group, block))
    return out


def _expand(path: str, key: str) -> list[tuple[str, bool]]:
    """Absolute file names of one entry, sorted, with whether an empty file there is nobody's mistake."""
    if path == STDLIB:
        return [(name, True) for name in stdlib_files()]
    if _LATER.search(path):
        raise Refused(
            f"{key}: this kind of source is not in this version",
            exit_code=Exit.USAGE,
            key=key,
            seen=path,
            rule="URLs, hf:// data sets and Python functions arrive with capability 06",
            allowed="a path, a glob, python-stdlib, a list of these, or {name = {path, weight}}",
            use=f'download it first, then {key} = "corpus/*.txt"',
        )
    full = os.path.abspath(os.path.expanduser(path))
    if os.path.exists(full):
        return [(full, False)]
    if glob.has_magic(path):
        found = sorted(name for name in match(full) if not os.path.isdir(name))
        if not found:
            rule = "a glob must match at least one file (`**` crosses folders)"
            use = _nearest(full) or f'{key} = "corpus/**/*.txt"'
            raise _refused(key, path, rule, use, "no file matches")
        return [(name, False) for name in found]
    use = _nearest(full) or f'{key} = "corpus/*.txt"'
    raise _refused(key, full, "the file must exist", use, "no such file")


def stdlib_files() -> list[str]:
    """The ``.py`` files of the running interpreter's standard library, sorted."""
    root = sysconfig.get_path("stdlib")
    found: list[str] = []
    for folder, subfolders, names in os.walk(root):
        subfolders[:] = sorted(s for s in subfolders if s not in _NOT_SOURCE)
        found.extend(os.path.join(folder, name) for name in sorted(names) if name.endswith(".py"))
    return found


def _probe(path: str, group: int, key: str, may_be_empty: bool) -> list[SourceFile]:
    if os.path.isdir(path):
        use = f'{key} = "{os.path.join(path, "**", "*.txt")}"'
        raise _refused(key, path, "a source is files, not a folder", use, "a folder was given")
    try:
        status = os.stat(path)
        if not stat.S_ISREG(status.st_mode):
            raise OSError("neither a file nor a folder")
        with open(path, "rb"):
            pass
    except OSError as error:
        raise _refused(key, path, "the file must be readable", f"chmod +r {path}", str(error)) from error
    suffix = Path(path).suffix.lower()
    if suffix in _BINARY:
        rule = "read are text files, .jsonl and .npy; compressed and columnar files arrive with capability 06"
        raise _refused(key, path, rule, "unpack it to text, .jsonl or .npy first", f"a {suffix} file")
    if status.st_size == 0:
        if may_be_empty:
            return []
        use = f'delete it, or leave it out of {key}, or data.bad_row = "skip"'
        rule = "a file of 0 bytes is most often a failed copy"
        raise _refused(key, path, rule, use, "an empty file")
    kind = {".jsonl": "jsonl", ".npy": "npy"}.get(suffix, "text")
    return [SourceFile(path, kind, status.st_size, status.st_mtime_ns, group)]


def _nearest(full: str) -> str:
    """The closest existing name in the same folder, as a repair."""
    folder, name = os.path.split(full)
    try:
        near = difflib.get_close_matches(name, os.listdir(folder), n=1, cutoff=0.5)
    except OSError:
        return f"the folder {folder} does not exist either"
    return os.path.join(folder, near[0]) if near else ""


def _refused(key: str, seen: str, rule: str, use: str, what: str = "") -> Refused:
    return Refused(
        f"{what or 'source refused'}: {os.path.basename(seen) or seen}" if what else seen,
        exit_code=Exit.DATA,
        key=key,
        seen=seen,
        rule=rule,
        use=use,
        where=key,
    )
