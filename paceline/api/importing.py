"""``paceline checkpoint import``: a run that starts from weights of another program, saved before its first step."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.api.ground import Ground, settle
from paceline.api.jobs import Sets, load_job
from paceline.api.runs import runs_root
from paceline.api.start import begin, brief_of
from paceline.api.target import Target
from paceline.ledger.folder import RunFolder, check_run_name, create
from paceline.ledger.lock import Lock
from paceline.ledger.outcome import Exit
from paceline.ledger.status import Status

if TYPE_CHECKING:
    from paceline.job import Job, Loaded
    from paceline.recipes.beginning import Beginning
    from paceline.recover.foreign import Whole

Say = Callable[[str, str], None]


def import_weights(
    source: str | Path,
    *,
    job: Job | str | Path,
    layout: str = "auto",
    set: Sets = (),
    say: Say = lambda field, text: None,
) -> dict[str, Any]:
    """Make a run of ``job`` whose checkpoint of step 0 holds these weights; ``train RUN --resume`` then trains it.

    All but the weights is what a run has before its first step: moments of zero, counters of zero, the schedule and the
    data at their beginning. Memory is bounded as a reshard's is.

    Args:
        source: a safetensors file, or a folder of them; by our own names, or by a published family's.
        job: a job file or a run, with the widths of these weights; its data are prepared as ``train`` would.
        layout: of the shards; ``auto`` = the job's ``layout.use``.
        set: job keys and values on top.
        say: told the headings.

    Returns:
        ``run path step layout ranks bytes names tensors rounded``.

    Raises:
        Refused: what ``train`` refuses of the job; (21) no safetensors there; (54) keys or shapes are not the job's.
        Failed: (53) a file is not what the format says, or a value not finite; (55) the store is full, or read-only.
    """
    from paceline.api.matched import matched, rounded, said_of
    from paceline.recipes.beginning import Beginning
    from paceline.recover.foreign import Imported, Weights

    with Weights(Path(source)) as weights:
        loaded = load_job(job, set)
        name = check_run_name(loaded.job.run.name or "run")
        ground = settle(
            loaded.job,
            layout if layout != "auto" else loaded.job.layout.use,
            say,
            lambda _: None,
            loaded.where,
        )
        widths = ground.job.model.widths(ground.prepared.vocab)
        start = Beginning.of(ground.job, widths, ground.job.train.precision)
        keys, names = matched(weights, widths, start)
        tensors = start.tensors(keys)
        root = runs_root(loaded.job.run.root if "run.root" in loaded.origins else None)
        folder = create(root, name)
        try:
            with Lock(folder):
                nbytes = _saved(
                    folder, loaded, ground, start, tensors, Imported(weights, tensors), said_of(weights.path)
                )
        except BaseException:
            shutil.rmtree(folder.path, ignore_errors=True)  # nobody has seen it: it was made here
            raise
        return {
            "run": folder.name,
            "path": str(folder.checkpoints / "step-00000000"),
            "step": 0,
            "layout": str(ground.plan.layout),
            "ranks": ground.plan.layout.world_size,
            "bytes": nbytes,
            "names": names,
            "tensors": len(weights.keys),
            "rounded": rounded(weights, start.dtype),
        }


def _saved(
    folder: RunFolder,
    loaded: Loaded,
    ground: Ground,
    start: Beginning,
    tensors: dict[str, Whole],
    source: Any,
    said: str,
) -> int:
    """The run's folder as ``train`` fills it, and the checkpoint; its bytes of data."""
    from paceline.recipes.beginning import first_checkpoint

    target = Target(None, ground.job)
    began_s = begin(folder, target, loaded, ground, weights=said)
    nbytes = first_checkpoint(
        folder.checkpoints,
        source,
        start,
        tensors,
        job=ground.job,
        widths=ground.job.model.widths(ground.prepared.vocab),
        layout=ground.plan.layout,
        steps=ground.steps,
        identity=brief_of(folder, began_s, target, ground).identity,
    )
    Status(
        state="preempted",
        steps=ground.steps,
        layout=str(ground.plan.layout),
        started_s=began_s,
        exit_code=int(Exit.PREEMPTED),
        message="weights imported, nothing trained yet",
    ).write(folder.status)
    return nbytes
