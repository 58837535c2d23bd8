"""The rule book: which layouts are refused, why, and the nearest one that runs. One table, read by all.

``plan`` drops what the rules refuse, ``train`` asks before a process starts, the docs print the table and
the tests walk it. A rule that is about this version ("not in this version") ends with exit 2, a rule
about the combination with exit 10.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from paceline.ledger.outcome import Exit, Refused
from paceline.plan.grammar import OPTIONS
from paceline.plan.layout import V_SCHEDULES, Layout
from paceline.plan.model import Widths


@dataclass(frozen=True)
class Facts:
    """What a rule may look at beside the layout.

    Attributes:
        devices: how many there are in all; 0 = not known, then nothing is said about them.
        hosts: over how many hosts. cpu: ranks are processes, so there is no upper limit.
    """

    widths: Widths | None = None
    global_batch: int = 0
    devices: int = 0
    hosts: int = 1
    cpu: bool = False
    optimizer: str = "adamw"


@dataclass(frozen=True)
class Rule:
    """One line of the rule book.

    Attributes:
        name: a word to refer to it. text: the rule, as the error prints it.
        broken: what is wrong with a layout, as the headline; empty when the rule holds.
        nearest: the nearest layout that keeps the rule.
        exit_code: 10, or 2 for what has not arrived.
    """

    name: str
    text: str
    broken: Callable[[Layout, Facts], str]
    nearest: Callable[[Layout, Facts], Layout]
    exit_code: Exit = Exit.RULE


ABSENT = "not in this version"


def _axis_absent(axis: str) -> Rule:
    def broken(layout: Layout, facts: Facts) -> str:
        return f"{axis}={layout.degree(axis) or 'auto'} is {ABSENT}" if layout.degree(axis) != 1 else ""

    def nearest(layout: Layout, facts: Facts) -> Layout:
        freed = layout.replace(**{axis: 1})
        moved = layout.degree(axis) if axis in ("tp", "pp", "cp") else 1
        return freed.replace(fsdp=freed.fsdp * moved) if moved > 1 and freed.fsdp > 0 else freed

    text = f"this version runs single, dp, fsdp and both; {axis} parses, and arrives with every axis"
    return Rule(f"{axis} absent", text, broken, nearest, Exit.USAGE)


def _option_absent(name: str) -> Rule:
    default = OPTIONS[name][0]

    def broken(layout: Layout, facts: Facts) -> str:
        value = getattr(layout, name)
        return f"{name}={value} is {ABSENT}" if value != default else ""

    def nearest(layout: Layout, facts: Facts) -> Layout:
        return layout.replace(**{name: default})

    return Rule(f"{name} absent", f"this version runs {name}={default} only", broken, nearest, Exit.USAGE)


def _vpp_absent(layout: Layout, facts: Facts) -> str:
    return f"vpp={layout.vpp} is {ABSENT}" if layout.pp == 1 and layout.vpp > 1 else ""


def _split_over_zero3(layout: Layout, facts: Facts) -> str:
    split = layout.schedule in ("zero-bubble", *V_SCHEDULES)
    if split and layout.fsdp > 1 and layout.zero == "zero3":
        return f"pp={layout.pp}:{layout.schedule} over fsdp={layout.fsdp}:zero3 gives wrong gradients"
    return ""


def _vpp_and_schedule(layout: Layout, facts: Facts) -> str:
    if layout.schedule in V_SCHEDULES and layout.vpp != 2:
        return f"vpp={layout.vpp} with {layout.schedule}"
    if layout.schedule in ("1f1b", "gpipe") and layout.vpp > 1 and layout.pp > 1:
        return f"vpp={layout.vpp} with {layout.schedule}"
    if layout.schedule in ("interleaved", "zero-bubble") and layout.vpp < 2:
        return f"vpp=1 with {layout.schedule}"
    return ""


def _heads(layout: Layout, facts: Facts) -> str:
    if facts.widths is None or layout.tp <= 1 or facts.widths.num_attention_heads % layout.tp == 0:
        return ""
    return f"tp={layout.tp} cannot cut this model"


def _nearest_heads(layout: Layout, facts: Facts) -> Layout:
    assert facts.widths is not None
    fits = _divisors(facts.widths.num_attention_heads)
    return layout.replace(tp=min(fits, key=lambda tp: (abs(tp - layout.tp), tp)))


def _stages(layout: Layout, facts: Facts) -> str:
    if facts.widths is None or layout.pp <= 1 or layout.stages <= facts.widths.num_hidden_layers:
        return ""
    return f"{layout.stages} stages for {facts.widths.num_hidden_layers} layers"


def _experts(layout: Layout, facts: Facts) -> str:
    ranks = layout.dp * layout.fsdp * layout.cp * layout.tp
    if layout.etp not in (1, layout.tp) or ranks % (layout.ep * layout.etp):
        return f"ep={layout.ep},etp={layout.etp} does not divide {ranks} ranks"
    return ""


def _too_many(layout: Layout, facts: Facts) -> str:
    if facts.devices and not facts.cpu and layout.world_size > facts.devices:
        return f"{layout.world_size} ranks for {facts.devices} devices"
    return ""


def _fewer_on_hosts(layout: Layout, facts: Facts) -> str:
    per_host = facts.devices // facts.hosts
    world = layout.world_size
    if facts.hosts > 1 and facts.devices and world > per_host and world % per_host:
        return f"{world} ranks leave a host of {per_host} devices half filled"
    return ""


def _whole_hosts(layout: Layout, facts: Facts) -> Layout:
    per_host = facts.devices // facts.hosts
    return _shrink(layout, per_host * (layout.world_size // per_host))


def _empty_ranks(layout: Layout, facts: Facts) -> str:
    if facts.global_batch and layout.data_degree > facts.global_batch:
        return f"{layout.data_degree} data ranks for {facts.global_batch} sequences a step"
    return ""


def _large_mbs(layout: Layout, facts: Facts) -> str:
    rows = layout.data_rows(facts.global_batch) if facts.global_batch else 0
    if rows and layout.mbs and layout.mbs > rows:
        return f"mbs={layout.mbs} is more than a rank's {rows} sequences a step"
    return ""


def _shrink(layout: Layout, ranks: int) -> Layout:
    """The layout with at most ``ranks`` ranks: fsdp gives way first, then dp, by divisors."""
    rest = max(1, ranks)
    fits = [d for d in _divisors(layout.fsdp) if d <= rest] if layout.fsdp > 1 else [1]
    fsdp = max(fits[-1], min(layout.fsdp, rest))
    return layout.replace(fsdp=fsdp, dp=max(1, min(layout.dp, rest // fsdp)), tp=1, pp=1, cp=1, ep=1, etp=1)


def _divisors(n: int) -> list[int]:
    return [d for d in range(1, n + 1) if n % d == 0]


RULES: tuple[Rule, ...] = (
    Rule(
        "split backward needs kept weights",
        "schedules that split the backward need the weights kept over the step: fsdp=N:zero2",
        _split_over_zero3,
        lambda layout, facts: layout.replace(zero="zero2"),
    ),
    Rule(
        "vpp belongs to its schedule",
        "vpp is 2 or more with interleaved and zero-bubble, 2 with zbv and dualpipev, else absent",
        _vpp_and_schedule,
        lambda layout, facts: layout.replace(vpp=0),
    ),
    Rule(
        "tp divides the heads",
        "tp divides num_attention_heads; key/value heads are replicated above their number",
        _heads,
        _nearest_heads,
    ),
    Rule(
        "a stage has a layer",
        "pp · vpp is at most num_hidden_layers",
        _stages,
        lambda layout, facts: (
            layout.replace(pp=max(1, facts.widths.num_hidden_layers // layout.vpp), vpp=0)
            if facts.widths
            else layout
        ),
    ),
    Rule(
        "experts divide the ranks",
        "ep·etp divides dp·fsdp·cp·tp, and etp is 1 or tp",
        _experts,
        lambda layout, facts: layout.replace(ep=1, etp=1),
    ),
    _axis_absent("tp"),
    _axis_absent("pp"),
    _axis_absent("cp"),
    _axis_absent("ep"),
    _axis_absent("etp"),
    Rule(
        "vpp absent",
        "vpp belongs to pp, which arrives with every axis",
        _vpp_absent,
        lambda layout, facts: layout.replace(vpp=1),
        Exit.USAGE,
    ),
    _option_absent("recompute"),
    _option_absent("offload"),
    _option_absent("compile"),
    Rule(
        "a rank has a device",
        "world size = dp · fsdp · tp · pp · cp is at most the devices",
        _too_many,
        lambda layout, facts: _shrink(layout, facts.devices),
    ),
    Rule(
        "hosts are filled",
        "beyond one host the ranks fill whole hosts",
        _fewer_on_hosts,
        _whole_hosts,
    ),
    Rule(
        "a data rank has a row",
        "dp · fsdp is at most train.global_batch_size",
        _empty_ranks,
        lambda layout, facts: _shrink(layout, facts.global_batch),
    ),
    Rule(
        "mbs fits the rank's rows",
        "mbs is at most a data rank's sequences in a step: global_batch_size / (dp · fsdp), rounded up",
        _large_mbs,
        lambda layout, facts: layout.replace(mbs=layout.data_rows(facts.global_batch)),
    ),
)


def first_broken(layout: Layout, facts: Facts) -> tuple[Rule, str] | None:
    """The first rule that a layout breaks and the headline for it; None when it may run."""
    for rule in RULES:
        message = rule.broken(layout, facts)
        if message:
            return rule, message
    return None


def repair(layout: Layout, facts: Facts) -> Layout:
    """The nearest layout that keeps every rule: each broken rule's own repair, in the order of the book."""
    for _ in range(2 * len(RULES)):
        broken = first_broken(layout, facts)
        if broken is None:
            return layout
        layout = broken[0].nearest(layout, facts)
    return Layout()


