"""Run: train, sample."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from paceline.cli.frame import Here, Later
from paceline.cli.screen import Reply, Screen
from paceline.cli.words import ClusterWord, JobWord, LayoutWord, RunWord, Sets, split_sets
from paceline.ledger.plural import many

if TYPE_CHECKING:
    from paceline.api.runs import Run


def train(
    screen: Screen,
    job: JobWord,
    layout: LayoutWord = None,
    cluster: ClusterWord = None,
    name: Annotated[
        str | None, typer.Option("--name", metavar="N", help="the run's name, as run.name")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="continue the newest run of this name")] = False,
    allow_change: Annotated[
        list[str] | None, typer.Option("--allow-change", metavar="KEY", help="a key that a resume may change")
    ] = None,
    sets: Sets = None,
    max_time: Annotated[
        str | None, typer.Option("--max-time", metavar="D", help='save and exit 50 after this long: "50min"')
    ] = None,
) -> Reply:
    """Train, on one device or on many.

    Plain `train` starts a new run and never overwrites one. Ctrl-C or SIGTERM: finish the step, save,
    exit 50; twice: leave at once. Progress goes to stderr, the closing lines to stdout.
    """
    from paceline.api.jobs import load_job
    from paceline.api.target import refuse_allowing_nothing, split_job
    from paceline.api.train import train as train_job
    from paceline.cli.console import Console
    from paceline.ledger.folder import check_run_name

    if name is not None:
        check_run_name(name)
    refuse_allowing_nothing(allow_change or [], resume)
    pairs = split_sets(sets)
    if cluster is not None:
        pairs.append(("cluster.use", cluster))
    if max_time is not None:
        pairs.append(("train.max_time", max_time))
    loaded = load_job(split_job(job, resume=resume)[0], pairs)
    every = loaded.job.track.every
    steps = int(loaded.job.train.steps or 0)
    with Console(screen, steps=steps, every=(every.kind, float(every.value or 0))) as console:
        run = train_job(
            job,
            layout="auto" if layout is None else layout,
            name=name,
            resume=resume,
            allow_change=allow_change or [],
            set=pairs,
            on_message=console.message,
        )
    return closing(run)


def closing(run: Run) -> Reply:
    """The end of a run: what it reached, where the time went, where the report is, and how to go on."""
    from paceline.cli.closing import closing_lines, ended
    from paceline.ledger.outcome import Exit

    code = int(run.exit_code or 0)
    lines = [f"{word:<8} {text}" for word, text in closing_lines(run)]
    error = None if code == Exit.DONE else ended(run)
    result = {
        "run": run.name,
        "path": str(run.path),
        "state": run.state,
        "step": run.status.step,
        "steps": run.status.steps,
        "layout": run.status.layout,
        "eval": run.last("eval"),
        "report": str(run.folder.report) if run.folder.report.exists() else None,
    }
    return Reply(result, "\n".join(lines), code, error if code != Exit.PREEMPTED else None)


def sample(
    screen: Screen,
    run: RunWord = "last",
    prompt: Annotated[str, typer.Option("--prompt", metavar="TEXT", help="what the text begins with")] = "",
    tokens: Annotated[int, typer.Option("--tokens", metavar="N", min=1, help="tokens to write")] = 100,
    temperature: Annotated[
        float, typer.Option("--temperature", metavar="T", min=0.0, help="0 = always the likeliest token")
    ] = 0.8,
    seed: Annotated[int, typer.Option("--seed", metavar="N", help="the same seed, the same text")] = 0,
) -> Reply:
    """Text from a trained model, on stdout. RUN@STEP samples from an earlier checkpoint."""
    from paceline.api.sample import sample as sample_run

    sampled = sample_run(run, prompt=prompt, tokens=tokens, temperature=temperature, seed=seed)
    screen.note(
        f"sample   {sampled.source} · {many(sampled.tokens, 'token')} · temperature {temperature:g} · seed {seed}"
    )
    result: dict[str, Any] = {
        "text": sampled.text,
        "prompt": prompt,
        "tokens": sampled.tokens,
        "temperature": temperature,
        "seed": seed,
        "checkpoint": sampled.source,
    }
    return Reply(result, sampled.text)


HERE = (
    Here(
        "train",
        train,
        later=(
            Later("--profile", "trace of N steps", "05", "N"),
            Later("--dry-controls", "judge the controls, do not act", "05"),
        ),
    ),
    Here("sample", sample),
)
