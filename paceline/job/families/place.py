"""``model.hf`` → the ``config.json`` on this machine: a file, its folder, or a hub id in Hugging Face's cache."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from paceline.ledger.outcome import Exit, Refused

FILE = "config.json"
LARGEST_BYTES = 1 << 24
DEEPEST = 32
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*(@[\w./-]+)?")


def is_hub_id(word: str) -> bool:
    """Whether the text has the form ORG/NAME[@REV]."""
    return bool(_HUB_ID.fullmatch(word)) and not word.endswith(".json")


def default_hub() -> Path:
    """Where Hugging Face's libraries keep what they downloaded, unless a variable says otherwise."""
    return Path.home() / ".cache" / "huggingface" / "hub"


def in_hub(word: str, hub: Path) -> Path | None:
    """The ``config.json`` of a hub id in the cache folder ``hub``; None when it is not there.

    The layout is the one of ``huggingface_hub``: ``models--ORG--NAME/refs/REV`` names a folder of ``snapshots``.
    """
    name, _, revision = word.partition("@")
    folder = hub / f"models--{name.replace('/', '--')}"
    reference = folder / "refs" / (revision or "main")
    try:
        commit = reference.read_text(encoding="utf-8").strip() if reference.is_file() else revision
        if commit:
            found = folder / "snapshots" / commit / FILE
            return found if found.is_file() else None
        kept = sorted(folder.glob(f"snapshots/*/{FILE}"), key=lambda path: path.stat().st_mtime)
    except (OSError, ValueError):
        return None
    return kept[-1] if kept else None


def config_file(word: str, hub: Path | None = None) -> Path:
    """The file that ``model.hf`` names.

    Raises:
        Refused: 2; nothing is there, with what brings it.
    """
    path = Path(word)
    if path.is_dir():
        if (path / FILE).is_file():
            return path / FILE
        raise _refused(word, f"{word} has no {FILE}", "a Hugging Face folder has its model's config.json")
    if path.is_file():
        return path
    if is_hub_id(word):
        found = in_hub(word, hub or default_hub())
        if found is not None:
            return found
        raise _not_cached(word)
    raise _refused(
        word, f"there is no {word}", "a path to a config.json or its folder, or a hub id ORG/NAME[@REV]"
    )


def name_of(word: str) -> str:
    """A short name for what ``model.hf`` names: the hub id of a cached file, else its folder."""
    path = Path(word)
    for part in reversed(path.parts):
        if part.startswith("models--"):
            return part.removeprefix("models--").replace("--", "/")
    if path.suffix == ".json":
        path = path.parent if path.name == FILE and path.parent.name else path.with_suffix("")
    return path.name or word


def read_config(file: Path) -> Mapping[str, Any]:
    """The object in the file; read again only when the file has changed.

    Raises:
        Refused: 2; it cannot be read, or is no JSON object.
    """
    try:
        stat = file.stat()
    except OSError as error:
        raise _refused(str(file), f"{file} cannot be read: {error.strerror}", "a JSON file") from None
    return _read(file, stat.st_mtime_ns, stat.st_size)


@lru_cache(maxsize=64)
def _read(file: Path, changed_ns: int, size: int) -> Mapping[str, Any]:
    if size > LARGEST_BYTES:
        raise _refused(str(file), f"{file} has {size} bytes", f"a config has at most {LARGEST_BYTES} bytes")
    try:
        given = json.loads(file.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise _refused(str(file), f"{file} cannot be read: {error.strerror}", "a JSON file") from None
    except (ValueError, RecursionError) as error:
        raise _refused(str(file), f"{file} is not valid JSON", str(error)[:100]) from None
    if not isinstance(given, Mapping):
        raise _refused(
            str(file), f"{file} holds no object", "a config is a JSON object: names and values in braces"
        )
    return given


def _not_cached(word: str) -> Refused:
    name, _, revision = word.partition("@")
    there = f"huggingface.co/{name}/raw/{revision or 'main'}/{FILE}"
    get = f"hf download {name} {FILE}" + (f" --revision {revision}" if revision else "")
    return Refused(
        f"model.hf: {word} is not on this machine",
        exit_code=Exit.USAGE,
        key="model.hf",
        seen=f'model.hf = "{word}"; no folder of that name, and not in the Hugging Face cache',
        rule="a plan reads config.json only, and never the network",
        allowed="a folder with config.json, the file itself, or a hub id that the cache has",
        use=f"{get}, or save https://{there} and set model.hf to the file",
    )


def _refused(word: str, message: str, rule: str) -> Refused:
    return Refused(
        f"model.hf: {message}",
        exit_code=Exit.USAGE,
        key="model.hf",
        seen=f'model.hf = "{word}"',
        rule=rule,
        use='model.hf = "FOLDER/config.json"',
    )
