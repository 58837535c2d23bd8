"""Look: runs, logs, compare, report."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from paceline.cli.frame import Here, Later
from paceline.cli.screen import Reply, Screen
from paceline.cli.terminal import Terminal
from paceline.cli.words import RunWord, RunWords

if TYPE_CHECKING:
    from paceline.api.runs import Run

STOP_WAIT_S = 60.0


def list_runs(screen: Screen) -> Reply:
    """The runs under the run root (runs/, or PACELINE_RUNS), the newest first."""
    from paceline.api.runs import runs, runs_root

    rows = [_row(run) for run in runs()]
    if not rows:
        return Reply([], f"no runs under {runs_root()}/ yet · start one: paceline train job.toml")
    return Reply(rows, lambda terminal: _runs_table(rows, terminal))


def _row(run: Run) -> dict[str, Any]:
    status, train, evaluated = run.status, run.last("train"), run.last("eval")
    return {
        "name": run.name,
        "path": str(run.path),
        "kind": status.kind,
        "state": run.state,
        "step": status.step,
        "steps": status.steps,
        "loss": evaluated.get("loss", train.get("loss")),
        "tokens_per_s": train.get("tokens_per_s"),
        "layout": status.layout,
        "exit_code": status.exit_code,
        "message": status.message,
        "started_s": run.folder.started_s(),
        "disk_bytes": run.folder.disk_bytes(),
    }


def _runs_table(rows: list[dict[str, Any]], terminal: Terminal) -> str:
    from paceline.cli.console import spaced
    from paceline.cli.tables import ago, bytes_text, table

    now = time.time()
    head = ("NAME", "KIND", "STATE", "STEP", "LOSS", "TOK/S", "LAYOUT", "STARTED", "DISK")
    cells = [
        (
            row["name"],
            row["kind"],
            row["state"],
            f"{row['step']}/{row['steps']}" if row["steps"] else None,
            None if row["loss"] is None else f"{row['loss']:.3f}",
            None if row["tokens_per_s"] is None else spaced(row["tokens_per_s"]),
            row["layout"],
            ago(now - row["started_s"]),
            bytes_text(row["disk_bytes"]),
        )
        for row in rows
    ]
    return table(head, cells, width=terminal.width, right=("LOSS", "TOK/S", "DISK"), keep=4)


def stop(screen: Screen, run: RunWord = "last") -> Reply:
    """Finish the step, save and stop; from any host that sees the run's folder."""
    from paceline.api.runs import Run
    from paceline.ledger.status import LIVE_STATES

    found = Run(run)
    found.stop()
    screen.note(f"asked    {found.name} to finish its step, save and stop")
    state = found.wait(STOP_WAIT_S)
    text = f"{found.name} is {state}"
    if state in LIVE_STATES:
        text += f" · asked, not stopped yet after {STOP_WAIT_S:.0f} s: see paceline runs"
    return Reply({"name": found.name, "path": str(found.path), "state": state}, text)


def delete(
    screen: Screen,
    run: RunWords,
    yes: Annotated[bool, typer.Option("--yes", help="delete them")] = False,
) -> Reply:
    """Delete runs. Without --yes: says what would go, and how many bytes."""
    from paceline.api.runs import find_runs
    from paceline.cli.tables import bytes_text

    found = find_runs(run)
    sizes = {item.name: item.folder.disk_bytes() for item in found}
    total = sum(sizes.values())
    if yes:
        for item in found:
            item.delete()
    lines = [
        f"{'deleted' if yes else 'would delete'}  {name}  {bytes_text(size)}" for name, size in sizes.items()
    ]
    if not yes:
        count = f"{len(sizes)} run{'' if len(sizes) == 1 else 's'}"
        lines.append(f"{count}, {bytes_text(total)} · to delete: add --yes")
    result = {
        "deleted": yes,
        "runs": [{"name": n, "disk_bytes": s} for n, s in sizes.items()],
        "disk_bytes": total,
    }
    return Reply(result, "\n".join(lines))


