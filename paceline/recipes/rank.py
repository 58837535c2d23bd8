"""What a rank runs: the same program on one device and on many.

The launcher starts it by name. It joins its world, assembles the model on its shards, goes on from a checkpoint
where there is one, trains, evaluates on everything held out, and says how it ended.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch

from paceline.compute.data.prepared import Prepared
from paceline.deliver.device import Device, open_device
from paceline.deliver.mesh import Mesh, build_mesh
from paceline.deliver.wire.record import CallRecorder
from paceline.deliver.wire.slot import Slot
from paceline.deliver.wire.world import World, open_world
from paceline.ledger.manifest import count_eval_read
from paceline.ledger.metrics import MetricsWriter, last_row
from paceline.ledger.spans import Ledger
from paceline.recipes import phases
from paceline.recipes.assemble import Assembly, assemble, unfilled
from paceline.recipes.brief import Brief
from paceline.recipes.ended import going_back, rows_of, stopped_by
from paceline.recipes.evaluate import held_out_loss
from paceline.recipes.feed import Feed, MicroBatch
from paceline.recipes.keeper import Keeper, resume, steps_of
from paceline.recipes.place import Emit, Place, Stop
from paceline.recipes.shared_state import Memory
from paceline.recipes.watch import Watch, fired_row
from paceline.recover.live.commit import SharedCommit
from paceline.recover.write import Saved
from paceline.update.controls import (
    Rule,
    Verdict,
    armed,
    at_step,
    between_steps,
    kept,
    of_rows,
    restored,
    was_skipped,
)
from paceline.update.due import Due
from paceline.update.every_step import Counts, StepResult
from paceline.update.loop import End, Hooks, train
from paceline.update.schedule import Schedule, as_steps
from paceline.update.telemetry import RunFacts, Telemetry


@dataclass(frozen=True)
class _Rank:
    """What a rank holds once it is assembled."""

    brief: Brief
    mesh: Mesh
    device: Device
    ledger: Ledger
    recorder: CallRecorder
    feed: Feed
    built: Assembly
    schedule: Schedule
    keeper: Keeper
    commit: SharedCommit | None
    telemetry: Telemetry
    report: Callable[[dict[str, Any]], None]
    rules: tuple[Rule, ...]
    remembered: tuple[float, ...]
    watch: Watch

    @property
    def saved(self) -> int | None:
        """The step of the newest checkpoint, where the state goes on from memory."""
        alive = self.brief.alive
        return None if alive is None or alive.step is None else alive.saved

    @property
    def first(self) -> bool:
        """Rank 0 writes what is written once."""
        return self.mesh.rank == 0


def run(payload: dict[str, Any], place: Place, emit: Emit, stop: Stop) -> dict[str, Any]:
    """One rank of one attempt.

    Returns:
        ``step`` finished, ``steps`` of the run, ``stop`` (the reason, "" when all is done), ``saved`` (the step of
        the last checkpoint of this attempt, or None), ``eval`` (the last evaluation, {} when stopped before);
        ``control`` (the verdict of the rule that ended it after a finished step), ``rollback`` (that of the rule that
        goes back, with the ``position`` in the data after the batch that it fired on).

    Raises:
        Failed: 41 when loss or gradient is not finite, 40 when a rule of the job stops. Anything that a phase refuses.
    """
    began = time.monotonic()
    brief = Brief.read(payload)
    ledger = Ledger(brief.folder.ledger(place.rank), place.rank, brief.attempt)
    world: World | None = None
    rank: _Rank | None = None
    try:
        device = open_device(
            brief.job.run.device,
            place.local_rank,
            threads=place.threads,
            deterministic=brief.job.train.deterministic,
        )
        recorder = CallRecorder(ledger, None if place.slot is None else Slot(place.slot, place.rank))
        if place.world_size > 1:
            world = open_world(place, device.kind, recorder, place.timeout_s)
        rank = _assemble(brief, place.rank, device, world, ledger, recorder, emit, place.timeout_s, began)
        end = _train(rank, _or_out_of_time(stop, brief, began))
        return _finish(rank, end)
    finally:
        if rank is not None:
            with ledger.span("recover", "checkpoint"):
                rank.keeper.close()
        if world is not None:
            world.close()
        ledger.close()


def _assemble(
    brief: Brief,
    number: int,
    device: Device,
    world: World | None,
    ledger: Ledger,
    recorder: CallRecorder,
    emit: Emit,
    timeout_s: float,
    began: float,
) -> _Rank:
    job = brief.job
    mesh = build_mesh(brief.layout, number, world)
    prepared = Prepared.open(brief.prepared)
    if number == 0:
        phases.check_plan(brief, prepared.vocab)
    feed = Feed(job, prepared, mesh, device, brief.layout.mbs)
    again = brief.resume is not None or (brief.alive is not None and brief.alive.step is not None)
    built = assemble(
        job, job.model.widths(prepared.vocab), brief.precision, mesh, device, unfilled if again else None
    )
    scalars, commit = _state(brief, built, mesh, device, feed, recorder, timeout_s)
    start = int(scalars.get("step", 0))
    feed.start_at(start, _position(brief, start, scalars))
    schedule = _schedule(brief, feed)
    keeper = Keeper(
        brief, built, schedule, feed, steps_of(job.checkpoint.keep_every, feed), mesh.everyone, device, start
    )
    report = _reporter(brief, emit) if number == 0 else _silent
    clock, rules = _clock(brief), armed(job.control)

    def tell(step: int, verdict: Verdict) -> None:
        report(_event(brief, clock, **fired_row(step, verdict)))

    watch = Watch(of_rows(rules), report, tell)
    telemetry = Telemetry(
        RunFacts(
            mesh.world_size,
            job.data.sequence_length,
            brief.flops_per_token,
            brief.peak_flops,
            feed.train.rows,
            brief.usd_per_device_hour,
            (mesh.at["pp"], mesh.layout.pp),
        ),
        brief.attempt,
        watch.row if number == 0 else None,
        clock,
        tokens=float(scalars.get("tokens", 0)),
        samples=float(scalars.get("samples", 0)),
    )
    remembered = restored(scalars, at_step(rules))
    rank = _Rank(
        *(brief, mesh, device, ledger, recorder, feed, built, schedule, keeper, commit, telemetry, report),
        *(rules, remembered, watch),
    )
    if rank.first:
        _tell_finished(rank)
        emit({"kind": "start", "step": start, "steps": schedule.steps})
        phases.write_compute(brief, built, feed, time.monotonic() - began)
        phases.write_deliver(brief, built, mesh)
        phases.write_update(brief, built, schedule, feed, mesh, None)
    return rank


def _state(
    brief: Brief,
    built: Assembly,
    mesh: Mesh,
    device: Device,
    feed: Feed,
    recorder: CallRecorder,
    timeout_s: float,
) -> tuple[dict[str, Any], SharedCommit | None]:
    """The run's numbers at its start, with model and optimizer as they are then; and what is told of each change.

    The state goes on from the memory of the attempt before where all of it is there, else from a checkpoint, else from
    the beginning; and lives where the next attempt finds it.
    """
    alive = brief.alive if device.kind == "cpu" else None
    if alive is None:
        return resume(brief, built, mesh.everyone, device), None
    memory = Memory(alive, built, mesh)
    if alive.step is not None:
        memory.take_up()
        scalars, safe = alive.scalars, True
    else:
        safe = memory.enter(keep=brief.resume is None)
        scalars = resume(brief, built, mesh.everyone, device)
    return scalars, memory.commit(recorder, timeout_s, scalars, feed) if safe else None


def _tell_finished(rank: _Rank) -> None:
    """Rows of steps that are finished and that the rank which died had not written: a row waits for the next step."""
    alive = rank.brief.alive
    if alive is None or alive.step is None:
        return
    last = last_row(rank.brief.folder.metrics)
    for one in alive.finished:
        if last is None or one.step > int(last["step"]):
            counts = Counts(one.valid_tokens, one.target_bytes, one.rows)
            result = StepResult(one.loss, one.grad_norm, counts, (), ())
            known = {"attempt": alive.attempt, "tokens": round(one.tokens), "samples": round(one.samples)}
            known["skipped"] = int(was_skipped(one.remembered))
            rank.report(rank.telemetry.late_row(one.step, one.rate, result, one.wall_s, **known))


def _train(rank: _Rank, stop: Stop) -> End:
    job, steps = rank.brief.job, rank.schedule.steps
    policy = rank.built.policy(job, rank.mesh, rank.device, rank.ledger)
    policy.commit = rank.commit
    policy.rules, policy.memory = at_step(rank.rules), rank.remembered
    rank.keeper.remembered = lambda: kept(policy.memory, policy.rules)
    rank.ledger.close_step(None)  # start-up is over

    def save(step: int, until_safe: bool) -> float:
        rank.keeper.alive = lambda: rank.recorder.at_step(step)
        waited_s = rank.keeper.begin(step, rank.telemetry.tokens, rank.telemetry.samples)
        return waited_s + (rank.keeper.finish() if until_safe else 0.0)

    rank.keeper.told = lambda saved: _tell_saved(rank, saved)
    timed = rank.brief.timed
    hooks = Hooks(
        batches=rank.feed,
        evaluate=lambda step: None if timed else _evaluate(rank, step, job.eval.limit),
        save=(lambda step, until_safe: 0.0) if timed else save,
        stop=lambda: stop() or rank.watch.stop(),
        beat=lambda step: _beat(rank, step),
        fired=lambda step, verdict: _tell_fired(rank, step, verdict),
        compare=_comparison(rank),
    )
    until = rank.brief.until
    return train(
        policy,
        rank.schedule,
        hooks,
        rank.telemetry,
        rank.ledger,
        rank=rank.mesh.rank,
        start=rank.keeper.start,
        last=steps if until is None else min(until, steps),
        saved=rank.saved,
        eval_due=Due(job.eval.every, steps, rank.feed.steps_per_epoch, time.monotonic),
        save_due=Due(job.checkpoint.every, steps, rank.feed.steps_per_epoch, time.monotonic),
        compare_due=Due(job.restart.compare_replicas, steps, rank.feed.steps_per_epoch, time.monotonic),
    )


def _comparison(rank: _Rank) -> Callable[[int], list[Verdict]]:
    """What the rules say of replicas, asked after a step by all ranks."""
    replicas = rank.built.replicas()
    off = rank.brief.timed or rank.brief.job.restart.compare_replicas.kind == "never"

    def compare(step: int) -> list[Verdict]:
        found = None if off else replicas.compare(rank.device.torch)
        return [] if found is None else between_steps(rank.rules, "replicas", str(found))

    return compare


def _tell_fired(rank: _Rank, step: int, verdict: Verdict) -> None:
    batch = {} if verdict.signal == "replicas" else {"batch": rows_of(rank.feed, step)}
    found = fired_row(step, verdict, **batch)
    rank.report(_event(rank.brief, rank.telemetry.now_s, **found))


def _tell_saved(rank: _Rank, saved: Saved) -> None:
    detail = {"path": str(saved.path), "bytes": saved.nbytes, "seconds": round(saved.seconds, 4)}
    now_s = rank.telemetry.now_s
    rank.report(_event(rank.brief, now_s, step=saved.step, event="checkpoint", detail=detail))
    if saved.warning:
        rank.report(_event(rank.brief, now_s, step=saved.step, event="warning", detail=saved.warning))


def _finish(rank: _Rank, end: End) -> dict[str, Any]:
    """After the loop: the last row, the last evaluation (of everything), the last records."""
    rank.keeper.finish()  # of a run that a verdict ends, an earlier save may be under way
    carried = torch.tensor(rank.telemetry.carried, dtype=torch.float64).to(rank.device.torch)
    rank.telemetry.release(tuple(rank.mesh.sum(carried).tolist()))
    found: dict[str, float] = {}
    if end.verdict is None and not end.stop and not rank.brief.timed:
        with rank.ledger.span("compute", "evaluate"):
            found = _evaluate(rank, end.step, None)
    if rank.first:
        phases.write_update(rank.brief, rank.built, rank.schedule, rank.feed, rank.mesh, end)
        phases.write_recover(rank.brief, rank.built, rank.feed, end, rank.keeper.last)
    if end.verdict is not None and end.verdict.action == "stop":
        raise stopped_by(rank.brief, rank.feed, rank.keeper, end)
    saved = rank.keeper.last
    return {
        "step": end.step,
        "steps": rank.schedule.steps,
        "stop": end.stop,
        "saved": None if saved is None else saved.step,
        "eval": found,
        "control": None if rank.watch.halted is None else asdict(rank.watch.halted),
        "rollback": None if end.verdict is None else going_back(rank.feed, end),
    }


def _evaluate(rank: _Rank, step: int, limit: int | None) -> dict[str, float]:
    """Held-out loss after ``step`` on at most ``limit`` rows; rank 0 reports it."""
    built = rank.built
    found = held_out_loss(
        built.delivery, built.passes(rank.ledger), _alive(rank, step, limit), rank.mesh, rank.device
    )
    if rank.first:
        count_eval_read(rank.brief.folder)
        now_s = round(rank.telemetry.now_s(), 4)
        told = {"kind": "eval", "step": step, "attempt": rank.brief.attempt, "time_s": now_s}
        rank.report(told | {"set": "held-out", **found})
    return found


def _alive(rank: _Rank, step: int, limit: int | None) -> Iterator[tuple[MicroBatch, int]]:
    """The evaluation's batches; each is a sign of life, since a long evaluation has no collective of its own."""
    for batch in rank.feed.evaluation(limit):
        rank.recorder.at_step(step)
        yield batch


