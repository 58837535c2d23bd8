"""What the run was made from: hashes, versions, hardware, origin of every value of the job."""

from __future__ import annotations

from typing import Any

from paceline.evidence.facts import Facts
from paceline.evidence.page.document import section
from paceline.evidence.page.html import Html, details, facts_list, join, table, tag, value_html
from paceline.ledger.manifest import FIELDS, missing

_SHOWN_APART = ("schema", "origins")
_NAMES = {
    "run_id": "run id",
    "hardware_assumed": "hardware assumed",
    "hardware_found": "hardware found",
    "data_licence": "data licence",
    "data_site": "data site",
    "data_hosts": "hosts that hold raw data",
    "mfu_convention": "MFU convention",
}


def provenance(facts: Facts) -> Html:
    """The manifest, and the resolved job with where each value came from."""
    return section("provenance", "Provenance", tag("div", _manifest(facts), _job(facts), cls="card"))


def _manifest(facts: Facts) -> Html:
    manifest = facts.manifest
    if not manifest:
        return tag("p", "No manifest could be read: what this run was made from is not known.", cls="gap")
    pairs = [
        (_NAMES.get(name, name), stated(manifest.get(name))) for name in FIELDS if name not in _SHOWN_APART
    ]
    absent = missing(manifest)
    gap = tag("p", f"The manifest lacks {', '.join(absent)}.", cls="gap") if absent else None
    return join([facts_list(pairs), gap])


def stated(value: Any) -> Html:
    """A value, with what nobody stated marked at any depth."""
    if value in (None, "not stated"):
        return tag("span", "not stated", cls="gap")
    if isinstance(value, dict) and value:
        return facts_list((name, stated(inner)) for name, inner in value.items())
    return value_html(value)


def _job(facts: Facts) -> Html:
    if not facts.job_keys:
        return tag("p", "job.toml cannot be read.", cls="gap")
    origins = facts.manifest.get("origins")
    known = origins if isinstance(origins, dict) else {}
    rows = [
        (tag("code", key), value_html(value), str(known.get(key, "not stated")))
        for key, value in facts.job_keys.items()
    ]
    return details(f"The resolved job, {len(rows)} keys", table(("key", "value", "origin"), rows))