def check(layout: Layout, facts: Facts, where: str = "") -> None:
    """Refuse a layout that breaks a rule.

    Args:
        layout: closed, but for ``auto`` (whose options are still checked).
        facts: the model's widths, the batch and the devices, as far as they are known.
        where: where the layout was written.

    Raises:
        Refused: exit 10, or 2 for what is not in this version; ``use`` holds the nearest layout that runs.
    """
    resolved = layout.resolve(facts.devices) if facts.devices else layout
    if resolved.open and not resolved.auto:
        return
    broken = first_broken(_closed(resolved), facts)
    if broken is None:
        return
    rule, message = broken
    near = repair(_closed(resolved), facts)
    raise Refused(
        message,
        exit_code=rule.exit_code,
        key="layout.use",
        seen=_seen(layout, facts),
        rule=rule.text,
        allowed=_allowed(rule, facts),
        use=f"--layout {near.replace(auto=True) if layout.auto else near}",
        where=where,
    )


def _closed(layout: Layout) -> Layout:
    return layout.replace(auto=False) if layout.auto else layout


def _seen(layout: Layout, facts: Facts) -> str:
    seen = [str(layout)]
    if layout.tp > 1 and facts.widths:
        seen.append(f"{facts.widths.num_attention_heads} attention heads")
        seen.append(f"{facts.widths.num_key_value_heads} key/value heads")
    if facts.devices:
        seen.append(f"{facts.devices} device{'s' if facts.devices != 1 else ''}")
    return "; ".join([seen[0], ", ".join(seen[1:])]) if seen[1:] else seen[0]


def _allowed(rule: Rule, facts: Facts) -> str:
    if rule.name == "tp divides the heads" and facts.widths:
        return "tp = " + ", ".join(map(str, _divisors(facts.widths.num_attention_heads)))
    return ""
