"""What may change when a run is resumed (interface §1): freely, with ``--allow-change``, or never."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from paceline.job.job import Job
from paceline.job.names import nearest
from paceline.job.presets import ModelWidths
from paceline.job.schema import is_table, leaf_of, leaves
from paceline.job.words import value_text
from paceline.ledger.outcome import Exit, Refused

Rule = Literal["free", "schedule", "moved", "allowed"]
_FREE_TABLES = frozenset(
    {"layout", "cluster", "eval", "checkpoint", "restart", "track", "run", "control"}
    | {"limits", "rollout", "launch", "claim"}
)
_FREE_KEYS = frozenset({"train.max_time", "train.deterministic"})
_SCHEDULE = frozenset({"train.steps", "train.epochs", "train.tokens"})
# `auto` in a job that is resumed means what the run has resolved it to.
_AUTO = frozenset({"train.precision", "layout.use", "run.device"})


@dataclass(frozen=True)
class Change:
    """One key that differs: values as they stand in TOML (None: not set), and the rule that lets it pass.

    ``free``: cannot change the mathematics. ``schedule``: the schedule is recomputed over the new length.
    ``moved``: the same data in another folder. ``allowed``: by ``--allow-change``.
    """

    key: str
    old: Any
    new: Any
    rule: Rule

    def __str__(self) -> str:
        said = {
            "free": "",
            "schedule": "  (schedule recomputed)",
            "moved": "  (same name, other folder)",
            "allowed": "  (by --allow-change)",
        }
        return f"{self.key}: {_text(self.old)} → {_text(self.new)}{said[self.rule]}"


def judge_resume(old: Job, new: Job, allow: Iterable[str] = ()) -> list[Change]:
    """Every change from the run's job to the one it is resumed with.

    Args:
        old: the run's resolved job.
        new: the job now asked for.
        allow: keys or tables of ``--allow-change`` (``optimizer.lr``, ``data``, ``data.*``).

    Raises:
        Refused: 54 for a change of the model's shape, or one that ``allow`` does not name; 2 for an ``allow``
            that is no key, or never a change that can be allowed.
    """
    allowed = [_allow(name) for name in allow]
    _same_shape(old, new)
    before, after = old.flat(), new.flat()
    changes = []
    for key in leaves():
        was, now = before.get(key), after.get(key)
        if was == now or (key in _AUTO and now == "auto"):
            continue
        if key.startswith("model.") and key not in ("model.weights", "model.freeze"):
            continue  # another spelling of the same shape
        changes.append(Change(key, was, now, _judge(key, old, new, allowed)))
    refused = [c for c in changes if c.rule == "allowed" and not _covers(allowed, c.key)]
    if refused:
        raise _needs_permission(refused)
    return changes


def _judge(key: str, old: Job, new: Job, allowed: list[str]) -> Rule:
    if key.partition(".")[0] in _FREE_TABLES or key in _FREE_KEYS:
        return "free"
    if key in _SCHEDULE:
        return "schedule"
    same = old.mathematics().get(key) == new.mathematics().get(key)
    if key in ("data.train", "data.eval", "data.tokenizer") and same:
        return "moved"
    return "allowed"


def _covers(allowed: list[str], key: str) -> bool:
    return any(key == name or key.startswith(name + ".") for name in allowed)


def _allow(name: str) -> str:
    """A key or table of ``--allow-change``, checked."""
    plain = name.strip().removesuffix(".*")
    if leaf_of(plain) is None and not is_table(plain):
        near = nearest(plain)
        raise Refused(
            f"--allow-change: {name} is not a key",
            exit_code=Exit.USAGE,
            key=name,
            seen=f"--allow-change {name}",
            rule="it takes a key of the job file, or a table",
            use=f"--allow-change {near}" if near else "paceline job keys",
        )
    if plain.partition(".")[0] == "model" and plain not in ("model.weights", "model.freeze"):
        raise Refused(
            "--allow-change: the model's shape never changes",
            exit_code=Exit.USAGE,
            key=name,
            seen=f"--allow-change {name}",
            rule="a checkpoint fits one shape only",
            use="train another shape under another --name",
        )
    return plain


def _same_shape(old: Job, new: Job) -> None:
    was, now = old.model.widths(1), new.model.widths(1)
    for name in ModelWidths.__dataclass_fields__:
        before, after = getattr(was, name), getattr(now, name)
        if name == "vocab_size":
            before, after = old.model.own_vocab_size(), new.model.own_vocab_size()
        if before != after:
            raise Refused(
                f"model.{name} differs from the run's",
                exit_code=Exit.MISMATCH,
                key=f"model.{name}",
                seen=f"{_text(before)} in the run, {_text(after)} in the job",
                rule="the model's shape never changes on resume",
                allowed=f"model.{name} = {_text(before)}",
                use="leave --resume out, which starts a new run",
            )


def _needs_permission(refused: list[Change]) -> Refused:
    first = refused[0]
    seen = "\n".join(f"{c.key}: {_text(c.old)} in the run, {_text(c.new)} in the job" for c in refused)
    return Refused(
        f"{first.key} differs from the run's",
        exit_code=Exit.MISMATCH,
        key=first.key,
        seen=seen,
        rule="it changes the mathematics, so a resumed run keeps it unless it is allowed by name",
        allowed="free: layout, cluster, device, length, [eval] [checkpoint] [restart] [track] [run]",
        use=" ".join(f"--allow-change {change.key}" for change in refused),
    )


def _text(value: Any) -> str:
    return "not set" if value is None else value_text(value)
