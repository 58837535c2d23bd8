"""What every table of the job file is: a frozen, strict pydantic model whose keys document themselves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel, ConfigDict, Field
from pydantic.fields import FieldInfo

LATER = "later"


class Table(BaseModel):
    """A table of the job file: unknown keys, wrong types, NaN and infinity are refused."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        allow_inf_nan=False,
        defer_build=True,
        protected_namespaces=(),
    )


@dataclass(frozen=True)
class About:
    """What is known of a key beside its type and its meaning.

    Attributes:
        form: the type in the words of interface §3 (``Count``, ``Duration``, ``str`` …); empty for a choice.
        unit: what a number counts, if it counts something.
        arrives: number of the capability that brings the key; empty when it is here.
        later: values that have not arrived, with the capability that brings each.
        shown: the default in words, where it depends on something (``file stem``).
        group: keys of one group exclude one another; setting one clears the others.
    """

    form: str = ""
    unit: str = ""
    arrives: str = ""
    later: Mapping[str, str] = field(default_factory=dict)
    shown: str = ""
    group: str = ""


def key(
    default: Any,
    meaning: str,
    *,
    form: str = "",
    unit: str = "",
    arrives: str = "",
    later: Mapping[str, str] | None = None,
    shown: str = "",
    group: str = "",
    **limits: Any,
) -> Any:
    """One key: default, meaning, and what :class:`About` says. ``limits`` are pydantic's (gt, ge, lt, le)."""
    about = About(form, unit, arrives, later or {}, shown, group)
    return Field(default, description=meaning, json_schema_extra={"about": about}, **limits)  # type: ignore[dict-item]


def about(info: FieldInfo) -> About:
    """The :class:`About` of a field made by :func:`key`."""
    extra = info.json_schema_extra
    found = extra.get("about") if isinstance(extra, dict) else None
    return found if isinstance(found, About) else About()
