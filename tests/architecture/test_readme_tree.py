"""The tree in the README is the tree on the disk, both ways, and in the order in which the layers may import."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass

from tests.cli.shell import ROOT

PACKAGE = ROOT / "paceline"
LINE = re.compile(r"^(?P<indent>(?:[│├└─]| )*)(?P<names>[\w./ ·]+?)(?:  +(?P<says>.*))?$")


@dataclass(frozen=True)
class Entry:
    """One name of the tree: its path below the root of the repository, and whether it is shown as a folder."""

    path: str
    is_folder: bool


def tree() -> list[Entry]:
    """The entries of the first fenced block of the README that begins with ``paceline/``, in order."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    block = re.search(r"^```\w*\n(paceline/\n.*?)^```$", text, re.M | re.S)
    assert block is not None, "README.md has no tree that begins with paceline/"
    entries: list[Entry] = []
    above: list[str] = []
    for line in block[1].splitlines():
        match = LINE.match(line)
        assert match is not None, f"not a line of a tree: {line!r}"
        depth = len(match["indent"]) // 4
        names = match["names"].split()
        for name in (n for n in names if n != "·"):
            path = "/".join([*above[:depth], name.rstrip("/")])
            entries.append(Entry(path, name.endswith("/")))
        if names[0].endswith("/"):
            above[depth:] = [names[0].rstrip("/")]
    return entries


def test_what_the_tree_names_exists() -> None:
    wrong = [
        entry.path
        for entry in tree()
        if not ((ROOT / entry.path).is_dir() if entry.is_folder else (ROOT / entry.path).is_file())
    ]
    assert not wrong, f"in the README's tree and not on the disk: {wrong}"


def test_what_is_on_the_disk_is_named() -> None:
    """Every top-level package and file, and every package below one: a new one is a decision that readers see."""
    named = {entry.path for entry in tree()}
    top = {f"paceline/{p.name}" for p in PACKAGE.iterdir() if p.name != "__pycache__"}
    below = {str(p.parent.relative_to(ROOT)) for p in PACKAGE.rglob("__init__.py")}
    below |= {str(p.relative_to(ROOT)) for p in PACKAGE.iterdir() if (p / "__init__.py").exists()}
    assert not (top | below) - named, f"on the disk and not in the tree: {sorted((top | below) - named)}"


def test_the_order_is_that_of_the_import_contract() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]
    layers = next(c["layers"] for c in contracts["contracts"] if c["type"] == "layers")
    level = {name.strip(): i for i, layer in enumerate(reversed(layers)) for name in layer.split("|")}
    order = [
        entry.path.removeprefix("paceline/")
        for entry in tree()
        if entry.path.count("/") == 1 and entry.is_folder
    ]
    assert set(order) == set(level)
    # job and ledger stand first in the order of use: what is asked for, then the facts about it.
    flow = [name for name in order if name not in ("job", "ledger")]
    assert [level[name] for name in flow] == sorted(level[name] for name in flow)
