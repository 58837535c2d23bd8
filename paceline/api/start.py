"""The run folder filled before the first rank starts: job, source, manifest, plan, record 1, and the headings."""

from __future__ import annotations

import time
from collections.abc import Callable
from shlex import quote

import paceline
from paceline.api.ground import Ground
from paceline.api.kept import kept_job, save_job
from paceline.api.surroundings import environment
from paceline.api.target import Target
from paceline.job import Loaded
from paceline.job.families.place import name_of
from paceline.job.presets import WIDTHS
from paceline.ledger import manifest as manifests
from paceline.ledger import records
from paceline.ledger.atomic import write_bytes, write_json
from paceline.ledger.folder import RunFolder, read_manifest
from paceline.ledger.outcome import Exit, Refused
from paceline.ledger.plural import many
from paceline.ledger.status import Status
from paceline.plan.model import flops_per_token
from paceline.recipes.brief import Brief
from paceline.recover.steps import check_store

Say = Callable[[str, str], None]


RANDOM = "random: (seed, name, index)"


def begin(
    folder: RunFolder, target: Target, loaded: Loaded, ground: Ground, *, weights: str = RANDOM
) -> float:
    """Fill the folder of a new run, or bring an old one's up to date; Unix seconds of the run's first start.

    ``weights``: what the manifest says that they start from.

    The caller holds the folder's lock, and everything that can be refused has been.
    """
    check_store(folder.checkpoints, int(ground.plan.disk.get("checkpoint", 0)))
    started_s = target.started_unix_s or time.time()
    Status(
        state="preparing",
        attempt=target.attempt,
        layout=str(ground.plan.layout),
        started_s=started_s,
        step=target.step,
    ).write(folder.status)
    save_job(folder, ground.job)
    if not target.resumes:
        folder.copy_source(loaded.path if loaded.files else None, loaded.files[:-1])
        _keep_tokenizer(folder, ground)
        manifests.write(folder, _manifest(loaded, ground, weights))
    write_json(folder.evidence / "plan.json", ground.plan.to_dict())
    _plan_page(folder, ground)
    records.write(folder, 1, _record(folder, ground), attempt=target.attempt)
    return started_s


def brief_of(folder: RunFolder, started_unix_s: float, target: Target, ground: Ground) -> Brief:
    """What the ranks are told."""
    hashes = ground.hashes()
    run_id = str(read_manifest(folder).get("run_id", ""))
    return Brief(
        job=kept_job(folder, ground.job),
        layout=ground.plan.layout,
        folder=folder,
        prepared=ground.prepared.folder,
        precision=ground.job.train.precision,
        attempt=target.attempt,
        resume=target.checkpoint,
        started_unix_s=started_unix_s,
        flops_per_token=flops_per_token(
            ground.job.model.widths(ground.prepared.vocab), ground.job.data.sequence_length
        ),
        peak_flops=ground.peak_flops,
        usd_per_device_hour=ground.cluster.usd_per_device_hour,
        identity={"run_id": run_id, **{f"{k}_hash": v for k, v in hashes.items()}},
    )


def headings(say: Say, folder: RunFolder, target: Target, ground: Ground) -> None:
    """The first lines of a run (interface §10)."""
    from importlib.metadata import version

    from paceline.plan.show import summary

    backend = "gloo" if ground.cluster.is_cpu else "NCCL"
    devices = f"{many(ground.machine.cores, 'core')}" if ground.cluster.is_cpu else ground.cluster.name
    where = f"paceline {paceline.__version__} · torch {version('torch')} · {backend}, {devices}"
    say("run", f"{_which(folder, target)} · {where}")
    if target.passed_over:
        say("warn", target.passed_over)
    for change in target.changes:
        say("changed", str(change))
    if left := environment().leftovers:
        say("warn", f"{', '.join(left)} of another launcher: not read, this run starts its own ranks")
    say("plan", summary(ground.plan))
    say("data", _data(ground))
    say("model", _model(ground))


def _which(folder: RunFolder, target: Target) -> str:
    if not target.resumes:
        return f"new: {folder.path}"
    if target.checkpoint is None:
        return f"{folder.path} again from the beginning: it had saved nothing"
    return f"resumed: {folder.path} from step {target.step}"


def _data(ground: Ground) -> str:
    prepared = ground.prepared
    files = len(prepared.index["sources"])
    tokens = prepared.tokens + prepared.eval_tokens
    parts = [
        f"{many(files, 'file')}, {(prepared.bytes + prepared.eval_bytes) / 1e6:.1f} MB → "
        f"{_millions(tokens)} tokens, {prepared.index['tokenizer']['name'] or 'ids'}",
        f"{100 * prepared.eval_tokens / max(1, tokens):.2g} % held out",
    ]
    simple = [
        f"{name} {found['bits_per_byte']:.2f}"
        for name, found in ground.baselines.items()
        if found["bits_per_byte"] is not None
    ]
    if simple:
        parts.append(f"{' · '.join(simple)} bits/byte")
    return " · ".join(parts)


