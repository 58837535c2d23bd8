"""``[run]``: the name of a run and where it lives."""

from __future__ import annotations

from typing import Literal

from pydantic import field_validator

from paceline.job.tables.table import Table, key
from paceline.job.tables.types import Strings


class RunTable(Table):
    """Names, notes and folders. Nothing here can change the mathematics."""

    name: str | None = key(
        None, "name of the run; NAME-2, NAME-3 … when taken", form="str", shown="file stem"
    )
    root: str = key("runs", "folder of runs, relative to the current folder", form="path", min_length=1)
    tags: Strings = key((), "free words, searchable in `runs`", form="list of str")
    note: str = key("", "free text, searchable in `runs`", form="str")
    device: Literal["auto", "cpu", "cuda"] = key("auto", "kind of device; others are refused with the reason")
    scratch: str | None = key(
        None,
        "node-local folder for ledgers and logs of ranks; those named in a fault are copied back",
        form="path",
        arrives="08",
    )

    @field_validator("name")
    @classmethod
    def _name(cls, name: str | None) -> str | None:
        from paceline.ledger.folder import check_run_name

        return check_run_name(name) if name is not None else None
