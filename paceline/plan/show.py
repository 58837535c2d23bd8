"""The plan as text: the table of interface §10, and the one line that ``train`` prints."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from paceline.ledger.outcome import printable
from paceline.ledger.plural import many
from paceline.plan.answer import GIB, Candidate, Plan, Rejection
from paceline.plan.digits import amount, beyond, grouped, money, three
from paceline.plan.layout import Layout
from paceline.plan.tally import grouped as whole
from paceline.plan.ties import tied

LABEL = 9
NOTABLE = 4
LONG_PRICE = 1e6
"""USD an hour, from which cents are noise."""
BUSY = "measured on a busy machine: may be far off"

Column = tuple[str, Callable[[Candidate], str], bool]


def table(plan: Plan, *, width: int = 100, job: str = "") -> str:
    """The answer on one screen of ``width`` columns; columns on the right go first when it is narrow.

    ``job`` is the job as it was typed, with its ``--set`` words, for the line that says what to do next.
    """
    limit = plan.cluster.memory_of_rank(plan.cluster.ranks_on_host(plan.best.layout.world_size)) / GIB
    lines = [_job(plan), _cluster(plan), _labelled("answer", answer(plan)), ""]
    lines += _candidates(plan, limit, width)
    if plan.cluster.rate is not None or plan.cluster.own is not None:
        lines += ["", _labelled("cost", cost(plan.best.usd_parts))]
    lines += ["", *_rejected(plan, width)]
    if close := len(tied(plan)):
        lines.append(
            _labelled(
                "tied", f"{many(close, 'cut')} cannot be told from 1: at least 10 % likely to be faster"
            )
        )
    if plan.tally.divide:
        lines.append(_labelled("searched", str(plan.tally)))
    if plan.crossovers:
        lines.append("would change the answer   " + " · ".join(plan.crossovers))
    lines += [f"what if  {_what_if(row)}" for row in plan.what_if]
    if plan.assumed:
        lines.append(_labelled("assumed", " · ".join(plan.assumed)))
    lines.append(_labelled("disk", _disk(plan)))
    lines.append(_labelled("next", _next(plan, job)))
    return "\n".join(line.rstrip() for line in lines)


def _next(plan: Plan, job: str) -> str:
    """The command that follows; a model that is planned only has none here."""
    beyond = plan.facts.work.widths.beyond
    if beyond is not None:
        return f"planned only: training {plan.facts.model} ({beyond.family or 'unknown family'}) is not in this version"
    if plan.facts.bare:
        keys = 'model.hf, model.weights = "random" and data.train'
        return f"a job file with {keys} (paceline job new); --layout {plan.best.layout}"
    word = job or plan.facts.name + ".toml"
    command = f"paceline train {word} --layout {plan.best.layout}"
    # `train` refuses a cluster that is not this machine, so the command alone would be advice that does not work.
    return printable(command if plan.cluster.visible else f"on that cluster: {command}", 4000)


def summary(plan: Plan) -> str:
    """One line: ``single (fsdp=2 is 1.3× slower here: …) · predicts 0.41 s a step, 1.2 GiB``."""
    why = plan.reason.partition(": ")[2] or plan.reason
    best = plan.best
    text = (
        f"{best.layout} ({why}) · predicts {seconds(best.step_s[1])} s a step, {best.memory_gib[2]:.1f} GiB"
    )
    return f"{text} · {BUSY}" if plan.busy else text


def answer(plan: Plan) -> str:
    """The decision with its price, why, and the best of the other scopes beside it."""
    best = plan.best
    why = plan.reason.partition(": ")[2] or plan.reason
    parts = [
        f"{_place(plan)}: {_price(best)}",
        why[:1].upper() + why[1:] if why[:3] in ("it ", "as ") else why,
    ]
    for scope, candidate in plan.scopes.items():
        if scope != best.scope:
            parts.append(f"{_SCOPE[scope]}: {_price(candidate)}")
    return ". ".join(parts)


_SCOPE = {"device": "One device", "host": "One host", "cluster": "All hosts"}


def _place(plan: Plan) -> str:
    world = plan.best.layout.world_size
    if plan.best.scope == "device":
        return "one device"
    if plan.best.scope == "host":
        return f"one host, {many(world, 'process' if plan.cluster.is_cpu else 'device')} (no cluster needed)"
    return f"{many(-(-world // plan.cluster.devices), 'host')}, {many(world, 'device')}"


def cost(parts: Mapping[str, float]) -> str:
    """``rent $2 272 · egress $2.89``; what is not known is not in it, and stands under ``assumed``."""
    told = [f"{name} {money(usd)}" for name, usd in parts.items()]
    return " · ".join(told) if told else "not known: see assumed"


def in_units(count: float) -> str:
    """``8.03 B``, ``5.3 M``, ``37.2 k``, ``912``."""
    for size, unit, digits in ((1e9, "B", 2), (1e6, "M", 1), (1e3, "k", 1)):
        if count >= size:
            return f"{count / size:.{digits}f} {unit}"
    return f"{count:.0f}"


def seconds(value: float) -> str:
    """Two or three digits."""
    if beyond(value):
        return three(value)
    if value >= 100:
        return f"{value:.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}" if value >= 0.1 else f"{value:.4f}"


def _labelled(label: str, text: str) -> str:
    return f"{label:<{LABEL}}{text}"


def _job(plan: Plan) -> str:
    facts, work = plan.facts, plan.facts.work
    count = work.count.total
    size = in_units(count)
    steps = many(facts.steps, "step") if facts.steps else "unknown length"
    flops = facts.flops_token
    each = f"{flops / 1e9:.1f} GFLOP/token" if flops >= 1e9 else f"{in_units(flops)}FLOP/token"
    text = f"{facts.name} · {facts.model}, {size} parameters, {each} (causal), {work.precision}"
    return _labelled(
        "job", f"{text} · {work.global_batch} × {many(work.sequence_length, 'token')} a step · {steps}"
    )


def _cluster(plan: Plan) -> str:
    cluster, sheet = plan.cluster, plan.cluster.accelerator
    hosts = many(cluster.hosts, "host")
    if cluster.is_cpu:
        memory = f"{cluster.memory_bytes / GIB:.0f} GiB"
        told = f"{hosts} × {many(cluster.devices, 'core')}, {memory} · {cluster.cpu_model or 'CPU'}"
        return _labelled("cluster", f"{told} · {_measured(plan)}")
    parts = [f"{hosts} × {cluster.devices} {sheet.name}"]
    if cluster.link_bytes_per_s:
        parts.append(f"{sheet.link or 'link'} {cluster.link_bytes_per_s / 1e9:.0f} GB/s")
    if cluster.hosts > 1 and cluster.nic_bytes_per_s:
        parts.append(f"{cluster.nic_bytes_per_s * 8 / 1e9:.0f} Gbit/s a device between hosts")
    if cluster.usd_per_device_hour is not None:
        dated = f" (catalogue {cluster.price_date})" if cluster.price_date else ""
        if cluster.rate is not None and dated:
            dated = f" ({cluster.rate.cloud} {cluster.rate.region}, {cluster.price_date})"
        price = cluster.usd_per_device_hour
        shown = f"{price:.2f}" if price < LONG_PRICE else amount(price)
        parts.append(f"${shown} a device-hour{dated}")
    return _labelled("cluster", " · ".join(parts))


def _measured(plan: Plan) -> str:
    if not plan.measured_at:
        return "not measured: catalogue, wide interval"
    return f"measured {plan.measured_at[:10]}" + (" while busy, wide interval" if plan.busy else "")


def _price(candidate: Candidate) -> str:
    if candidate.hours is None:
        return f"{seconds(candidate.step_s[1])} s a step"
    hours = candidate.hours[1]
    time = (
        f"{three(hours) if beyond(hours) else f'{hours:.1f}'} h"
        if hours >= 1
        else f"{hours * 60:.1f} min"
        if hours * 60 >= 1
        else f"{seconds(hours * 3600)} s"
    )
    return time if candidate.usd is None else f"{time}, {money(candidate.usd)}"


def _candidates(plan: Plan, limit: float, width: int) -> list[str]:
    columns: list[Column] = [
        ("layout", lambda c: str(c.layout), False),
        ("step s", lambda c: seconds(c.step_s[1]), True),
        ("90 %", lambda c: f"{seconds(c.step_s[0])}–{seconds(c.step_s[2])}", False),
        ("tok/s", lambda c: grouped(c.tokens_per_s), True),
        ("MFU", lambda c: _mfu(c.mfu), True),
        (f"GiB of {limit:.0f}", lambda c: three(c.memory_gib[2]), True),
        ("$", lambda c: "–" if c.usd is None else amount(c.usd), True),
        ("verdict", lambda c: c.verdict, False),
    ]
    if all(c.usd is None for c in plan.candidates):
        columns.pop(-2)
    if any(c.predicted_s is not None for c in plan.candidates):
        columns.insert(3, ("predicted", _predicted, True))
    cells = [[name, *(show(c) for c in plan.candidates)] for name, show, _ in columns]
    if _wide(cells) > width:  # a verdict is worth more than its percentage
        cells[-1] = [verdict.partition(" (")[0] for verdict in cells[-1]]
    while len(cells) > 2 and _wide(cells) > width:
        cells.pop()
    widths = [max(map(len, column)) for column in cells]
    lines = []
    for row in range(len(plan.candidates) + 1):
        number = " #" if row == 0 else f"{row:>2}"
        text = [
            column[row].rjust(w) if columns[i][2] else column[row].ljust(w)
            for i, (column, w) in enumerate(zip(cells, widths, strict=True))
        ]
        lines.append(f"{number}  " + "  ".join(text))
    return lines


def _predicted(candidate: Candidate) -> str:
    """Of a layout that was run; ``step s`` is what was measured."""
    if candidate.predicted_s is None:
        return ""
    return seconds(candidate.predicted_s[1])


def _mfu(mfu: float) -> str:
    """A small model on a large device reaches some thousandths: not 0, and not unknown."""
    if not mfu:
        return "–"
    return "<1 %" if mfu < 0.005 else f"{mfu * 100:.0f} %"


def _wide(cells: Sequence[Sequence[str]]) -> int:
    return 4 + sum(max(map(len, column)) + 2 for column in cells)


def _rejected(plan: Plan, width: int) -> list[str]:
    counts = plan.counts()
    gone = sum(counts.values())
    kinds = " · ".join(f"{whole(n)} {'rules' if kind == 'rule' else kind}" for kind, n in counts.items())
    head = f"rejected {whole(gone)} of {whole(gone + len(plan.candidates))}" + (f": {kinds}" if kinds else "")
    every = len(plan.rejected) == gone
    note = "(all: --save plan.html, or --json)" if every else "(by family: --save plan.html, or --json)"
    lines = [f"{head}{note:>{max(len(note) + 2, width - len(head))}}"] if plan.rejected else [head]
    told = [(str(r.layout), _value(r), r.nearest) for r in notable(plan.rejected)]
    widest = [max((len(row[i]) for row in told), default=0) for i in range(2)]
    lines += [
        f" {name:<{max(27, widest[0])}}  {value:<{max(20, widest[1])}}  {near}" for name, value, near in told
    ]
    return lines


def notable(rejected: Sequence[Rejection]) -> list[Rejection]:
    """A few rejections that answer "why not": one device, plain dp, and the nearest miss of each kind."""
    cuts: dict[Layout, Rejection] = {}
    for rejection in sorted(rejected, key=lambda r: r.value):
        cuts.setdefault(rejection.layout.replace(mbs=None, recompute="none"), rejection)
    first = [cuts[layout] for layout in cuts if layout == Layout(dp=layout.dp)]
    rest = sorted(
        (r for r in cuts.values() if r not in first), key=lambda r: r.value / r.limit if r.limit else 9.0
    )
    return [*first[:2], *rest][:NOTABLE]


def _value(rejection: Rejection) -> str:
    if not rejection.limit:
        return rejection.reason
    unit = rejection.unit.partition(" ")[0]
    if rejection.kind in ("memory", "deadline"):
        return f"{three(rejection.value)} {unit} of {three(rejection.limit)}"
    return f"{three(rejection.value)} {unit} against {three(rejection.limit)}"


def _what_if(row: Mapping[str, Any]) -> str:
    asked = printable(f"{row['key']}={row['value']}")
    head = f"{asked} → "
    if "refused" in row:
        return f"{head}refused: {row['refused']} (exit {row['exit_code']})"
    text = f"{head}{row['layout']}, {seconds(row['step_s'])} s a step"
    text += f", {three(row['hours'])} h" if row.get("hours") else ""
    text += f", {money(row['usd'])}" if row.get("usd") is not None else ""
    text += f", {three(row['memory_gib'])} GiB a rank" if "memory_gib" in row else ""
    if "says" in row:
        text += f", lr {row['learning_rate']:.3g}: {row['says']}"
    return text


def _disk(plan: Plan) -> str:
    disk = plan.disk
    text = (
        f"checkpoints {_gb(disk['checkpoint'])} × (keep {disk['kept'] - 1} + 1) = {_gb(disk['checkpoints'])}"
    )
    return f"{text}, {_gb(disk['free'])} free" if "free" in disk else text


def _gb(size: float) -> str:
    for unit, factor in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6)):
        if size >= factor:
            return f"{three(size / factor)} {unit}"
    return f"{three(size / 1e3)} kB"
