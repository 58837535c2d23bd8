"""``paceline checkpoint reshard``: a checkpoint written anew for another layout, in this process alone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

from paceline.api.load import locate
from paceline.api.runs import Run
from paceline.ledger.folder import RunFolder
from paceline.ledger.lock import Lock
from paceline.ledger.outcome import Exit, Refused

if TYPE_CHECKING:
    from paceline.job import Job
    from paceline.job.presets import ModelWidths
    from paceline.plan.layout import Layout
    from paceline.recover.manifest import Manifest


@dataclass(frozen=True)
class Place:
    """A folder of checkpoints outside a run, as what has a lock."""

    path: Path

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def lock(self) -> Path:
        return self.path / ".lock"


def reshard(run: Run | str | Path = "last", *, layout: str, out: str | Path | None = None) -> dict[str, Any]:
    """Write a checkpoint with the shards that a run of ``layout`` would have saved of the same state, byte for byte.

    Memory is bounded by the largest row of a tensor, not by the model; every byte read is compared with its hash, and
    what is written is read back.

    Args:
        run: a run, its name or folder, ``RUN@STEP``, or a checkpoint's folder inside a run.
        layout: closed, as ``layout.use``.
        out: a folder of checkpoints to write into; None = in the checkpoint's own place.

    Returns:
        ``path step layout ranks bytes was latest``.

    Raises:
        Refused: (2, 10) the layout breaks a rule; (52) no such checkpoint; (54) it is not of the run's model, or the
            step in ``out`` is another run's; (56) the run is being trained.
        Failed: (53) a byte is not what was written; (55) the store is full, read-only or gone.
    """
    from paceline.recover.checkpoint import open_manifest

    step_dir, found = locate(run)
    with _writable(found.folder, step_dir, out) as into:
        table = open_manifest(step_dir)
        job = found.job
        widths = widths_of(job, table, step_dir)
        closed = closed_layout(job, widths, layout)
        return _write(step_dir, into, job, widths, closed, table)


def _write(
    step_dir: Path, into: Path, job: Job, widths: ModelWidths, layout: Layout, table: Manifest
) -> dict[str, Any]:
    from paceline.recipes.holdings import Holdings
    from paceline.recover import reshard as anew

    holdings = Holdings(layout, widths, job.data.sequence_length, table.tensors)
    refuse_other_names(step_dir, holdings.missing(), holdings.unexpected())
    done = anew.reshard(
        step_dir,
        into,
        holdings.of,
        layout=str(layout),
        world_size=layout.world_size,
        groups=holdings.groups(table.groups),
    )
    return {
        "path": str(done.path),
        "step": done.step,
        "layout": str(layout),
        "ranks": done.shards,
        "bytes": done.nbytes,
        "was": table.layout,
        "latest": done.latest,
    }


@contextmanager
def _writable(run: RunFolder, step_dir: Path, out: str | Path | None) -> Iterator[Path]:
    """The folder of checkpoints to write into, nobody else writing there meanwhile."""
    from paceline.recover.manifest import step_of
    from paceline.recover.steps import store_errors

    if out is None:
        with Lock(run):
            yield (step_dir if step_of(step_dir.name) is not None else step_dir.resolve()).parent
        return
    into = Path(out)
    if RunFolder(into).is_run():
        raise Refused(
            f"{into} is a run",
            exit_code=Exit.USAGE,
            key="--out",
            seen=str(into),
            rule="--out is a folder of checkpoints; a run's own are replaced in their place, without --out",
            use=f"--out {quote(str(into.with_name(into.name + '-resharded')))}, or leave --out out",
        )
    with store_errors(into):
        into.mkdir(parents=True, exist_ok=True)
    with Lock(Place(into)):
        yield into


def widths_of(job: Job, table: Manifest, step_dir: Path) -> ModelWidths:
    """The widths of the checkpoint's model: the job's, with the vocabulary that the checkpoint has."""
    rows = table.tensors.get("model/embed_tokens.weight")
    if rows is None:
        raise Refused(
            "the checkpoint is not of a decoder",
            exit_code=Exit.MISMATCH,
            key="checkpoint",
            seen="no tensor model/embed_tokens.weight",
            rule="a decoder's checkpoint has its embedding",
            use="paceline checkpoint inspect says what it holds",
            where=str(step_dir),
        )
    return job.model.widths(rows.shape[0])


def closed_layout(job: Job, widths: ModelWidths, layout: str) -> Layout:
    """The layout that the word says, held to the rule book; one that is open is refused, as nothing plans here."""
    from paceline.plan.rules import Facts, check, read

    facts = Facts(
        widths=widths,
        global_batch=job.train.global_batch_size,
        optimizer=job.optimizer.name,
        sequence_length=job.data.sequence_length,
    )
    found = read(layout, facts, "--layout")
    if found.open:
        raise Refused(
            f"--layout {layout} leaves something open",
            exit_code=Exit.USAGE,
            key="--layout",
            seen=layout,
            rule="shards are written for ranks that are counted: every degree is a number",
            allowed="single, dp=2, fsdp=4, fsdp=2,tp=2 …",
            use="--layout fsdp=2 (paceline plan JOB says which layout is fast)",
        )
    check(found, facts, "--layout")
    return found


def refuse_other_names(step_dir: Path, missing: list[str], unexpected: list[str]) -> None:
    """Refuse (54) a checkpoint that is not of the run's model; every name is told."""
    if not missing and not unexpected:
        return
    parts = [("missing", missing), ("unexpected or of another shape", unexpected)]
    raise Refused(
        "checkpoint and model do not match",
        exit_code=Exit.MISMATCH,
        key="checkpoint",
        seen="\n".join(f"{what}: {', '.join(names)}" for what, names in parts if names),
        rule="every tensor of the model is in the checkpoint once, and no other",
        use="the job that wrote it: job.toml of its run",
        where=str(step_dir),
    )
