"""The pages name what exists: links, headings, commands, options, tests; and the page of keys is the schema's."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

from paceline.cli.surface import BY_NAME, SECTION_SAYS
from tests.architecture.job_keys_page import PAGE, page
from tests.cli.shell import ROOT, paceline

PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
CODE = re.compile(r"^```.*?^```$|`[^`\n]+`", re.M | re.S)
COMMAND = re.compile(r"(?:^|[\s`$])(?<!import )paceline ((?:[a-z]+ ?){1,2})", re.M)
PATH = re.compile(r"\b((?:tests|benchmarks|examples|docs|paceline)/[\w./-]*\w)(?:::(\w+))?")
OURS = {"--version", "--help", "--install-completion", "--show-completion"}


def read(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def anchors(path: Path) -> set[str]:
    """Headings as the anchors that a forge makes of them."""
    heads = re.findall(r"^#+ (.+)$", read(path), re.M)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


@pytest.mark.parametrize("path", PAGES, ids=name)
def test_relative_links_resolve(path: Path) -> None:
    broken = []
    for link in LINK.findall(read(path)):
        if re.match(r"[a-z]+:", link):
            continue
        file, _, anchor = link.partition("#")
        target = (path.parent / file).resolve() if file else path
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    assert not broken


@pytest.mark.parametrize("path", PAGES, ids=name)
def test_commands_exist(path: Path) -> None:
    unknown = []
    for code in CODE.findall(read(path)):
        for words in COMMAND.findall(code):
            first, *rest = words.split()
            both = f"{first} {rest[0]}" if rest else first
            if first in SECTION_SAYS:
                known = both in BY_NAME or (first == "runs") or not rest
            else:
                known = first in BY_NAME
            if not known:
                unknown.append(words)
    assert not unknown


@pytest.mark.parametrize("path", PAGES, ids=name)
def test_options_exist(path: Path) -> None:
    """``paceline plan job.toml --cluster C``: each option of a command line is one of that command's."""
    unknown = []
    for code in CODE.findall(read(path)):
        for line in re.findall(r"(?:^|[`$]) ?paceline ([a-z][^\n`|>#]*)", code, re.M):
            words = line.split()
            if not any(word.startswith("--") for word in words):
                continue
            known = options(" ".join(words[:2]) if " ".join(words[:2]) in BY_NAME else words[0])
            unknown += [f"{line}: {word}" for word in words if word.startswith("--") and word not in known]
    assert not unknown


@cache
def options(command: str) -> frozenset[str]:
    return frozenset(re.findall(r"--[a-z][a-z-]*", paceline(*command.split(), "--help").out)) | OURS


@pytest.mark.parametrize("path", [p for p in PAGES if "log" not in p.parts], ids=name)
def test_files_and_tests_exist(path: Path) -> None:
    """A page that names ``tests/flow/test_resume.py`` or a test in it is wrong once they are gone. The log is dated."""
    missing = []
    for file, test in PATH.findall(read(path)):
        target = ROOT / file
        if "AXIS" not in file and not target.exists():
            missing.append(file)
        elif test and not re.search(rf"def {test}\b", read(target)):
            missing.append(f"{file}::{test}")
    assert not missing


def test_the_page_of_keys_is_the_schemas() -> None:
    assert read(PAGE) == page(), "run: python -m tests.architecture.job_keys_page"


def test_the_torch_of_the_install_line_is_the_pinned_one() -> None:
    """Another version would be replaced by the next line, with CUDA libraries and all."""
    pinned = re.search(r"^torch==(\S+)$", read(ROOT / "constraints.txt"), re.M)
    named = re.search(r"pip install torch==(\S+)", read(ROOT / "README.md"))
    assert pinned is not None
    assert named is not None
    assert named[1] == pinned[1]
