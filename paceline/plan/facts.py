"""A job as the planner sees it: one step's work, how many steps, how much data, what is assumed."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from paceline.job.families.place import name_of
from paceline.plan.cluster import Cluster
from paceline.plan.cost.terms import OPTIMIZER_STATES, Work
from paceline.plan.measured import Measured, fastest_precision
from paceline.plan.model import flops_per_token
from paceline.plan.published_lines import published_lines

if TYPE_CHECKING:
    from paceline.job import Job
    from paceline.job.sources import SourceItem

BYTES_PER_TOKEN = 4
BYTE_VOCABULARY = 257  # the bytes and the end of a document
DEFAULT_VOCABULARY = 8192


@dataclass(frozen=True)
class JobFacts:
    """What a plan needs of a job.

    Attributes:
        steps: None when the length of the run is in epochs and the data's size is not known.
        tokens: of one epoch, known or assumed; None = unknown.
        flops_token: model FLOPs of one token, ``model.CONVENTION``.
        bare: a published model without data: there is no job file yet.
    """

    name: str
    model: str
    work: Work
    steps: int | None
    tokens: int | None
    flops_token: int
    assumed: tuple[str, ...]
    bare: bool = False

    @property
    def tokens_per_step(self) -> int:
        return self.work.global_batch * self.work.sequence_length


def job_facts(
    job: Job,
    cluster: Cluster,
    measured: Measured | None,
    tokens: int | None = None,
    vocab_size: int | None = None,
) -> JobFacts:
    """Read a job for planning.

    Args:
        job: the job. cluster: where it would run: decides what ``train.precision = auto`` means.
        measured: this machine's measurement, or None.
        tokens: of one epoch, when the data is prepared.
        vocab_size: the tokenizer's, when it exists.
    """
    assumed: list[str] = []
    if vocab_size is None:
        vocab_size = _vocabulary(job, assumed)
    widths = job.model.widths(vocab_size)
    precision: str = job.train.precision
    if precision == "auto":
        precision = fastest_precision(measured if cluster.is_cpu else None, cuda=not cluster.is_cpu)
    work = Work(
        widths=widths,
        sequence_length=job.data.sequence_length,
        global_batch=job.train.global_batch_size,
        precision=precision,
        reduce_bytes=2 if job.train.reduce_precision == "bf16" else 4,
        optimizer_states=OPTIMIZER_STATES.get(job.optimizer.name, 2),
    )
    assumed += published_lines(widths, work.sequence_length)
    if job.model.hf and job.data.train is None:
        each = f"{work.global_batch} × {work.sequence_length} tokens a step"
        assumed.append(f"{each}, the defaults of a job (train.global_batch_size, data.sequence_length)")
    if tokens is None and job.data.train is not None:
        tokens = _tokens(job.data.train, job.data.tokenizer, assumed)
    return JobFacts(
        name=job.run.name or "job",
        model=_model_name(job),
        work=work,
        steps=_steps(job, work, tokens, assumed),
        tokens=tokens,
        flops_token=flops_per_token(widths, work.sequence_length),
        assumed=tuple(assumed),
        bare=job.model.hf is not None and job.data.train is None,
    )


def cpp_compiler() -> bool:
    """Whether this machine has a C++ compiler, with which torch.compile builds its kernels for a CPU."""
    import shutil

    return any(shutil.which(name) for name in ("g++", "clang++", "c++"))


def _model_name(job: Job) -> str:
    if job.model.hf:
        return name_of(job.model.hf)
    return str(job.model.preset or job.model.python or "own widths")


def _vocabulary(job: Job, assumed: list[str]) -> int:
    name = job.data.tokenizer
    if name == "bytes":
        return BYTE_VOCABULARY
    if name.startswith("bpe:"):
        return int(name.removeprefix("bpe:"))
    own = getattr(job.model, "own_vocab_size", lambda: None)()
    if own:
        return int(own)
    assumed.append(f"vocabulary of {DEFAULT_VOCABULARY} ({name} was not read yet)")
    return DEFAULT_VOCABULARY


def _steps(job: Job, work: Work, tokens: int | None, assumed: list[str]) -> int | None:
    per_step = work.global_batch * work.sequence_length
    if job.train.steps:
        return int(job.train.steps)
    if job.train.tokens:
        return max(1, math.ceil(job.train.tokens / per_step))
    if tokens is None:
        assumed.append("length of the run unknown: it is in epochs, and the data was not read yet")
        return None
    return max(1, math.ceil((job.train.epochs or 1.0) * tokens / per_step))


def _tokens(sources: tuple[SourceItem, ...], tokenizer: str, assumed: list[str]) -> int | None:
    """Tokens of sources not prepared yet: bytes / 4, or bytes for the byte tokenizer; None = unknown."""
    sizes = [_size(item) for item in sources]
    known = [size for size in sizes if size is not None]
    absent = [item.path for item, size in zip(sources, sizes, strict=True) if size == 0]
    if absent:
        assumed.append(
            f"data.train is not here, or empty: {', '.join(absent)}; `paceline job check` says more"
        )
    if len(known) < len(sizes) or not sum(known):
        return None
    each = 1 if tokenizer == "bytes" else BYTES_PER_TOKEN
    if each > 1:
        assumed.append(f"{tokenizer.partition(':')[0]} tokens = bytes/{each} (data not prepared yet)")
    return sum(known) // each


def _size(item: SourceItem) -> int | None:
    """Bytes of a source on this machine; None when it lies elsewhere."""
    import glob

    if item.kind == "python-stdlib":
        return _stdlib_size()
    if item.kind not in ("file", "glob"):
        return None
    found = (
        [Path(p) for p in glob.glob(item.path, recursive=True)] if item.kind == "glob" else [Path(item.path)]
    )
    if any(p.suffix == ".npy" for p in found):
        return None  # tokens already: their number is in the file's header, which phase 2 reads
    files = [f for p in found for f in (p.rglob("*") if p.is_dir() else [p])]
    return sum(f.stat().st_size for f in files if f.is_file())


def _stdlib_size() -> int:
    import sysconfig

    total = 0
    for folder, subfolders, names in os.walk(sysconfig.get_path("stdlib")):
        subfolders[:] = [name for name in subfolders if name not in ("site-packages", "__pycache__")]
        total += sum(os.path.getsize(os.path.join(folder, name)) for name in names if name.endswith(".py"))
    return total