def _beat(rank: _Rank, step: int) -> None:
    """Once a step; the worst rank's memory is asked for at powers of two and every 50 steps."""
    rank.recorder.at_step(step)
    rank.keeper.look()
    since = step - rank.keeper.start
    if since == 1 and not rank.brief.timed:
        rank.keeper.prepare()  # not before the first step: a start has no cores to spare
    if step % 50 == 0 or since & (since - 1) == 0:
        memory = torch.tensor(rank.device.memory_gib(), dtype=torch.float64).to(rank.device.torch)
        reserved, allocated = rank.mesh.max(memory).tolist()
        rank.telemetry.remember_memory(reserved, allocated)


def _event(brief: Brief, now_s: Callable[[], float], *, step: int, event: str, detail: Any) -> dict[str, Any]:
    row = {"kind": "event", "step": step, "attempt": brief.attempt, "time_s": round(now_s(), 4)}
    return row | {"event": event, "detail": detail}


def _position(brief: Brief, start: int, scalars: Mapping[str, Any]) -> int:
    """Rows of data used or left out before the steps after ``start``."""
    if brief.skip_to is not None and brief.skip_to[0] == start:
        return brief.skip_to[1]
    return int(scalars.get("position", 0))


def _schedule(brief: Brief, feed: Feed) -> Schedule:
    table = brief.job.optimizer
    return Schedule(
        kind=table.schedule,
        peak=table.lr,
        steps=feed.steps,
        warmup_steps=as_steps(table.warmup_steps, feed.steps),
        decay_steps=as_steps(table.decay_steps, feed.steps),
        min_ratio=table.min_lr_ratio,
    )


def _reporter(brief: Brief, emit: Emit) -> Callable[[dict[str, Any]], None]:
    """Rows go to ``metrics.jsonl`` first, then to whoever watches."""
    writer = MetricsWriter(brief.folder.metrics)

    def report(row: dict[str, Any]) -> None:
        writer.write(row)
        emit(row)

    return report


def _silent(row: dict[str, Any]) -> None:
    return None


def _clock(brief: Brief) -> Callable[[], float]:
    """Seconds since the run's first start: one reading of the wall clock, then monotonic."""
    before_s = max(0.0, time.time() - brief.started_unix_s)
    began = time.monotonic()
    return lambda: before_s + time.monotonic() - began


def _or_out_of_time(stop: Stop, brief: Brief, began: float) -> Stop:
    limit_s = brief.job.train.max_time
    if limit_s is None:
        return stop
    return lambda: stop() or ("max_time" if time.monotonic() - began >= limit_s else None)
