"""What an unknown key was meant to be: the name that another tool has for it, else the nearest spelling."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from paceline.job.flags import flagged
from paceline.job.schema import leaves, table_names
from paceline.ledger.outcome import Exit, Refused

NEAR = 0.6
NEAR_OTHER = 0.85  # of the names of other tools there are many: a misspelt one differs by a letter or two
# A name of another table has to be this much nearer to be what was meant.
NEAR_ELSEWHERE = 0.75


@dataclass(frozen=True)
class OtherName:
    """A key of another tool.

    Attributes:
        name: as that tool writes it.
        of: the tools that have it.
        ours: our key, empty where there is none.
        use: what to write, where it is more than our key with the same value.
        why: the sentence that explains it, where one is needed.
    """

    name: str
    of: str
    ours: str = ""
    use: str = ""
    why: str = ""


@cache
def other_names() -> dict[str, OtherName]:
    """Every name of ``other_names.toml``, folded to lower case."""
    text = Path(__file__).with_name("other_names.toml").read_text(encoding="utf-8")
    document = tomllib.loads(text)
    reasons = document["why"]
    known = {}
    for name, entry in document["name"].items():
        why = reasons[entry["why"]] if "why" in entry else ""
        known[name.lower()] = OtherName(name, entry["of"], entry.get("ours", ""), entry.get("use", ""), why)
    return known


def other_name(key: str) -> OtherName | None:
    """The other tool's key that ``key`` is, looked up whole (``training.steps``) and by its last part."""
    folded = key.strip('"').lstrip("-").replace("-", "_").lower()
    known = other_names()
    return known.get(folded) or known.get(folded.rpartition(".")[2])


def misspelt_other_name(key: str) -> OtherName | None:
    """The other tool's key that ``key`` is but for a letter or two (``learning_rte``)."""
    from difflib import get_close_matches  # 5 ms that only an error needs

    last = key.replace('"', "").lower().rpartition(".")[2]
    near = get_close_matches(last, list(other_names()), 1, NEAR_OTHER)
    return other_names()[near[0]] if near else None


def nearest(key: str) -> str:
    """Our key, or table, that ``key`` most likely is; empty when nothing is near."""
    from difflib import get_close_matches  # 5 ms that only an error needs

    names = list(leaves()) + sorted(table_names())
    key = key.replace('"', "").lower()
    if key in names:
        return key
    last = key.rpartition(".")[2]
    same = [name for name in leaves() if name.rpartition(".")[2] == last]
    if len(same) == 1:
        return same[0]
    if same:
        return get_close_matches(key, same, 1, 0)[0]
    table = key.rpartition(".")[0]
    if table in table_names():
        siblings = {n.rpartition(".")[2]: n for n in names if n.rpartition(".")[0] == table}
        near = get_close_matches(last, list(siblings), 1, NEAR)
        if near:
            return siblings[near[0]]
    elif not table:
        near = get_close_matches(key, [name for name in names if "." not in name], 1, NEAR)
        if near:
            return near[0]
    inner = {name.rpartition(".")[2]: name for name in reversed(names)}
    far = get_close_matches(last, list(inner), 1, NEAR_ELSEWHERE)
    if far:
        return inner[far[0]]
    near = get_close_matches(table.partition(".")[0], list(table_names()), 1, NEAR) if table else []
    return nearest(f"{near[0]}.{last}") if near and near[0] != table else ""


def unknown(key: str, text: str, where: str, *, flag: bool = False) -> Refused:
    """The error for a key that is not ours.

    Args:
        text: its value as written, empty when there is none to show.
        where: file and line, or ``--set``.
        flag: the answer is to be written as ``--set KEY=VALUE``.
    """
    other = other_name(key)
    ours = other.ours if other else nearest(key)
    if not other and not ours and (other := misspelt_other_name(key)):
        ours = other.ours
    use = other.use if other and other.use else _assignment(ours, text, flag)
    if flag:
        use = flagged(use)
    if not use:
        table = key.partition(".")[0]
        use = f"paceline job keys {table}" if table in table_names() else "paceline job keys"
    rule = "keys are strict; "
    if other:
        rule += f"{other.name} is the {_and(other.of)} name" + (f": {other.why}" if other.why else "")
    else:
        rule += f"the nearest is {ours}" if ours else "`paceline job keys` lists them"
    return Refused(
        f"{key} is not a key",
        exit_code=Exit.USAGE,
        key=key,
        seen=_assignment(key, text, flag) or key,
        rule=rule,
        use=use,
        where=where,
    )


def _and(names: str) -> str:
    first, mark, last = names.rpartition(", ")
    return f"{first} and {last}" if mark else names


def _assignment(key: str, text: str, flag: bool) -> str:
    if not key:
        return ""
    if key in table_names():
        return f"[{key}]"
    if flag:
        return f"--set {key}={text}"
    return f"{key} = {text}" if text and not text.startswith("[") else key
