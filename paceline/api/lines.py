"""A run's messages as plain lines, ``key=value`` (interface §10): no terminal, notebooks, console.log.

One line at step 1, then every ``track.every``, every evaluation and event, and whatever a run says of itself.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from statistics import median
from typing import Any

from paceline.ledger.outcome import LONGEST_REPAIR, printable
from paceline.ledger.plural import many

Message = Mapping[str, Any]

# What a train line shows, in this order, and how; a key that a row lacks is left out.
TRAIN_FORMATS = {
    "loss": "{:.4f}",
    "grad_norm": "{:.2f}",
    "lr": "{:.2e}",
    "tokens_per_s": "{:.0f}",
    "mfu": "{:.3f}",
    "memory_gib": "{:.1f}",
    "exposed_communication": "{:.2f}",
}
EVAL_FORMATS = {"loss": "{:.4f}", "bits_per_byte": "{:.4f}", "perplexity": "{:.4g}", "tokens": "{:.0f}"}
STAGE_EVERY_S = 10.0
_ROW_KEYS = ("kind", "attempt", "time_s", "schema")


class Progress:
    """What is known of a run from the messages so far: the step, how many there are, the time left."""

    def __init__(self, steps: int = 0) -> None:
        self.steps = steps
        self.step = 0
        self.row: dict[str, Any] = {}
        self.preparing: dict[str, Any] = {}
        self._times: deque[float] = deque(maxlen=20)

    def take(self, message: Message) -> None:
        """Notes how far the preparation is, a ``train`` row, and ``steps`` wherever it is said."""
        if message.get("steps"):
            self.steps = int(message["steps"])
        if message.get("kind") == "preparing":
            self.preparing = dict(message)
        if message.get("kind") == "train":
            self.step = int(message.get("step", self.step))
            self.row = dict(message)
            if message.get("step_time_s"):
                self._times.append(float(message["step_time_s"]))

    @property
    def left_s(self) -> float | None:
        """Steps left times the median of the last 20 steps; None until both are known."""
        if not self.steps or not self._times:
            return None
        return max(0, self.steps - self.step) * median(self._times)


class PlainLines:
    """Messages to lines.

    Args:
        steps: the steps of the run, where known before the first message.
        every: the kind and value of ``track.every``.
        clock: monotonic seconds. now: the time that a line begins with.
    """

    def __init__(
        self,
        *,
        steps: int = 0,
        every: tuple[str, float] = ("seconds", 10.0),
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self.progress = Progress(steps)
        self._every, self._clock, self._now = every, clock, now
        self._shown_at: float | None = None
        self._shown_row: dict[str, Any] = {}
        self._stage = ("", 0.0)

    def line(self, message: Message) -> str | None:
        """The line for a message, or None where none is due."""
        self.progress.take(message)
        kind = message.get("kind")
        if kind == "train":
            return self._stamp("train", self._train(message)) if self._due(message) else None
        if kind == "eval":
            return self._stamp("eval", _pairs(message, EVAL_FORMATS, self._step(message)))
        if kind in ("event", "round"):
            return self._stamp(str(kind), _pairs(message, {}, self._step(message)))
        if kind == "preparing":
            return self._stamp("data", preparing_text(message)) if self._new_stage(message) else None
        if kind == "say":
            return self._stamp(str(message.get("field", "")), str(message.get("text", "")))
        return None

    def _new_stage(self, message: Message) -> bool:
        """A line when a stage of the preparation begins, and every ten seconds of a long one."""
        now, stage = self._clock(), str(message.get("stage", ""))
        before, since = self._stage
        if stage == before and now - since < STAGE_EVERY_S:
            return False
        self._stage = (stage, now)
        return True

    def _due(self, row: Message) -> bool:
        now, before = self._clock(), self._shown_row
        kind, value = self._every
        step = int(row.get("step", 0))
        if self._shown_at is None or step == self.progress.steps:
            due = True
        elif kind == "seconds":
            due = now - self._shown_at >= value
        elif kind == "never" or value <= 0:
            due = False
        else:
            size = {"steps": value, "fraction": max(1.0, value * self.progress.steps)}.get(kind, value)
            name = "epoch" if kind == "epochs" else "step"
            due = row.get(name, 0) // size > before.get(name, 0) // size
        if due:
            self._shown_at, self._shown_row = now, dict(row)
        return due

    def _train(self, row: Message) -> str:
        text = _pairs({k: row[k] for k in TRAIN_FORMATS if k in row}, TRAIN_FORMATS, self._step(row))
        left_s = self.progress.left_s
        return text if left_s is None else f"{text} eta={clock_text(left_s)}"

    def _step(self, row: Message) -> str:
        total = f"/{self.progress.steps}" if self.progress.steps and row.get("kind") == "train" else ""
        return f"step={row.get('step', 0)}{total}"

    def _stamp(self, word: str, text: str) -> str:
        return f"{self._now():%Y-%m-%dT%H:%M:%SZ} {printable(f'{word:<5} {text}', LONGEST_REPAIR)}"


def clock_text(seconds: float) -> str:
    """``0:33``, ``1:24``, ``2:05:09``."""
    whole = round(seconds)
    hours, minutes = divmod(whole // 60, 60)
    if hours:
        return f"{hours}:{minutes:02d}:{whole % 60:02d}"
    return f"{minutes}:{whole % 60:02d}"


def preparing_text(message: Message) -> str:
    """``tokenise 45 %, 812 documents``."""
    done, total = float(message.get("done_bytes") or 0), float(message.get("total_bytes") or 0)
    share = f" {100 * done / total:.0f} %" if total else ""
    count = message.get("documents")
    return f"{message.get('stage', 'preparing')}{share}" + (f", {many(count, 'document')}" if count else "")


def _pairs(row: Message, formats: Mapping[str, str], first: str) -> str:
    parts = [first]
    for key, value in _flat(row):
        if key in _ROW_KEYS or key == "step" or value is None:
            continue
        if isinstance(value, int | float) and key in formats:
            text = formats[key].format(value)
        elif isinstance(value, float):
            text = f"{value:.6g}"
        else:
            text = str(value)
        parts.append(f"{key}={_quoted(text)}")
    return " ".join(parts)


def _flat(row: Message) -> Iterator[tuple[str, Any]]:
    """A table inside a row (an event's ``detail``) gives its own pairs."""
    for key, value in row.items():
        if isinstance(value, Mapping):
            yield from value.items()
        else:
            yield key, value


def _quoted(text: str) -> str:
    if text and not any(c.isspace() or c in "\"'=" for c in text):
        return text
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'
