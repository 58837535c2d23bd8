"""Where values come from, in the order in which later wins (interface §1), and what each place may say.

built-in default · ``/etc/paceline/defaults.toml`` · ``~/.config/paceline/defaults.toml`` · environment ·
``extends`` · job file · ``--set``. Each place is a :class:`Layer` of flat keys; every value remembers its
place.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from paceline.job.arrivals import arrival_of
from paceline.job.flags import flagged
from paceline.job.lines import Place, shortened
from paceline.job.names import unknown
from paceline.job.refusals import exclusive, not_a_table, not_arrived, wrong_value
from paceline.job.schema import arrival_of_table, is_table, leaf_of, rivals
from paceline.job.words import value_text
from paceline.ledger.outcome import Exit, Refused

DEEPEST = 32


@dataclass
class Layer:
    """Values from one place. ``where`` names a key's origin: ``job.toml:14``, ``--set``."""

    name: str
    values: dict[str, Any]
    places: Mapping[str, Place] = field(default_factory=dict)
    flag: bool = False

    def where(self, key: str) -> str:
        """Origin of ``key``: the file with the line of the key, or of the nearest thing around it."""
        key = key.replace('"', "")
        while key:
            if key in self.places:
                line = self.places[key].line
                return f"{self.name}:{line}" if line else self.name
            key = key.rpartition(".")[0]
        return self.name

    def text(self, key: str, value: object) -> str:
        """The value as it was written."""
        written = self.places[key].text if key in self.places else ""
        return shortened(written) if written and not written.startswith("[[") else value_text(value)


@dataclass
class Merged:
    """All layers joined: flat values, and the origin of each."""

    values: dict[str, Any] = field(default_factory=dict)
    origins: dict[str, str] = field(default_factory=dict)

    def lay(self, layer: Layer) -> None:
        """Put ``layer`` on top; a key of a one-of group clears the others of its group. None resets."""
        for key, value in layer.values.items():
            for other in rivals(key):
                if value is not None:
                    self.drop(other)
            if value is None:
                self.drop(key)
            else:
                self.values[key] = value
                self.origins[key] = layer.where(key)

    def where(self, error: Refused) -> str:
        """Origin of the value that an error is about: its key, what stands around it, or what it mentions."""
        key = error.key
        while key:
            if key in self.origins:
                return self.origins[key]
            key = key.rpartition(".")[0]
        table = error.key.partition(".")[0]
        mentioned = (
            k for k in self.origins if k.startswith(f"{table}.") and k.rpartition(".")[2] in error.seen
        )
        return self.origins.get(next(mentioned, ""), "")

    def drop(self, key: str) -> None:
        """Back to the default."""
        self.values.pop(key, None)
        self.origins.pop(key, None)


def checked(layer: Layer) -> Layer:
    """``layer`` with every key known, arrived, and one of its group; the values are pydantic's to judge."""
    values: dict[str, Any] = {}
    for key, value in layer.values.items():
        if too_deep(key, value):
            raise _too_deep(layer, key)
        where = layer.where(key)
        leaf = leaf_of(key)
        if leaf is None:
            raise _not_a_key(layer, key, value)
        if not _is_unicode(value):
            raise placed(wrong_value(key, value, "text is Unicode, without lone surrogates"), where)
        if value is not None:
            number = arrival_of(leaf, value)
            if number:
                raise placed(not_arrived(key, value, number), where, flag=layer.flag)
            if leaf.arrives:
                continue
        values[key] = value
    for key in values:
        clash = [other for other in rivals(key) if values.get(other) is not None]
        if clash and values[key] is not None:
            raise exclusive([key, *clash], layer.where(key))
    return Layer(layer.name, values, layer.places, layer.flag)


def too_deep(key: str, value: object) -> bool:
    """Whether tables and lists stand in each other deeper than any job needs; found without recursion."""
    level = [value]
    for _ in range(DEEPEST - key.count(".")):
        level = [
            part
            for one in level
            if isinstance(one, Mapping | list | tuple)
            for part in (one.values() if isinstance(one, Mapping) else one)
        ]
        if not level:
            return False
    return True


def _too_deep(layer: Layer, key: str) -> Refused:
    return Refused(
        f"{shortened(key)} is too deep",
        exit_code=Exit.USAGE,
        key=shortened(key),
        seen=f"more than {DEEPEST} tables or lists in each other",
        rule=f"a key and its value have at most {DEEPEST} levels",
        use="paceline job keys",
        where=layer.where(key),
    )


def _is_unicode(value: object) -> bool:
    """False for text that no file can hold."""
    if isinstance(value, str):
        return value.isascii() or not any("\ud800" <= letter <= "\udfff" for letter in value)
    if isinstance(value, Mapping):
        return all(_is_unicode(part) for pair in value.items() for part in pair)
    if isinstance(value, list | tuple):
        return all(_is_unicode(part) for part in value)
    return True


def placed(error: Refused, where: str, *, flag: bool = False) -> Refused:
    """``error`` with the place of the value that it is about."""
    error.where = error.where or where
    if flag:
        error.use = flagged(error.use)
    return error


def _empty_rule(key: str) -> Refused:
    return Refused(
        f"[{key}] says nothing",
        exit_code=Exit.USAGE,
        key=key,
        seen=f"[{key}] is empty",
        rule="a rule has a threshold, above or below, and what it does",
        use=f"[{key}] above = …",
    )


def _not_a_key(layer: Layer, key: str, value: Any) -> Refused:
    where = layer.where(key)
    number = arrival_of_table(key)
    if number and (isinstance(value, Mapping) or key.startswith("control.")):  # [lora] with nothing inside
        return placed(not_arrived(key, value, number), where)
    if key.startswith("control.") and is_table(key) and value == {}:
        return placed(_empty_rule(key), where)
    if is_table(key):
        return placed(not_a_table(key, value), where)
    return unknown(key, layer.text(key, value), where, flag=layer.flag)
