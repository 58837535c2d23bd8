"""The job: what the user asks for, whole, checked and frozen."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import tomli_w
from pydantic import ValidationError

from paceline.job.anchors import anchored
from paceline.job.layers import Layer, Merged, checked, placed
from paceline.job.presets import ModelWidths
from paceline.job.refusals import from_validation
from paceline.job.rules import check_controls
from paceline.job.schema import flatten, leaf_of, nest
from paceline.job.sets import from_sets
from paceline.job.sources import SourceItem
from paceline.job.stack import stack
from paceline.job.tables.root import Tables
from paceline.ledger.outcome import Exit, Refused

# What the hash leaves out, and why: it cannot change what is learned, only where, how fast, how safely and
# how visibly. `cluster`, `layout`: a layout never changes the mathematics. `eval`: reading does not train.
NOT_HASHED_TABLES = frozenset(
    {"run", "eval", "cluster", "layout", "checkpoint", "restart", "track", "control", "claim", "limits"}
    | {"rollout", "launch"}
)
# `max_time` ends a run early, it does not change its steps; `deterministic` chooses among roundings.
NOT_HASHED_KEYS = frozenset({"extends", "train.max_time", "train.deterministic"})

# Widths that later versions added count where they say something, so that runs made before keep their identity.
_WIDTHS = list(ModelWidths.__dataclass_fields__.values())
ADDED_WIDTHS = {
    field.name: field.default for field in _WIDTHS[[field.name for field in _WIDTHS].index("norm") :]
}


class Job(Tables):
    """A job file's content. ``Job(data={"train": "input.txt"}, model="tiny", train={"steps": 200})``.

    Raises:
        Refused: a key, type, value or combination that cannot be; code 2, with the repair.
    """

    def __init__(
        self,
        *,
        model: str | Mapping[str, Any] | Callable[..., Any] | None = None,
        loss: Callable[..., Any] | None = None,
        **tables: Any,
    ) -> None:
        if callable(model):
            raise _from_code("model", "a function", 'model.python = "file.py:build"')
        if loss is not None:
            raise _from_code(
                "loss", "a function", "leave loss out: the loss is the mean over valid target tokens"
            )
        if isinstance(model, str):
            model = {"preset": model}
        given = {name: value for name, value in {"model": model, **tables}.items() if value is not None}
        layer = checked(Layer("", dict(flatten(given))))
        merged = Merged()
        merged.lay(layer)
        values = {key: anchored(key, value, Path.cwd()) for key, value in merged.values.items()}
        try:
            super().__init__(**nest(values))
        except ValidationError as error:
            raise from_validation(error) from None
        self._check_together()

    @classmethod
    def load(cls, path: str | Path, *, set: Mapping[str, object] | None = None) -> Job:
        """The job of a file or of a run's folder, over the defaults files, under ``set``."""
        return cls.of(stack(path, set or {}).merged)

    @classmethod
    def of(cls, merged: Merged) -> Job:
        """The job of joined layers; an error names the place of the value that it is about."""
        try:
            return cls(**nest(merged.values))
        except Refused as error:
            where = merged.where(error)
            raise placed(error, where, flag=where == "--set") from None

    def replace(self, dotted: Mapping[str, object]) -> Job:
        """A new job with some keys changed (``{"train.steps": 20}``); None resets a key to its default."""
        merged = Merged(values=self.flat())
        for layer in from_sets(dotted, "Job.replace"):
            merged.lay(layer)
        return Job.of(merged)

    def flat(self) -> dict[str, Any]:
        """Every key that is set or has a default, by its dotted name, as TOML values."""
        return dict(flatten(self.to_dict()))

    def to_dict(self) -> dict[str, Any]:
        """Resolved tables as plain values that TOML and JSON can hold; ``Job(**job.to_dict()) == job``."""
        dumped = self.model_dump(mode="json", exclude_none=True)
        return nest({k: v for k, v in flatten(dumped) if _is_here(k)})

    def to_toml(self) -> str:
        """The resolved job file: every key of this version that has a value."""
        return tomli_w.dumps(self.to_dict())

    def save(self, path: str | Path) -> None:
        """Writes :meth:`to_toml` atomically."""
        from paceline.ledger.atomic import write_text

        write_text(Path(path), self.to_toml())

    def mathematics(self) -> dict[str, Any]:
        """What can change the result: the tables above less ``NOT_HASHED_*``, the model by its widths.

        Sources count by their own name, without the folder they stand in: the same data elsewhere is the same
        job. The content of the data has its own hash, in the run's manifest.
        """
        flat = {
            key: value
            for key, value in self.flat().items()
            if key.partition(".")[0] not in NOT_HASHED_TABLES | {"model"} and key not in NOT_HASHED_KEYS
        }
        for key, value in (("data.train", self.data.train), ("data.eval", self.data.eval)):
            if isinstance(value, tuple):
                flat[key] = [item.portable() for item in value]
        if self.data.tokenizer.endswith(".json"):
            flat["data.tokenizer"] = SourceItem(self.data.tokenizer).portable()["path"]
        flat["model.weights"] = self.model.start
        widths = self.model.widths(1).to_dict()
        for name, default in ADDED_WIDTHS.items():
            if widths[name] == default:
                del widths[name]
        widths["vocab_size"] = self.model.own_vocab_size() or "tokenizer's"
        flat |= {f"model.{name}": value for name, value in widths.items()}
        return flat

    @cached_property
    def hash(self) -> str:
        """SHA-256 of :meth:`mathematics` as canonical JSON (sorted keys, no blanks): ``sha256:…``."""
        text = json.dumps(self.mathematics(), sort_keys=True, separators=(",", ":"), allow_nan=False)
        return "sha256:" + hashlib.sha256(text.encode()).hexdigest()

    def __hash__(self) -> int:
        return hash(self.to_toml())

    def _check_together(self) -> None:
        """Rules between tables."""
        if self.extends is not None:
            raise Refused(
                "extends is a key of a job file",
                exit_code=Exit.USAGE,
                key="extends",
                seen=f'extends = "{self.extends}"',
                rule="it names the file under this file; elsewhere there is no such file",
                use="Job.load(base).replace({…}), or extends in the file",
            )
        check_controls(self.control or {})
        longest = self.model.widths(1).max_position_embeddings
        if self.data.sequence_length > longest:
            raise Refused(
                "data.sequence_length is longer than the model's positions",
                exit_code=Exit.USAGE,
                key="data.sequence_length",
                seen=f"data.sequence_length = {self.data.sequence_length}; {longest} positions",
                rule="data.sequence_length is at most model.max_position_embeddings",
                allowed=f"1 to {longest}",
                use=f"data.sequence_length = {longest}",
            )


def _is_here(name: str) -> bool:
    leaf = leaf_of(name)
    return leaf is not None and not leaf.arrives


def _from_code(name: str, seen: str, use: str) -> Refused:
    return Refused(
        f"{name}= as a function is not in this version",
        exit_code=Exit.USAGE,
        key=name,
        seen=seen,
        rule="what has not arrived is refused, never ignored; this arrives with capability 06",
        use=use,
    )
