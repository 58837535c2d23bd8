"""The torch half of plan: what this machine reaches, written into a file that ``plan/measured.py`` reads.

The launcher runs the entry once for each of ``plan.measured.worlds``: one rank on all cores, two that share
them, four that only talk. All ranks time the same thing at the same moment, so that what they share (memory
bus, caches, loopback) is in the figures. A run that is cut short leaves the file as it was.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.distributed as dist

from paceline.compute.models.decoder import Decoder
from paceline.compute.step import micro_batch_loss
from paceline.deliver.device import DTYPES
from paceline.deliver.wire.record import CallRecorder
from paceline.deliver.wire.slot import Slot
from paceline.deliver.wire.world import open_world
from paceline.job.presets import ModelWidths
from paceline.ledger.atomic import read_json_or, write_json
from paceline.ledger.plural import many
from paceline.ledger.resident import resident_bytes
from paceline.plan.measured import QUIET, SCHEMA, merged
from paceline.recipes.messages import messages
from paceline.recipes.place import Emit, Place, Stop

MATMUL_SIZES = {"fp32": (128, 256, 512, 1024), "fp64": (512,), "bf16": (256,)}
WORTH_MORE_SIZES = (512, 1024)  # of bf16, where the smallest says that the device has instructions for it
STREAM_NUMBERS = 8 << 20  # 32 MiB of float32, out of every cache
OPTIMIZER_NUMBERS = 8 << 20  # with its states 128 MiB: as a model's own, none of it is in a cache
SHAPES = (  # hidden, feed-forward, heads, key/value heads, sequence, micro-batch; vocabulary 2048
    (256, 704, 4, 2, 256, 2),
    (512, 1408, 8, 4, 512, 1),
)
MORE_SHAPES = (  # narrow heads cost a CPU's attention more than their products say
    (64, 176, 4, 2, 128, 8),
    (128, 352, 4, 4, 256, 4),
    (256, 704, 4, 4, 256, 4),
    (512, 1408, 8, 8, 256, 2),
)
EACH_S, BLOCK_S = 0.15, 0.5  # how long one figure is timed
SHARE_SIZE, SHARE_S = 512, 1.0
BUSY_TIMES = 4  # as many samples where other programs hold the cores
BLOCKS_S, MORE_BLOCKS_S = (
    4.0,
    9.0,
)  # no further block is begun after this, in the only round and in one of several
LARGEST_BLOCK_FLOPS = 60e9  # a larger micro-batch would take seconds: the general shapes must do


Shape = tuple[ModelWidths, int, int]
"""Widths, sequence length, micro-batch."""


@dataclass(frozen=True)
class Bench:
    """How this rank times: alone, or in step with the others.

    Attributes:
        meet: returns when every rank is here. mean: the mean of a value over the ranks.
        stop: a reason to leave early. busy: other programs hold the cores: of each figure the shortest time counts,
            since tiny operators wait a scheduler's slice for a core, and would look a hundred times slower.
    """

    threads: int
    processes: int
    meet: Callable[[], None]
    mean: Callable[[float], float]
    stop: Stop
    busy: bool = False

    def seconds(
        self, work: Callable[[], object], for_s: float, least: int = 3, *, best: bool = False
    ) -> float:
        """Seconds of one call of ``work``: median of as many as fit ``for_s``, mean over the ranks.

        The median leaves out what else ran for a moment, and keeps what the ranks do to each other.
        ``best`` takes the shortest: what the hardware can do, which MFU divides by.
        """
        work()
        self.meet()
        times: list[float] = []
        end = time.perf_counter() + for_s
        least *= BUSY_TIMES if self.busy else 1
        while len(times) < least or time.perf_counter() < end:
            began = time.perf_counter()
            work()
            times.append(time.perf_counter() - began)
        times.sort()
        return self.mean(times[0 if best or self.busy else len(times) // 2])

    def under(self, **figures: Any) -> dict[str, Any]:
        """A row with the conditions it was taken under."""
        return {"threads": self.threads, "processes": self.processes, **figures}


def run(payload: dict[str, Any], place: Place, emit: Emit, stop: Stop) -> dict[str, Any]:
    """Measure with ``place.world_size`` simultaneous ranks and merge the figures into the machine's file.

    Args:
        payload: ``file`` to write and ``key`` of the machine (``plan.measured``); ``compute``: time compute,
            not only collectives; optional ``busy``, other
            programs hold the cores; optional ``rounds``: everything but the products is timed so often, some seconds
            apart, and the medians count; optional ``widths`` (of a ModelWidths), ``sequence_length`` and ``mbs``, a
            list of micro-batches: times the very model that will train.

    Returns:
        The rows of this world, as in the file.
    """
    torch.set_num_threads(place.threads)
    began = time.perf_counter()
    size = resident_bytes()
    if place.world_size == 1:
        found = _measure(payload, Bench(place.threads, 1, _nothing, _same, stop))
    else:
        recorder = CallRecorder(None, None if place.slot is None else Slot(place.slot, place.rank))
        world = open_world(place, "cpu", recorder, place.timeout_s)
        try:
            bench = Bench(place.threads, place.world_size, _meet, _mean, stop, bool(payload.get("busy")))
            found = _measure(payload, bench)
            rows = messages(place.world_size, int(payload.get("rounds", 1)), busy=bench.busy)
            found["collectives"] = [bench.under(**row) for row in rows]
        finally:
            world.close()
    found["process_bytes"] = size
    found["seconds"] = round(time.perf_counter() - began, 3)
    if place.rank == 0 and payload.get("file"):
        write(Path(payload["file"]), str(payload.get("key", "")), found)
        emit(
            {
                "kind": "say",
                "field": "measured",
                "text": f"{many(place.world_size, 'rank')} in {found['seconds']:.1f} s",
            }
        )
    return found


def write(path: Path, key: str, found: Mapping[str, Any]) -> None:
    """Add the rows to the machine's file; rows under the same conditions are replaced."""
    path.parent.mkdir(parents=True, exist_ok=True)
    before = read_json_or(path, {})
    same = isinstance(before, dict) and before.get("schema") == SCHEMA and before.get("key") == key
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    head = {"schema": SCHEMA, "key": key, "at": now, "torch": torch.__version__}
    write_json(path, head | merged(before if same else {}, found))


