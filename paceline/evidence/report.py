"""``report.html``: one page that explains a run, from its folder alone.

Self-contained: style, script and drawings are inside it, and its content policy forbids any request. It is
made for runs that went well and for runs that died half-way; what cannot be read shows as a gap.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from paceline.evidence.facts import Facts
from paceline.evidence.page.document import KINDS, kind, page, section
from paceline.evidence.page.html import Html, join, tag
from paceline.evidence.sections.head import head
from paceline.evidence.sections.learning import learning, speed
from paceline.evidence.sections.phases import checkpoints_section, phases_section
from paceline.evidence.sections.plan import plan_section
from paceline.evidence.sections.provenance import provenance
from paceline.evidence.sections.time import time_section
from paceline.ledger.atomic import write_text
from paceline.ledger.folder import RunFolder

UNSHOWN = "The run's files hold something that cannot be shown here"
SECTIONS = (
    ("learning", "Learning", learning),
    ("speed", "Speed", speed),
    ("time", "Time", time_section),
    ("plan", "Plan", plan_section),
    ("phases", "Phases", phases_section),
    ("checkpoints", "Checkpoints", checkpoints_section),
    ("provenance", "Provenance", provenance),
)


def write_report(folder: RunFolder) -> Path:
    """Writes ``report.html`` and returns its path. Missing and torn files are explained, never fatal."""
    write_text(folder.report, report_html(Facts(folder)))
    return folder.report


def report_html(facts: Facts) -> str:
    """The page as text."""
    made = [(anchor, word, _part(build, facts, anchor, word)) for anchor, word, build in SECTIONS]
    top = _part(head, facts, "head", facts.name)
    return page(f"{facts.name} · Paceline report", top, made, _part(_foot, facts, "foot", "Written"))


def _part(build: Callable[[Facts], Html], facts: Facts, anchor: str, title: str) -> Html:
    """A part of the page, or what kept it from being made: a run whose files are damaged is explained too."""
    try:
        return build(facts)
    except Exception as error:
        what = f"{UNSHOWN} ({type(error).__name__}: {str(error)[:200]})."
        return section(anchor, title, tag("p", what, cls="gap"))


def _foot(facts: Facts) -> Html:
    versions = facts.manifest.get("versions")
    version = versions.get("paceline", "") if isinstance(versions, dict) else ""
    when = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
    return tag(
        "div",
        tag("p", "Kinds of evidence: ", join([kind(k) for k in KINDS], " ")),
        tag(
            "p",
            f"Written {when} by Paceline {version} from the run's folder. Again: ",
            tag("code", f"paceline report {facts.folder.path.name}"),
        ),
    )
