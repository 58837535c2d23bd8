"""The arguments and options that several commands share, each described once."""

from __future__ import annotations

from typing import Annotated

import typer

from paceline.cli import complete

JobWord = Annotated[
    str, typer.Argument(metavar="JOB", help="a job file, or a run", autocompletion=complete.job_words)
]
MaybeJobWord = Annotated[
    str | None, typer.Argument(metavar="JOB", help="a job file, or a run", autocompletion=complete.job_words)
]
RunWord = Annotated[
    str,
    typer.Argument(
        metavar="RUN",
        help="a path, a run's name, or `last`; @STEP for a checkpoint",
        autocompletion=complete.run_names,
    ),
]
RunWords = Annotated[
    list[str],
    typer.Argument(metavar="RUN…", help="runs; a pattern in quotes works", autocompletion=complete.run_names),
]
LayoutWord = Annotated[
    str | None,
    typer.Option(
        "--layout", metavar="L", help="as layout.use: fsdp=2,mbs=4", autocompletion=complete.layouts
    ),
]
ClusterWord = Annotated[
    str | None,
    typer.Option(
        "--cluster",
        metavar="C",
        help="as cluster.use: this, 8xH100-SXM-80GB, FILE.toml",
        autocompletion=complete.cluster_names,
    ),
]
Sets = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="a key of the job; repeatable; KEY= resets it",
        autocompletion=complete.set_keys,
    ),
]


def split_sets(words: list[str] | None) -> list[tuple[str, str]]:
    """``--set KEY=VALUE`` words as pairs."""
    from paceline.job.sets import split_set

    return [split_set(word) for word in words or ()]