def _measure(payload: Mapping[str, Any], bench: Bench) -> dict[str, Any]:
    found: dict[str, Any] = {"threads": bench.threads, "processes": bench.processes}
    if not payload.get("compute", True):
        return found
    more = MORE_SHAPES if int(payload.get("rounds", 1)) > 1 else ()
    shapes = [reference(*shape) for shape in (*SHAPES, *more)]
    if payload.get("widths"):
        widths = timed(ModelWidths(**payload["widths"]))
        own = [(widths, int(payload["sequence_length"]), int(mbs)) for mbs in payload.get("mbs", [1])]
        shapes = [*(s for s in own if small(*s)), *shapes]
    found["cpu_share"] = cpu_share(bench)
    found["matmul"] = matmul(bench)
    bench = replace(bench, busy=bench.busy or found["cpu_share"] < QUIET)
    if bench.processes == 1:
        found["dispatch_s"] = dispatch_s(bench)
    precisions = _precisions(found["matmul"], bench)
    limit_s = (MORE_BLOCKS_S if more else BLOCKS_S) * len(precisions)
    rounds = [_round(bench, shapes, precisions, limit_s) for _ in range(int(payload.get("rounds", 1)))]
    for name in ("stream", "optimizer", "blocks"):
        found[name] = medians([one[name] for one in rounds])
    return found


def _precisions(products: Sequence[Mapping[str, Any]], bench: Bench) -> tuple[str, ...]:
    """In which a decoder is timed: bf16 too where the ranks agree that its products are no slower than fp32's."""
    best = {
        p: max((r["flops_per_s"] for r in products if r["precision"] == p), default=0.0)
        for p in ("fp32", "bf16")
    }
    return ("fp32", "bf16") if bench.mean(float(best["bf16"] > best["fp32"])) > 0.5 else ("fp32",)


