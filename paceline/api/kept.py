"""The job as a run keeps it: whole, and with what it names of a published model beside it.

A run is resumed and sampled from its own folder, wherever that stands by then: the ``config.json`` that its widths came
from may have changed, or be on another machine.
"""

from __future__ import annotations

import tomli_w

from paceline.job import Job
from paceline.job.families.place import FILE, config_file
from paceline.ledger.atomic import write_bytes, write_text
from paceline.ledger.folder import RunFolder


def save_job(folder: RunFolder, job: Job) -> None:
    """Writes the run's ``job.toml``, and its copy of the config."""
    if job.model.hf is None:
        job.save(folder.job_toml)
        return
    copy = folder.source / FILE
    if not copy.is_file():
        copy.parent.mkdir(parents=True, exist_ok=True)
        write_bytes(copy, config_file(job.model.hf).read_bytes())
    tables = job.to_dict()
    tables["model"]["hf"] = f"{folder.source.name}/{FILE}"  # paths of a job file are relative to it
    write_text(folder.job_toml, tomli_w.dumps(tables))


def kept_job(folder: RunFolder, job: Job) -> Job:
    """The same job over the run's copy."""
    if job.model.hf is None:
        return job
    return job.replace({"model.hf": str((folder.source / FILE).absolute())})
