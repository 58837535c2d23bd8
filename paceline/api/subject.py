"""The job that a proof runs: its own model and data in small, clipping active, and where its reference lies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.ledger.outcome import Exit, Refused
from paceline.plan.layout import Layout
from paceline.plan.rules import Facts, Rule, first_broken
from paceline.plan.shrink import Small, runs, shrink
from paceline.recipes.case import Case

if TYPE_CHECKING:
    from paceline.compute.data.prepared import Prepared
    from paceline.job import Job

CLIP = 0.1
"""The norm that a proof clips at, where the job's is not below it: a fresh model's gradients are longer, so it acts."""

HELD_OUT = 16
"""Held-out sequences that are evaluated after the steps."""

COPIES = 6
"""Float64 tensors of each parameter that one device holds at most: weight, gradient, its copy, two moments, truth."""


@dataclass(frozen=True)
class Subject:
    """What is run on every layout.

    Attributes:
        name: of the reference's folder. job: in small. small: its widths, and what was made smaller.
        prepared: folder of the tokens. precision: the job's own, decided. steps: optimizer steps.
        folder: where references are written.
        touch: its rows and ids that differ from the job's, see ``recipes/borders.py``.
        notes: what is met by them and what is not.
    """

    name: str
    job: Job
    small: Small
    prepared: Path
    precision: str
    steps: int
    folder: Path
    touch: dict[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def facts(self) -> Facts:
        """What the rule book looks at."""
        return Facts(
            widths=self.small.widths,
            global_batch=self.job.train.global_batch_size,
            cpu=True,
            optimizer=self.job.optimizer.name,
            sequence_length=self.job.data.sequence_length,
        )

    def refused(self, layout: Layout) -> tuple[Rule, str] | None:
        """The rule that a layout breaks on this model, and how."""
        return first_broken(layout, self.facts)

    def case(self, name: str, layout: Layout, leg: str = "fp64", *, write: bool = False) -> Case:
        """One thing to run; ``write`` for the reference itself."""
        lr = self.job.optimizer.lr
        # In the job's own precision each step starts from the same weights: what is compared is gradients, and weights
        # that have gone apart by rounding would have other ones.
        rates = [lr * n / self.steps if leg == "fp64" else 0.0 for n in range(1, self.steps + 1)]
        reference = str(self.folder / (self.name if leg == "fp64" else f"{self.name}-still"))
        return Case(
            name=name,
            job=self.job.to_dict(),
            widths=self.small.widths.to_dict(),
            layout=str(layout),
            prepared=str(self.prepared),
            precision="fp64" if leg != "job" else self.precision,
            rates=tuple(rates),
            held_out=HELD_OUT if leg == "fp64" else 0,
            leg="fp64" if leg == "fp64" else "job",
            write=reference if write else "",
            against="" if write else reference,
            touch=self.touch,
        )

    def dealt(self, layout: Layout) -> Layout:
        """The layout with a micro-batch: the one given, else one that makes every rank accumulate, as near to that as
        its schedule takes."""
        if layout.mbs is not None or layout.world_size == 0:
            return layout
        batch = self.job.train.global_batch_size
        rows = layout.data_rows(batch)
        wanted = max(1, rows // (2 * layout.stages if layout.pp > 1 else 2))
        near = sorted(range(1, rows + 1), key=lambda mbs: (abs(mbs - wanted), mbs))
        found = next((mbs for mbs in near if runs(layout.replace(mbs=mbs), batch)), wanted)
        return layout.replace(mbs=found)


def subject_of(
    name: str,
    job: Job,
    prepared: Prepared,
    layouts: Sequence[Layout],
    *,
    shrunk: bool,
    precision: str,
    steps: int,
    folder: Path,
    batch: int | None = None,
) -> Subject:
    """The job in small for these layouts (or as it is), on its own data.

    Args:
        batch: sequences a step; None = the job's, made smaller with the rest.

    Raises:
        Refused: 20 when the data is too small for a sequence.
    """
    from paceline.compute.data.batches import refuse_before_start

    widths = job.model.widths(prepared.vocab)
    small = Small(widths, job.data.sequence_length, job.train.global_batch_size)
    if shrunk:
        small = shrink(widths, layouts, small.sequence_length, small.global_batch)
    if batch is not None:
        small = replace(small, global_batch=batch)
    clip = job.optimizer.max_grad_norm
    changes: dict[str, Any] = {
        "data.sequence_length": small.sequence_length,
        "train.global_batch_size": small.global_batch,
        "train.steps": steps,
        "train.epochs": None,
        "train.tokens": None,
        "optimizer.max_grad_norm": min(clip, CLIP) if clip > 0 else CLIP,
    }
    held = job.replace(
        {key: value for key, value in changes.items() if value is not None or _is_set(job, key)}
    )
    refuse_before_start(held, prepared, max(layout.data_degree for layout in layouts))
    subject = Subject(name, held, small, prepared.folder, precision, steps, folder)
    return _met(subject, prepared, layouts)


def _met(subject: Subject, prepared: Prepared, layouts: Sequence[Layout]) -> Subject:
    """The same on rows and ids that meet what these layouts cut."""
    from paceline.compute.data.order import Order
    from paceline.compute.data.packing import PackedSet
    from paceline.recipes.borders import meet

    job = subject.job
    packed = PackedSet(prepared, "train", job.data.sequence_length, job.data.packing)
    order, batch = Order(job.train.seed, packed.rows, packed.groups), job.train.global_batch_size
    met = meet(
        packed,
        [[order.row_at(step * batch + n) for n in range(batch)] for step in range(subject.steps)],
        subject.small.widths.vocab_size,
        prepared.vocab,
        tp={layout.tp for layout in layouts},
        cp={layout.cp for layout in layouts},
    )
    return replace(subject, touch=met.touch.to_dict(), notes=met.notes)


def _is_set(job: Job, key: str) -> bool:
    return key in job.flat()


def refuse_large(subject: Subject, memory_bytes: int, ranks: int) -> None:
    """Refuse (11) a model that does not fit this machine in float64."""
    from paceline.plan.model import parameters

    count = parameters(subject.small.widths).total
    needed = 8 * COPIES * count * (2 if ranks > 1 else 1)
    if needed <= memory_bytes:
        return
    raise Refused(
        "the model does not fit this machine in float64",
        exit_code=Exit.MEMORY,
        key="--shrink",
        seen=f"{count / 1e9:.2f} B parameters, {needed / 2**30:.0f} GiB of {memory_bytes / 2**30:.0f}",
        rule=f"a proof holds {COPIES} float64 tensors of every parameter, of one device and of the layout",
        use="--shrink auto",
    )


def renamed(subject: Subject, name: str) -> Subject:
    """The same under another name, with a reference of its own."""
    return replace(subject, name=name)
