"""Keep: checkpoint, cluster, job, doctor."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from paceline.cli import complete
from paceline.cli.frame import Here
from paceline.cli.screen import Reply, Screen
from paceline.cli.words import JobWord, LayoutWord, RunWord, Sets, split_sets
from paceline.ledger.plural import many
from paceline.plan.measured import QUIET


def checkpoint_list(screen: Screen, run: RunWord = "last") -> Reply:
    """The checkpoints of a run, oldest first; damaged ones with what is wrong."""
    from paceline.api.checkpoints import checkpoints_of
    from paceline.api.runs import Run
    from paceline.cli.tables import bytes_text, table

    found = Run(run)
    rows = checkpoints_of(found.folder)
    if not rows:
        return Reply([], f"{found.name} has no checkpoint ({found.state})")
    cells = [
        (
            f"{found.name}@{row.step}",
            row.problem or ("latest" if row.latest else "complete"),
            row.layout,
            bytes_text(row.bytes) if row.complete else None,
            row.path,
        )
        for row in rows
    ]
    head = ("CHECKPOINT", "STATE", "LAYOUT", "DISK", "PATH")
    return Reply(
        [row.to_dict() for row in rows], lambda t: table(head, cells, width=t.width, right=("DISK",))
    )


def checkpoint_inspect(screen: Screen, run: RunWord = "last") -> Reply:
    """What a checkpoint holds: step, layout, tensors with shape and type, hashes. Reads no tensor."""
    from paceline.api.runs import find_checkpoint
    from paceline.cli.tables import bytes_text, facts, table
    from paceline.recover.checkpoint import inspect

    _, path = find_checkpoint(run)
    found = inspect(path)
    head = ("TENSOR", "SHAPE", "TYPE", "SLICES")
    cells = [
        (name, "×".join(map(str, t["shape"])) or "scalar", t["dtype"], t["slices"])
        for name, t in found["tensors"].items()
    ]
    pairs = [(k, v) for k, v in found.items() if isinstance(v, str | int)]
    pairs += [
        (f"{n}/", f"{many(s['tensors'], 'tensor')}, {bytes_text(s['bytes'])}")
        for n, s in found["namespaces"].items()
    ]
    pairs += list(found["identity"].items())
    return Reply(
        found, lambda t: facts(pairs) + "\n\n" + table(head, cells, width=t.width, right=("SLICES",))
    )


def checkpoint_verify(screen: Screen, run: RunWord = "last") -> Reply:
    """Read a checkpoint whole and compare every hash; damage is named by file and tensor (exit 53)."""
    from paceline.api.checkpoints import verify
    from paceline.api.runs import find_checkpoint
    from paceline.cli.tables import bytes_text

    _, path = find_checkpoint(run)
    found = verify(path)
    held = f"{many(found['tensors'], 'tensor')}, {bytes_text(found['bytes'])}"
    text = f"ok       {path} · step {found['step']} · {held}, every hash equal"
    return Reply(found, text)


def checkpoint_reshard(
    screen: Screen,
    layout: Annotated[
        str,
        typer.Option(
            "--layout", metavar="L", help="of the new shards: fsdp=2,tp=2", autocompletion=complete.layouts
        ),
    ],
    run: RunWord = "last",
    out: Annotated[
        str | None,
        typer.Option("--out", metavar="DIR", help="write there, and leave the checkpoint as it is"),
    ] = None,
) -> Reply:
    """Write a checkpoint with the shards of another layout, in one process and bounded memory.

    A resume reads any layout's checkpoint as it is; this is for readers that want one file, or one file a rank.
    """
    from paceline.api.reshard import reshard
    from paceline.cli.tables import bytes_text

    found = reshard(run, layout=layout, out=out)
    shards = f"{found['was']} → {found['layout']}, {many(found['ranks'], 'shard')}"
    held = f"{bytes_text(found['bytes'])}, every byte read back"
    return Reply(found, f"ok       {found['path']} · step {found['step']} · {shards}, {held}")


def checkpoint_export(
    screen: Screen,
    run: RunWord,
    folder: Annotated[str, typer.Argument(metavar="DIR", help="a folder to be made")],
    to: Annotated[
        str, typer.Option("--to", metavar="hf|safetensors", help="for transformers, or for everything else")
    ],
) -> Reply:
    """Write the whole weights of a checkpoint for other tools, config.json beside them; never over anything.

    hf: names and config of the published family that computes the same; refused where there is none.
    safetensors: everything that the model holds, by its own names.
    """
    from paceline.api.export import export
    from paceline.cli.tables import bytes_text

    found = export(run, folder, to=to)
    held = f"{many(found['tensors'], 'tensor')}, {bytes_text(found['bytes'])}, {many(len(found['files']), 'file')}"
    family = f" ({found['family']})" if to == "hf" else ""
    return Reply(
        found,
        f"ok       {found['path']} · step {found['step']} · {to}{family} · {held}, every byte read back",
    )


def checkpoint_import(
    screen: Screen,
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="a .safetensors file, or a folder of them")],
    job: Annotated[
        str,
        typer.Option(
            "--job", metavar="JOB", help="the job that goes on from them", autocompletion=complete.job_words
        ),
    ],
    layout: LayoutWord = None,
    sets: Sets = None,
) -> Reply:
    """Make a run whose checkpoint of step 0 holds these weights; paceline train RUN --resume trains it.

    Names are our own, or those of llama, mistral, mixtral, qwen2, qwen3, qwen3_moe. Strict: every key must fit the
    job's model. Pickles are never opened.
    """
    from paceline.api.importing import import_weights
    from paceline.cli.tables import bytes_text

    found = import_weights(
        source,
        job=job,
        layout=layout or "auto",
        set=split_sets(sets),
        say=lambda f, t: screen.note(f"{f}  {t}"),
    )
    if found["rounded"]:
        screen.warn(
            f"{many(len(found['rounded']), 'key')} of float64 rounded to float32, as {found['rounded'][0]}"
        )
    names = "own names" if found["names"] == "own" else f"names of {found['names']}"
    held = f"{many(found['tensors'], 'tensor')} by {names} → {found['layout']}, {bytes_text(found['bytes'])}"
    text = f"ok       {found['path']} · step 0 · {held}\nnext     paceline train {found['run']} --resume"
    return Reply(found, text)


def cluster_list(screen: Screen) -> Reply:
    """Accelerators and machine shapes known by name, for cluster.use."""
    from paceline.api.clusters import listing
    from paceline.cli.tables import table

    rows = listing()
    head = ("NAME", "IS", "GB", "BF16 TFLOP/S", "$/DEVICE-H", "LINK")
    names = ("name", "is", "memory_gb", "bf16_tflops", "usd_per_device_hour", "link")
    cells = [[row[name] for name in names] for row in rows]
    return Reply(
        rows, lambda t: table(head, cells, width=t.width, right=("GB", "BF16 TFLOP/S", "$/DEVICE-H"))
    )


def cluster_show(
    screen: Screen,
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME", help="this, 8xH100-SXM-80GB, FILE.toml", autocompletion=complete.cluster_names
        ),
    ] = "this",
) -> Reply:
    """Devices, memory, links and prices of a cluster, with where each figure is from."""
    from paceline.api.clusters import describe
    from paceline.cli.tables import facts

    found = describe(name)
    peaks = " · ".join(f"{k} {v:g}" for k, v in found["peak_tflops"].items())
    return Reply(found, facts(list({**found, "peak_tflops": peaks}.items())))


def cluster_measure(
    screen: Screen,
    out: Annotated[
        str | None, typer.Option("--out", metavar="FILE", help="also write a cluster file, for --cluster")
    ] = None,
    runs: Annotated[
        list[str] | None,
        typer.Option(
            "--from", metavar="RUN", help="correct plans by what this run took; repeat it for several"
        ),
    ] = None,
) -> Reply:
    """Measure this machine now: products, memory, optimizer, a block, collectives between its processes.

    About 90 s on two cores. Plans for `this` use the newest measurement; `--cluster FILE.toml` uses this one anywhere.
    With --from nothing is measured: a finished run says what its steps took, over what had been priced for them.
    """
    if runs:
        return _from_runs(screen, runs, out)
    from paceline.api.measuring import measure_cluster
    from paceline.cli.tables import facts

    found = measure_cluster(out, lambda field, text: screen.note(f"{field}  {text}"))
    return Reply(found, facts(_measured_lines(found)))


def _from_runs(screen: Screen, runs: list[str], out: str | None) -> Reply:
    from paceline.api.calibrating import calibrate_from
    from paceline.cli.tables import facts

    found = calibrate_from(runs, out, lambda field, text: screen.note(f"{field}  {text}"))
    lines = [(part, f"×{factor:.2f}{_apart(found, part)}") for part, factor in found["factors"].items()]
    lines.append(("of", f"{found['precision']}, from {', '.join(found['runs'])}"))
    lines.append(("next", f"paceline plan JOB{' --cluster ' + found['file'] if found['file'] else ''}"))
    return Reply(found, facts(lines))


def _apart(found: dict[str, Any], part: str) -> str:
    spread = found["spread"].get(part)
    return "" if spread is None else f", the runs ±{100 * spread:.0f} % apart"


def _measured_lines(found: dict[str, Any]) -> list[tuple[str, Any]]:
    rates = " · ".join(f"{name} {rate / 1e9:.3g} GFLOP/s" for name, rate in found["flops_per_s"].items())
    waits = " · ".join(f"{name} {1e3 * s:.3g} ms" for name, s in found["collective_s"].items())
    share = found["cpu_share"]
    lines = [
        ("machine", found["machine"]),
        ("products", rates),
        ("memory", f"{found['bytes_per_s'] / 1e9:.3g} GB/s"),
        (f"{found['collective_bytes'] >> 20} MiB", waits),
        ("measured", f"{found['at']} · torch {found['torch']} · {found['hash']}"),
    ]
    if share < QUIET:
        lines.append(
            ("busy", f"it got {share:.0%} of its cores: plans will have wide intervals; measure when quiet")
        )
    return lines + ([("file", f"{found['file']} (--cluster {found['file']})")] if found["file"] else [])


def job_new(
    screen: Screen,
    kind: Annotated[
        str,
        typer.Argument(
            metavar="[KIND]", help="pretrain, or sft vision federated claim (not in this version)"
        ),
    ] = "pretrain",
) -> Reply:
    """Print a commented job: paceline job new > job.toml."""
    from paceline.job.written import new

    text = new(kind)
    return Reply({"kind": kind, "text": text}, text.rstrip("\n"))


def job_check(screen: Screen, job: JobWord, sets: Sets = None) -> Reply:
    """Is the job file right: every key known, every value in range, every source there."""
    from paceline.api.jobs import check_job

    found = check_job(job, split_sets(sets))
    for warning in found.warnings:
        screen.warn(str(warning))
    return Reply(
        {"job": str(job), "hash": found.job.hash, "warnings": [str(w) for w in found.warnings]},
        f"ok       {job} · {len(found.origins)} keys · {found.job.hash[:19]}",
    )


def job_show(screen: Screen, job: JobWord, sets: Sets = None) -> Reply:
    """The job with every key filled in, and where each value comes from."""
    from paceline.api.jobs import load_job
    from paceline.job.written import show

    loaded = load_job(job, split_sets(sets))
    result: dict[str, Any] = {"job": loaded.job.to_dict(), "origins": loaded.origins, "hash": loaded.job.hash}
    return Reply(result, show(loaded).rstrip("\n"))


def job_keys(
    screen: Screen,
    word: Annotated[
        str,
        typer.Argument(metavar="[WORD]", help="a key, a table, or a word", autocompletion=complete.job_keys),
    ] = "",
) -> Reply:
    """The keys of the job file, their types, defaults and meaning."""
    from dataclasses import asdict

    from paceline.cli.tables import keys_text
    from paceline.job.describe import keys

    rows = keys(word)
    return Reply([asdict(row) for row in rows], lambda t: keys_text(rows, t.width))


def job_schema(screen: Screen) -> Reply:
    """JSON Schema of the job file; line 1 of `job new` points editors to it."""
    import json

    from paceline.job.describe import json_schema

    schema = json_schema()
    return Reply(schema, json.dumps(schema, indent=2))


def doctor(screen: Screen) -> Reply:
    """Devices, backends, disk, versions, extras, leftovers: ok, or what is missing and what adds it."""
    from paceline.cli.doctor import examine, text

    lines = examine()
    return Reply([line.to_dict() for line in lines], lambda terminal: text(lines, terminal))


HERE = (
    Here("checkpoint list", checkpoint_list),
    Here("checkpoint inspect", checkpoint_inspect),
    Here("checkpoint verify", checkpoint_verify),
    Here("checkpoint reshard", checkpoint_reshard),
    Here("checkpoint export", checkpoint_export),
    Here("checkpoint import", checkpoint_import),
    Here("cluster list", cluster_list),
    Here("cluster show", cluster_show),
    Here("cluster measure", cluster_measure),
    Here("job new", job_new),
    Here("job check", job_check),
    Here("job show", job_show),
    Here("job keys", job_keys),
    Here("job schema", job_schema),
    Here("doctor", doctor),
)
