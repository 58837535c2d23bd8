"""What a launcher tells a rank: JSON on the pipe, a typed value on either side."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from paceline.job import Job
from paceline.ledger.folder import RunFolder
from paceline.plan.layout import Layout
from paceline.recover.live.alive import Alive


@dataclass(frozen=True)
class Brief:
    """One attempt of one run.

    Attributes:
        job: resolved.
        layout: closed, with its micro-batch.
        folder: of the run, made by the launcher.
        prepared: folder of the tokens.
        precision: ``fp32``, ``bf16`` or ``fp64``; ``auto`` has been decided.
        attempt: 0 for the first start.
        resume: checkpoint to go on from, or None for a fresh start.
        started_unix_s: when the run began, first attempt.
        flops_per_token: model FLOPs, forward and backward.
        peak_flops: of one device in this precision, None where it was not measured.
        usd_per_device_hour: price, None where there is none.
        identity: hashes and ids that a checkpoint carries: run_id, job_hash, data_hash, tokenizer_hash, code_hash.
        timed: only the time of its steps is wanted: nothing is evaluated or saved.
        planned: the layout that plan handed over, where the ranks that are left have another one.
        alive: memory that outlives the ranks, for their state; None for none.
        skip_to: a checkpoint's step, and the position in the data at which it goes on, where a rule went back to it
            and left rows out.
        until: the last step that is done, where that is not the job's.
    """

    job: Job
    layout: Layout
    folder: RunFolder
    prepared: Path
    precision: str
    attempt: int = 0
    resume: Path | None = None
    started_unix_s: float = 0.0
    flops_per_token: float = 0.0
    peak_flops: float | None = None
    usd_per_device_hour: float | None = None
    identity: Mapping[str, str] = field(default_factory=dict)
    timed: bool = False
    planned: Layout | None = None
    alive: Alive | None = None
    skip_to: tuple[int, int] | None = None
    until: int | None = None

    def payload(self) -> dict[str, Any]:
        """As JSON values."""
        return {
            "job": self.job.to_dict(),
            "layout": str(self.layout),
            "folder": str(self.folder.path),
            "prepared": str(self.prepared),
            "precision": self.precision,
            "attempt": self.attempt,
            "resume": None if self.resume is None else str(self.resume),
            "started_unix_s": self.started_unix_s,
            "flops_per_token": self.flops_per_token,
            "peak_flops": self.peak_flops,
            "usd_per_device_hour": self.usd_per_device_hour,
            "identity": dict(self.identity),
            "timed": self.timed,
            "planned": None if self.planned is None else str(self.planned),
            "alive": None if self.alive is None else self.alive.to_dict(),
            "skip_to": self.skip_to,
            "until": self.until,
        }

    @classmethod
    def read(cls, payload: Mapping[str, Any]) -> Brief:
        """What :meth:`payload` wrote."""
        resume, alive, planned = payload["resume"], payload["alive"], payload["planned"]
        skip_to = payload["skip_to"]
        return cls(
            job=Job(**payload["job"]),
            layout=Layout.parse(payload["layout"]),
            folder=RunFolder(payload["folder"]),
            prepared=Path(payload["prepared"]),
            precision=payload["precision"],
            attempt=payload["attempt"],
            resume=None if resume is None else Path(resume),
            started_unix_s=payload["started_unix_s"],
            flops_per_token=payload["flops_per_token"],
            peak_flops=payload["peak_flops"],
            usd_per_device_hour=payload["usd_per_device_hour"],
            identity=payload["identity"],
            timed=payload["timed"],
            planned=None if planned is None else Layout.parse(planned),
            alive=None if alive is None else Alive.read(alive),
            skip_to=None if skip_to is None else (int(skip_to[0]), int(skip_to[1])),
            until=payload["until"],
        )