def _model(ground: Ground) -> str:
    model = ground.job.model
    name = model.preset or (name_of(model.hf) if model.hf else "decoder")
    if any(getattr(model, width) is not None for width in WIDTHS if width != "vocab_size"):
        name = f"own widths over {name}"
    return f"{name}, {_millions(ground.plan.facts.work.count.total)} parameters, {ground.job.train.precision}"


def _millions(count: int) -> str:
    for size, unit in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return str(count)


def _manifest(loaded: Loaded, ground: Ground, weights: str) -> dict[str, object]:
    prepared, machine, job = ground.prepared, ground.machine, ground.job
    held_out = f"{job.data.eval} of the documents" if isinstance(job.data.eval, float) else "data.eval"
    return manifests.new_manifest(
        hashes=ground.hashes() | {"weights": weights},
        preprocessing={
            "tokenizer": prepared.index["tokenizer"],
            "packing": job.data.packing,
            "sequence_length": job.data.sequence_length,
            "documents": prepared.documents,
            "tokens": prepared.tokens,
            "folder": str(prepared.folder),
        },
        evaluation_set=f"{held_out}: {prepared.eval_documents} documents, {prepared.eval_tokens} tokens",
        evaluation_hash=prepared.hash,
        baselines={
            name: {k: v for k, v in found.items() if v is not None}
            for name, found in ground.baselines.items()
        },
        hardware_assumed=ground.plan.to_dict()["cluster"],
        hardware_found={
            "host": machine.host,
            "cpu": machine.cpu_model,
            "cores": machine.cores,
            "memory_bytes": machine.memory_bytes,
            "devices": [d.name for d in machine.devices],
        },
        environment=environment().shown,
        data_hosts=[machine.host],
        origins=loaded.origins | {"train.precision": _precision_origin(loaded)},
    )


def _keep_tokenizer(folder: RunFolder, ground: Ground) -> None:
    """A run that is moved to another machine can still be sampled: it has its tokenizer with it."""
    name = ground.prepared.index["tokenizer"].get("file")
    if name is not None:
        write_bytes(folder.source / "tokenizer.json", (ground.prepared.folder / name).read_bytes())


def _precision_origin(loaded: Loaded) -> str:
    given = loaded.origins.get("train.precision", "built-in default")
    return f"{given}: auto, decided by measurement" if loaded.job.train.precision == "auto" else given


def _again(folder: RunFolder, ground: Ground) -> str:
    """The command that plans this again: on the run's own job file, since a job's name alone is no file."""
    asked = "" if ground.asked == ground.job.layout.use else f" --layout {ground.asked}"
    return f"paceline plan {quote(str(folder.job_toml))}{asked}"


def _record(folder: RunFolder, ground: Ground) -> records.PhaseRecord:
    known = ground.plan.record(_again(folder, ground))
    hashes = ground.hashes()
    return records.PhaseRecord(
        **{
            "owner": "whoever started the run",
            "evidence": "metrics.jsonl: step_time_s and memory_gib against the prediction",
            "check": {"command": "paceline report", "result": "the report compares predicted with measured"},
            "controls": "none armed on the plan",
            **known,
            "handoff": {
                "layout": str(ground.plan.layout),
                "global_batch": ground.job.train.global_batch_size,
                "job_hash": hashes["job"],
                "data_hash": hashes["data"],
                "tokenizer_hash": hashes["tokenizer"],
                "vocabulary": ground.prepared.vocab,
            },
        }
    )


def _plan_page(folder: RunFolder, ground: Ground) -> None:
    from paceline.api.record import write_page

    write_page(ground.plan, folder.plan_html)


def refuse_other_data(target: Target, ground: Ground) -> None:
    """Refuse (54) to resume on other data: the job may say the same and the files behind it be others."""
    folder = target.folder
    if folder is None:
        return
    before = read_manifest(folder).get("hashes", {})
    now = ground.hashes()
    meant = {c.key.partition(".")[0] for c in target.changes if c.rule == "allowed"}
    for name in ("data", "tokenizer"):
        old = before.get(name) if isinstance(before, dict) else None
        if old in (None, records.NOT_STATED, now[name]) or "data" in meant:
            continue
        raise Refused(
            f"the {name} is not what {folder.name} was trained on",
            exit_code=Exit.MISMATCH,
            key="data.train" if name == "data" else "data.tokenizer",
            seen=f"hash {str(now[name])[:16]}…, the run has {str(old)[:16]}…",
            rule="a resumed run sees the same samples in the same order",
            use="bring the old files back, or start a new run without --resume",
            where=str(folder.path),
        )
