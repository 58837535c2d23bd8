"""``paceline plan --draw``: the schedule of a plan's layout, as text and as a picture."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.ledger.outcome import Exit, Failed

if TYPE_CHECKING:
    from paceline.plan.answer import Plan
    from paceline.plan.layout import Layout
    from paceline.plan.pipeline.clock import Timeline


@dataclass(frozen=True)
class Drawing:
    """One step of a layout with a pipeline. Times are relative: FLOPs of the stages, transfers left out."""

    layout: Layout
    micro_batches: int
    timeline: Timeline

    def text(self, width: int) -> str:
        """One row a place on ``pp``, at most ``width`` columns."""
        from paceline.plan.pipeline.draw import as_text

        return as_text(self.layout, self.timeline, width)

    def write(self, path: Path) -> None:
        """The same as SVG, complete. Raises Failed (55) when it cannot be written."""
        from paceline.plan.pipeline.draw import as_svg

        try:
            path.write_text(as_svg(self.layout, self.timeline), encoding="utf-8")
        except OSError as error:
            raise Failed(
                "the drawing cannot be written",
                exit_code=Exit.STORE,
                key="--draw",
                seen=f"{path}: {error.strerror or error}",
                rule="it is written to the current folder",
                use="paceline plan … --draw, from a folder that is writable",
            ) from error

    def to_dict(self) -> dict[str, Any]:
        """For ``--json``; ``orders`` is a list of actions for each rank, as ``2F0``: stage, kind, micro-batch."""
        return {
            "layout": str(self.layout),
            "micro_batches": self.micro_batches,
            "bubble": self.timeline.bubble,
            "kept_micro_batches": self.timeline.peak_micro_batches,
            "orders": [[str(slot.action) for slot in row] for row in self.timeline.slots],
        }


def drawing(plan: Plan) -> Drawing | None:
    """The schedule of the plan's best layout; None where it has no pipeline."""
    from paceline.plan.cost.terms import micro_batches
    from paceline.plan.pipeline.clock import simulate
    from paceline.plan.stages import stage_layers, stage_units

    layout, work = plan.best.layout, plan.facts.work
    if layout.pp == 1:
        return None
    count = micro_batches(layout, work.global_batch)[1]
    stages = stage_layers(layout, work.widths, work.sequence_length)
    units = stage_units(stages, work.widths, work.sequence_length)
    return Drawing(layout, count, simulate(layout, count, units))


def file_name(plan: Plan) -> Path:
    """Where the picture goes: named after the job and the layout, in the current folder."""
    return Path(f"{plan.facts.name}-{plan.best.layout.slug}.svg")
