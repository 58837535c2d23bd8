"""Writes ``docs/job-keys.md`` from the schema: ``python -m tests.architecture.job_keys_page``.

The page is a file and not made on the fly, so that it can be read where the code is read. ``test_docs.py`` holds
it to the schema.
"""

from __future__ import annotations

from itertools import groupby
from pathlib import Path

from paceline.job.describe import KeyRow, keys, other_name_rows

PAGE = Path(__file__).resolve().parents[2] / "docs" / "job-keys.md"

HEAD = """\
# Job keys

Every key of the job file, from the schema itself. Written by `python -m tests.architecture.job_keys_page`; a test
holds it to the code. The same on the command line: `paceline job keys WORD`, and for editors `paceline job schema`.

A key that is marked *not yet* is refused by name; the number is the capability that it arrives with
([overview](0-overview.md#what-is-not-here-yet)). So is a value with such a number behind it.

| type | written as |
|---|---|
| Count | `1000`, `"300k"`, `"10B"` (powers of ten) |
| Duration | `"30s"`, `"5min"`, `"2h"` |
| Bytes | `"80GB"` (10⁹), `"80GiB"` (2³⁰) |
| Rate | `"400Gbit"` or `"50GB"`, a second |
| Interval | `500` or `"500 steps"`, `"1 epoch"`, `"5min"`, `"10%"` of the run, `"never"` |
| Source | path, glob, `"python-stdlib"`, a list of these, or `{name = {path, weight}}` |
"""

FOREIGN = """
## Names of other tools

An unknown key is looked up here first, then by nearest spelling; the refusal says what to write.

| their name | of | write |
|---|---|---|
"""


def page() -> str:
    """The whole page."""
    parts = [HEAD]
    for table, rows in groupby(keys(), key=_table):
        parts.append(f"\n## {table}\n\n| key | type | default | meaning |\n|---|---|---|---|\n")
        parts += [_line(row) for row in rows]
    parts.append(FOREIGN)
    parts += [f"| `{name}` | {of} | {_cell(write)} |\n" for name, of, write in other_name_rows()]
    return "".join(parts)


def _table(row: KeyRow) -> str:
    table = row.key.partition(".")[0]
    return f"`[{table}]`" if "." in row.key else "At the top"


def _line(row: KeyRow) -> str:
    meaning = row.meaning + (f" ({row.unit})" if row.unit else "")
    if row.key == "model.preset":
        meaning += ": " + " ".join(row.values)
    elif any("(" in value for value in row.values):
        meaning += "; " + ", ".join(row.values)
    if row.arrives:
        meaning += f". *Not yet ({row.arrives})*"
    default = "–" if row.default in ("", "–") else f"`{_cell(row.default)}`"
    return f"| `{row.key}` | {_cell(row.form)} | {default} | {_cell(meaning)} |\n"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