def _round(
    bench: Bench, shapes: Sequence[Shape], precisions: Sequence[str], limit_s: float
) -> dict[str, list[dict[str, Any]]]:
    """Memory, optimizer and blocks, once."""
    found: dict[str, list[dict[str, Any]]] = {
        "stream": [stream(bench)],
        "optimizer": [optimizer(bench)],
        "blocks": [],
    }
    began = time.perf_counter()
    for shape in shapes:
        # The ranks must agree whether there is another one, so they compare the mean of their clocks.
        if bench.mean(time.perf_counter() - began) > limit_s:
            break
        found["blocks"].extend(block(*shape, precision, bench) for precision in precisions)
    return found


def medians(rounds: Sequence[Sequence[Mapping[str, Any]]]) -> list[dict[str, Any]]:
    """The rows of the round that has fewest, each figure the median of the rounds'."""
    figures = ("bytes_per_s", "parameters_per_s", "layer_s", "outer_s", "seconds")
    return [
        {**rows[0], **{name: median(row[name] for row in rows) for name in figures if name in rows[0]}}
        for rows in zip(*rounds, strict=False)
    ]


def reference(hidden: int, inner: int, heads: int, key_value: int, length: int, mbs: int) -> Shape:
    """Widths, sequence length and micro-batch of one of the general shapes."""
    widths = ModelWidths(
        vocab_size=2048,
        hidden_size=hidden,
        intermediate_size=inner,
        num_hidden_layers=2,
        num_attention_heads=heads,
        num_key_value_heads=key_value,
        head_dim=hidden // heads,
    )
    return widths, length, mbs


def timed(widths: ModelWidths) -> ModelWidths:
    """The layer that stands for a model's own: its last kind, experts as one MLP of what a token meets of them."""
    from paceline.plan.model import features, kinds

    kind = kinds(widths)[-1][0]
    inner = features(kind)
    return replace(
        kind,
        num_experts=0,
        num_experts_per_tok=0,
        n_shared_experts=0,
        moe_intermediate_size=0,
        intermediate_size=inner,
    )


def small(widths: ModelWidths, length: int, mbs: int) -> bool:
    """Whether one block and the head of this micro-batch are timed within a few seconds."""
    from paceline.plan.model import head_flops, layer_flops

    return (sum(layer_flops(widths, length)) + head_flops(widths)) * length * mbs <= LARGEST_BLOCK_FLOPS


def cpu_share(bench: Bench) -> float:
    """Of its cores' time, what this process got: all of it while fp32 products keep its threads at work, unless other
    programs run. (bf16 products would not do: torch computes them on one thread.)"""
    a, out = torch.ones(SHARE_SIZE, SHARE_SIZE), torch.empty(SHARE_SIZE, SHARE_SIZE)
    torch.mm(a, a, out=out)
    bench.meet()
    wall_s, cpu_s = time.perf_counter(), time.process_time()
    while time.perf_counter() - wall_s < SHARE_S:
        torch.mm(a, a, out=out)
    spent_s = (time.perf_counter() - wall_s) * bench.threads
    return round(min(1.0, bench.mean((time.process_time() - cpu_s) / spent_s)), 3)


def matmul(bench: Bench) -> list[dict[str, Any]]:
    """FLOP/s of square products [n, n] × [n, n] of one rank, by precision and size."""
    rows: list[dict[str, Any]] = []
    for precision, sizes in MATMUL_SIZES.items():
        for n in sizes:
            if bench.stop():
                return rows
            rows.append(_product(bench, precision, n))
    fp32, bf16 = (max(r["flops_per_s"] for r in rows if r["precision"] == p) for p in ("fp32", "bf16"))
    if bf16 > fp32 / 2:
        rows.extend(_product(bench, "bf16", n) for n in WORTH_MORE_SIZES)
    return rows