def logs(
    screen: Screen,
    run: RunWord = "last",
    rank: Annotated[
        int | None, typer.Option("--rank", metavar="R", min=0, help="the log of one rank")
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="go on as it grows, until the run ends")
    ] = False,
) -> Reply:
    """What a run printed; with --rank, what a rank printed (its stdout and stderr, all attempts)."""
    from paceline.api.runs import Run
    from paceline.cli.follow import lines_of, refuse_absent_log

    found = Run(run)
    path = found.folder.console_log if rank is None else found.folder.rank_log(rank)
    if not path.exists() and not follow:
        raise refuse_absent_log(found, path, rank)
    if not follow:
        text = path.read_text(encoding="utf-8", errors="replace").rstrip("\n")
        return Reply({"run": found.name, "path": str(path), "lines": text.splitlines()}, text)
    for line in lines_of(path, lambda: found.state):
        if screen.json:
            screen.object(kind="line", line=line)
        else:
            screen.line(line)
    return Reply({"run": found.name, "path": str(path), "state": found.state})


def compare(screen: Screen, run: RunWords) -> Reply:
    """What differs between runs: keys, data, loss at equal tokens, speed, memory, where time went."""
    from paceline.api.compare import compare as compare_runs
    from paceline.api.runs import find_runs
    from paceline.evidence.compare import text

    comparison = compare_runs(*find_runs(run))
    return Reply(comparison.to_dict(), lambda terminal: text(comparison, width=terminal.width))


def report(
    screen: Screen,
    run: RunWord = "last",
    open_it: Annotated[bool, typer.Option("--open", help="open it in a browser")] = False,
) -> Reply:
    """Write the run's report, one self-contained HTML page."""
    from paceline.api.runs import Run

    path = Run(run).report()
    if open_it:
        _open(path, screen)
    return Reply({"path": str(path)}, str(path))


def replay(
    screen: Screen,
    run: RunWord = "last",
    step: Annotated[
        int | None, typer.Option("--step", metavar="K", help="which; default: the last one that has a row")
    ] = None,
    layout: Annotated[
        str, typer.Option("--layout", metavar="L", help="on which it is done again; `run`: that of the run")
    ] = "single",
) -> Reply:
    """A step of a run again, from checkpoint, batch and seeds; says whether it comes out the same."""
    from paceline.api.replay import replay as replay_step
    from paceline.api.replayed import text, verdict
    from paceline.ledger.outcome import Exit, Failed

    found = replay_step(
        run, step=step, layout=layout, say=lambda field, told: screen.note(f"{field:<8} {told}")
    )
    if found.reproduced:
        return Reply(found.to_dict(), text(found))
    code = Exit.NO_EVIDENCE if found.outcome == "unclear" else Exit.UNPROVEN
    error = Failed(
        f"step {found.step} of {found.run} is not reproduced",
        exit_code=code,
        key="--layout",
        seen=verdict(found),
        rule="the same weights and the same batch give the same loss and gradient norm",
        use=f"paceline replay {found.run} --step {found.step} --layout run",
    )
    return Reply(found.to_dict(), text(found), code, error if screen.json else None)


def _open(path: Path, screen: Screen) -> None:
    import webbrowser

    if not webbrowser.open(path.resolve().as_uri()):
        screen.warn("no browser was found on this machine; the path is on stdout")


HERE = (
    Here("runs", list_runs, top=True),
    Here("runs stop", stop),
    Here("runs delete", delete),
    Here("logs", logs, later=(Later("--host", "of the ranks on one host", "08", "H"),)),
    Here("compare", compare),
    Here("replay", replay),
    Here(
        "report",
        report,
        later=(
            Later("--live", "serve on 127.0.0.1", "05", instead="paceline logs RUN --follow"),
            Later(
                "--export",
                "for another tool",
                "05",
                "tensorboard|mlflow|wandb|trace",
                "metrics.jsonl in the run's folder has every row",
            ),
        ),
    ),
)
