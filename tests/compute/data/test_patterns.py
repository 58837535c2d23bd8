"""Globs: as the library's, but a loop of links is walked once."""

from __future__ import annotations

import glob
import os
from pathlib import Path

import pytest

from paceline.compute.data.patterns import match


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name in ("a.txt", "sub/b.txt", "sub/deep/c.txt", ".hidden/d.txt", "sub/.e.txt", "x[1]/f.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("text")
    return tmp_path


@pytest.mark.parametrize(
    "pattern",
    ["*.txt", "**/*.txt", "**", "sub/**", "sub/**/*.txt", "**/deep/*.txt", "s*/**/c.*", "**/**/*.txt"],
)
def test_the_same_files_as_glob(tree: Path, pattern: str) -> None:
    whole = os.path.join(tree, pattern)

    def files(names: list[str]) -> set[str]:
        return {os.path.normpath(name) for name in names if os.path.isfile(name)}

    assert files(match(whole)) == files(glob.glob(whole, recursive=True))


@pytest.mark.drill(48)
def test_a_loop_of_links_is_walked_once(tree: Path) -> None:
    (tree / "sub" / "loop").symlink_to(tree)
    (tree / "sub" / "deep" / "up").symlink_to("..")
    found = sorted(os.path.relpath(name, tree) for name in match(f"{tree}/**/*.txt"))
    assert found == ["a.txt", "sub/b.txt", "sub/deep/c.txt", "x[1]/f.txt"]


def test_a_folder_that_only_a_link_leads_to_is_entered(
    tree: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    other = tmp_path_factory.mktemp("other")
    (other / "g.txt").write_text("text")
    (tree / "first").symlink_to(other)
    (tree / "second").symlink_to(other)
    assert match(f"{tree}/**/g.txt") == [f"{tree}/first/g.txt"]