def _product(bench: Bench, precision: str, n: int) -> dict[str, Any]:
    a = torch.ones(n, n, dtype=DTYPES[precision])
    out = torch.empty_like(a)
    # bf16 without instructions for it takes 30 ms for the smallest of these: once is enough to know.
    least = 1 if precision == "bf16" else 3
    seconds = bench.seconds(lambda: torch.mm(a, a, out=out), EACH_S, least, best=True)
    return bench.under(precision=precision, size=n, flops_per_s=2 * n**3 / seconds)


def stream(bench: Bench) -> dict[str, Any]:
    """Bytes a second of one rank that reads two large tensors and writes a third."""
    a, b = torch.ones(STREAM_NUMBERS), torch.ones(STREAM_NUMBERS)
    out = torch.empty_like(a)
    seconds = bench.seconds(lambda: torch.add(a, b, out=out), EACH_S)
    return bench.under(bytes_per_s=12 * STREAM_NUMBERS / seconds)


def optimizer(bench: Bench) -> dict[str, Any]:
    """Parameters a second of fused AdamW in float32."""
    parameter = torch.nn.Parameter(torch.ones(OPTIMIZER_NUMBERS))
    parameter.grad = torch.ones(OPTIMIZER_NUMBERS)
    adamw = torch.optim.AdamW([parameter], fused=True)
    seconds = bench.seconds(adamw.step, EACH_S)
    return bench.under(parameters_per_s=OPTIMIZER_NUMBERS / seconds)


def block(widths: ModelWidths, length: int, mbs: int, precision: str, bench: Bench) -> dict[str, Any]:
    """Seconds of forward and backward: of one block, and of embedding, last norm, head and loss alone."""
    outer = _step_s(widths, 0, length, mbs, precision, bench, BLOCK_S / 2)
    both = _step_s(widths, 2, length, mbs, precision, bench, BLOCK_S)
    names = ("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim")
    return bench.under(
        precision=precision,
        sequence_length=length,
        mbs=mbs,
        vocab_size=widths.vocab_size,
        **{name: getattr(widths, name) for name in names},
        kind=widths.to_dict(),
        layer_s=max((both - outer) / 2, 1e-6),
        outer_s=outer,
    )


def dispatch_s(bench: Bench) -> float:
    """Seconds of the operators of one block when there is nothing to compute."""
    widths = reference(16, 32, 1, 1, 4, 1)[0]
    outer = _step_s(widths, 0, 4, 1, "fp32", bench, EACH_S / 2)
    return max((_step_s(widths, 4, 4, 1, "fp32", bench, EACH_S) - outer) / 4, 1e-6)


def _step_s(
    widths: ModelWidths, layers: int, length: int, mbs: int, precision: str, bench: Bench, for_s: float
) -> float:
    master = torch.float64 if precision == "fp64" else torch.float32
    model = Decoder(replace(widths, num_hidden_layers=layers), DTYPES[precision]).to(
        master
    )  # as training has it
    for index, parameter in enumerate(model.parameters()):
        parameter.data.fill_(0.01 + 1e-4 * index)  # values do not change the time of a CPU's products
    tokens = torch.zeros(mbs, length, dtype=torch.int64)
    batch = {"tokens": tokens, "targets": tokens}

    def step() -> None:
        for parameter in model.parameters():
            parameter.grad = None
        micro_batch_loss(model, batch).backward()

    return bench.seconds(step, for_s)


def _over_ranks(value: float, op: Any) -> float:
    tensor = torch.tensor([value], dtype=torch.float64)
    dist.all_reduce(tensor, op=op)
    return float(tensor[0])


def _mean(value: float) -> float:
    return _over_ranks(value, dist.ReduceOp.SUM) / dist.get_world_size()


def _meet() -> None:
    dist.barrier()


def _nothing() -> None:
    return None


def _same(value: float) -> float:
    return value
