"""What is planned and not trained: refused by name before anything starts."""

from __future__ import annotations

from paceline.job.families.place import name_of
from paceline.job.job import Job
from paceline.ledger.outcome import Exit, Refused


def refuse_to_build(job: Job) -> None:
    """Refuse a model that our decoder does not compute; ``plan`` takes it all the same.

    Raises:
        Refused: 2, with what is missing.
    """
    beyond = job.model.widths(1).beyond
    if beyond is None:
        return
    name = name_of(job.model.hf or "")
    raise Refused(
        f"model.hf: training {name} is not in this version",
        exit_code=Exit.USAGE,
        key="model.hf",
        seen=f'model.hf = "{job.model.hf}"; family {beyond.family or "unknown"}',
        rule="our decoder does not compute "
        + "; ".join(beyond.needs)
        + ". Such models arrive with capability 06",
        allowed="plan, plan --draw, job show, job check",
        use="paceline plan JOB, or a model.preset (paceline job keys model.preset)",
    )


def refuse_to_load(job: Job) -> None:
    """Refuse to start from published weights, which a model of ``model.hf`` does unless the job says otherwise.

    Raises:
        Refused: 2.
    """
    if job.model.start != "pretrained":
        return
    raise Refused(
        f"model.weights: loading the weights of {name_of(job.model.hf or '')} is not in this version",
        exit_code=Exit.USAGE,
        key="model.weights",
        seen=f'model.hf = "{job.model.hf}"; model.weights not given, which means pretrained',
        rule="weights are loaded with capability 06; until then a job says random, and "
        "`paceline checkpoint import` starts a run of it from weights that are here",
        use='model.weights = "random"',
    )
