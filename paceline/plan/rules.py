"""The rule book: which layouts are refused, why, and the nearest one that runs. One table, read by all.

``plan`` drops what the rules refuse, ``train`` asks before a process starts, the docs print the table and
the tests walk it. A rule that is about this version ("not in this version") ends with exit 2, a rule
about the combination with exit 10.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from paceline.ledger.outcome import Exit, Refused
from paceline.plan import degrees
from paceline.plan.cost.terms import micro_batches
from paceline.plan.grammar import OPTIONS
from paceline.plan.layout import V_SCHEDULES, Layout
from paceline.plan.model import Widths
from paceline.plan.pipeline import counts as pipeline

SPLIT_BACKWARD = ("zero-bubble", *V_SCHEDULES)


@dataclass(frozen=True)
class Facts:
    """What a rule may look at beside the layout; what is not known is not judged.

    Attributes:
        sequence_length: tokens of a row; 0 = not known. global_batch: sequences a step; 0 = not known.
        devices: how many there are in all; 0 = not known, then nothing is said about them.
        hosts: over how many hosts. cpu: ranks are processes, so there is no upper limit.
        compiler: whether there is a C++ compiler, which torch.compile needs on a CPU; None = not known.
    """

    widths: Widths | None = None
    global_batch: int = 0
    devices: int = 0
    hosts: int = 1
    cpu: bool = False
    optimizer: str = "adamw"
    sequence_length: int = 0
    compiler: bool | None = None


@dataclass(frozen=True)
class Rule:
    """One line of the rule book.

    Attributes:
        name: a word to refer to it. text: the rule, as the error prints it.
        broken: what is wrong with a layout, as the headline; empty when the rule holds.
        nearest: the nearest layout that keeps the rule.
        allowed: the values that the rule leaves, in words.
        exit_code: 10, or 2 for what has not arrived.
    """

    name: str
    text: str
    broken: Callable[[Layout, Facts], str]
    nearest: Callable[[Layout, Facts], Layout]
    allowed: Callable[[Layout, Facts], str] = lambda layout, facts: ""
    exit_code: Exit = Exit.RULE


ABSENT = "not in this version"


def _option_absent(name: str) -> Rule:
    default = OPTIONS[name][0]

    def broken(layout: Layout, facts: Facts) -> str:
        value = getattr(layout, name)
        return f"{name}={value} is {ABSENT}" if value != default else ""

    return Rule(
        f"{name} absent",
        f"this version runs {name}={default} only",
        broken,
        lambda layout, facts: layout.replace(**{name: default}),
        exit_code=Exit.USAGE,
    )


def _etp_absent(layout: Layout, facts: Facts) -> str:
    return f"etp={layout.etp} is {ABSENT}" if layout.etp > 1 else ""


def _dualpipev_absent(layout: Layout, facts: Facts) -> str:
    return f"pp={layout.pp}:dualpipev is {ABSENT}" if layout.schedule == "dualpipev" else ""


def _ring_absent(layout: Layout, facts: Facts) -> str:
    return f"cp={layout.cp}:ring is {ABSENT}" if layout.cp_kind == "ring" else ""


def _ring_on_cpu(layout: Layout, facts: Facts) -> str:
    return f"cp={layout.cp}:ring on a CPU" if layout.cp_kind == "ring" and facts.cpu else ""


def _split_over_zero3(layout: Layout, facts: Facts) -> str:
    if layout.schedule in SPLIT_BACKWARD and layout.fsdp > 1 and layout.zero == "zero3":
        return f"pp={layout.pp}:{layout.schedule} over fsdp={layout.fsdp}:zero3 gives wrong gradients"
    return ""


def _vpp_and_schedule(layout: Layout, facts: Facts) -> str:
    if layout.schedule in V_SCHEDULES and layout.vpp != 2:
        return f"vpp={layout.vpp} with {layout.schedule}"
    if layout.schedule in ("1f1b", "gpipe") and layout.vpp > 1:
        return f"vpp={layout.vpp} " + (f"with {layout.schedule}" if layout.pp > 1 else "without pp")
    if layout.schedule in ("interleaved", "zero-bubble") and layout.vpp < 2:
        return f"vpp=1 with {layout.schedule}"
    return ""


def _heads(layout: Layout, facts: Facts) -> str:
    if facts.widths is None or layout.tp <= 1 or layout.tp in degrees.tp_degrees(facts.widths):
        return ""
    return f"tp={layout.tp} cannot cut this model"


def _nearest_heads(layout: Layout, facts: Facts) -> Layout:
    assert facts.widths is not None
    fits = degrees.tp_degrees(facts.widths)
    return layout.replace(tp=min(fits, key=lambda tp: (abs(tp - layout.tp), tp)))


def _allowed_heads(layout: Layout, facts: Facts) -> str:
    return degrees.listed("tp", degrees.tp_degrees(facts.widths)) if facts.widths else ""


def _tokens(layout: Layout, facts: Facts) -> str:
    unit = degrees.token_unit(layout)
    if not facts.sequence_length or facts.sequence_length % unit == 0:
        return ""
    axes = ",".join(f"{axis}={layout.degree(axis)}" for axis in ("tp", "cp") if layout.degree(axis) > 1)
    return f"{axes} cannot cut a row of {facts.sequence_length} tokens"


def _allowed_tokens(layout: Layout, facts: Facts) -> str:
    unit = degrees.token_unit(layout)
    return f"data.sequence_length in multiples of {unit} ({max(1, facts.sequence_length // unit) * unit})"


def _ulysses(layout: Layout, facts: Facts) -> str:
    if layout.cp_kind != "ulysses" or facts.widths is None or layout.tp > facts.widths.num_attention_heads:
        return ""
    if layout.cp in degrees.ulysses_degrees(facts.widths, layout):
        return ""
    heads = facts.widths.num_attention_heads // layout.tp
    return f"cp={layout.cp}:ulysses cannot share {heads} query heads"


def _allowed_ulysses(layout: Layout, facts: Facts) -> str:
    return degrees.listed("cp", degrees.ulysses_degrees(facts.widths, layout)) if facts.widths else ""


def _stages(layout: Layout, facts: Facts) -> str:
    if facts.widths is None or layout.pp <= 1 or layout.stages <= facts.widths.num_hidden_layers:
        return ""
    return f"{layout.stages} stages for {facts.widths.num_hidden_layers} layers"


def _nearest_stages(layout: Layout, facts: Facts) -> Layout:
    assert facts.widths is not None
    layers = facts.widths.num_hidden_layers
    if layers < layout.vpp:
        return layout.replace(schedule="1f1b", pp=min(layout.pp, layers), vpp=0)
    pp = max(1, layers // layout.vpp)
    return layout.replace(pp=pp, vpp=layout.vpp if pp > 1 else 0)


def _no_experts(layout: Layout, facts: Facts) -> str:
    if facts.widths is None or facts.widths.num_experts or layout.ep * layout.etp <= 1:
        return ""
    axis = "ep" if layout.ep > 1 else "etp"
    return f"{axis}={layout.degree(axis)} without experts"


def _experts(layout: Layout, facts: Facts) -> str:
    experts = facts.widths.num_experts if facts.widths else 0
    return f"ep={layout.ep} does not divide {experts} experts" if experts % layout.ep else ""


def _nearest_experts(layout: Layout, facts: Facts) -> Layout:
    assert facts.widths is not None
    return layout.replace(ep=degrees.at_most(degrees.ep_degrees(facts.widths, layout), layout.ep))


def _allowed_experts(layout: Layout, facts: Facts) -> str:
    return degrees.listed("ep", degrees.ep_degrees(facts.widths, layout)) if facts.widths else ""


def _expert_ranks(layout: Layout, facts: Facts) -> str:
    ranks = degrees.expert_ranks(layout)
    if layout.etp not in (1, layout.tp) or ranks % (layout.ep * layout.etp):
        return f"ep={layout.ep},etp={layout.etp} does not divide {ranks} ranks"
    return ""


def _nearest_expert_ranks(layout: Layout, facts: Facts) -> Layout:
    layout = layout.replace(etp=layout.etp if layout.etp in (1, layout.tp) else 1)
    fits = degrees.divisors(degrees.expert_ranks(layout) // layout.etp)
    if facts.widths and facts.widths.num_experts:
        fits = degrees.ep_degrees(facts.widths, layout)
    return layout.replace(ep=degrees.at_most(fits, layout.ep))


def _micro_batches(layout: Layout, facts: Facts) -> str:
    if layout.pp == 1 or not facts.global_batch or not layout.mbs:
        return ""
    return pipeline.refuses(layout, micro_batches(layout, facts.global_batch)[1]) or ""


def _allowed_micro_batches(layout: Layout, facts: Facts) -> str:
    count = micro_batches(layout, facts.global_batch)[1] if facts.global_batch else 1
    few = pipeline.allowed_micro_batches(layout, count)
    return ", ".join(map(str, few)) + ", … micro-batches a step (mbs sequences each, on each data rank)"


def _no_compiler(layout: Layout, facts: Facts) -> str:
    if layout.compile == "on" and facts.cpu and facts.compiler is False:
        return "compile=on without a C++ compiler"
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
    """Whole hosts with the same cuts of the model where that goes, else as many ranks as one host holds."""
    per_host = facts.devices // facts.hosts
    for hosts in range(layout.world_size // per_host, 0, -1):
        model = layout.world_size // (layout.fsdp * layout.dp)
        if hosts * per_host % (model * layout.dp) == 0:
            return layout.replace(fsdp=hosts * per_host // (model * layout.dp))
    return degrees.shrunk(layout, lambda one: one.world_size <= per_host)


def _empty_ranks(layout: Layout, facts: Facts) -> str:
    if facts.global_batch and layout.data_degree > facts.global_batch:
        return f"{layout.data_degree} data ranks for {facts.global_batch} sequences a step"
    return ""


def _large_mbs(layout: Layout, facts: Facts) -> str:
    rows = layout.data_rows(facts.global_batch) if facts.global_batch else 0
    if rows and layout.mbs and layout.mbs > rows:
        return f"mbs={layout.mbs} is more than a rank's {rows} sequences a step"
    return ""


RULES: tuple[Rule, ...] = (
    Rule(
        "split backward needs kept weights",
        "schedules that split the backward need the weights kept over the step: fsdp=N:zero2",
        _split_over_zero3,
        lambda layout, facts: layout.replace(zero="zero2"),
        lambda layout, facts: f"fsdp={layout.fsdp}:zero2, fsdp={layout.fsdp}:zero1",
    ),
    Rule(
        "vpp belongs to its schedule",
        "vpp is 2 or more with interleaved and zero-bubble, 2 with zbv and dualpipev, else absent",
        _vpp_and_schedule,
        lambda layout, facts: layout.replace(vpp=0),
    ),
    Rule(
        "tp divides the heads",
        "tp divides num_attention_heads, and num_key_value_heads or a multiple of them (then repeated)",
        _heads,
        _nearest_heads,
        _allowed_heads,
    ),
    Rule(
        "a stage has a layer",
        "pp · vpp is at most num_hidden_layers",
        _stages,
        _nearest_stages,
        lambda layout, facts: f"up to {facts.widths.num_hidden_layers} stages" if facts.widths else "",
    ),
    Rule(
        "ring needs cuda",
        "ring attention takes the kernels of a CUDA device; allgather and ulysses run on any",
        _ring_on_cpu,
        lambda layout, facts: layout.replace(cp_kind="allgather"),
        lambda layout, facts: "allgather, ulysses",
    ),
    Rule(
        "ulysses shares heads",
        "with ulysses tp·cp divides num_attention_heads; allgather takes any number",
        _ulysses,
        lambda layout, facts: layout.replace(cp_kind="allgather"),
        _allowed_ulysses,
    ),
    Rule(
        "ranks have equal tokens",
        "data.sequence_length divides by tp, and with cp by 2·cp·tp",
        _tokens,
        lambda layout, facts: degrees.nearest_cut_of_tokens(layout, facts.sequence_length),
        _allowed_tokens,
    ),
    Rule(
        "ep needs experts",
        "ep and etp cut the experts of a mixture (model.num_experts)",
        _no_experts,
        lambda layout, facts: layout.replace(ep=1, etp=1),
    ),
    Rule(
        "ep divides the experts",
        "ep divides num_experts: each rank holds as many",
        _experts,
        _nearest_experts,
        _allowed_experts,
    ),
    Rule(
        "experts divide the ranks",
        "ep·etp divides dp·fsdp·cp·tp, and etp is 1 or tp",
        _expert_ranks,
        _nearest_expert_ranks,
        lambda layout, facts: degrees.listed("ep", degrees.divisors(degrees.expert_ranks(layout))),
    ),
    Rule(
        "ring absent",
        "this version runs cp=N:allgather and cp=N:ulysses; ring arrives later",
        _ring_absent,
        lambda layout, facts: layout.replace(cp_kind="allgather"),
        exit_code=Exit.USAGE,
    ),
    Rule(
        "dualpipev absent",
        "this version runs the other schedules; dualpipev arrives later",
        _dualpipev_absent,
        lambda layout, facts: layout.replace(schedule="zbv"),
        exit_code=Exit.USAGE,
    ),
    Rule(
        "etp absent",
        "this version cuts between experts (ep) and not inside one; etp arrives later",
        _etp_absent,
        lambda layout, facts: layout.replace(etp=1),
        exit_code=Exit.USAGE,
    ),
    _option_absent("offload"),
    Rule(
        "compile needs a compiler",
        "on a CPU torch.compile builds C++: g++ or clang++ is in the path",
        _no_compiler,
        lambda layout, facts: layout.replace(compile="off"),
    ),
    Rule(
        "a rank has a device",
        "world size = dp · fsdp · tp · pp · cp is at most the devices",
        _too_many,
        lambda layout, facts: degrees.shrunk(layout, lambda one: one.world_size <= facts.devices),
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
        lambda layout, facts: degrees.shrunk(
            layout, lambda one: one.data_degree <= facts.global_batch, ("fsdp", "dp")
        ),
    ),
    Rule(
        "mbs fits the rank's rows",
        "mbs is at most a data rank's sequences in a step: global_batch_size / (dp · fsdp), rounded up",
        _large_mbs,
        lambda layout, facts: layout.replace(mbs=layout.data_rows(facts.global_batch)),
    ),
    Rule(
        "a schedule takes its micro-batches",
        "1f1b takes pp micro-batches a step or more, dualpipev 2·pp; interleaved and zero-bubble numbers "
        "that split evenly into max(1, number // pp) rounds; gpipe and zbv any",
        _micro_batches,
        lambda layout, facts: degrees.nearest_micro_batch(layout, facts.global_batch),
        _allowed_micro_batches,
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
        allowed=rule.allowed(_closed(resolved), facts),
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
    if layout.ep > 1 and facts.widths and facts.widths.num_experts:
        seen.append(f"{facts.widths.num_experts} experts")
    if layout.pp > 1 and facts.widths:
        seen.append(f"{facts.widths.num_hidden_layers} layers")
    if layout.pp > 1 and facts.global_batch:
        seen.append(f"{facts.global_batch} sequences a step")
    if layout.tp * layout.cp > 1 and facts.sequence_length:
        seen.append(f"rows of {facts.sequence_length} tokens")
    if facts.devices:
        seen.append(f"{facts.devices} device{'s' if facts.devices != 1 else ''}")
    return "; ".join([seen[0], ", ".join(seen[1:])]) if seen[1:] else seen[0]
