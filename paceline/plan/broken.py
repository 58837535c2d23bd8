"""What each rule of the book finds wrong with a layout, what comes nearest, and which values it leaves.

Three functions of (layout, facts) for a rule: its name says what is wrong (empty: nothing is), ``nearest_…`` mends
it, ``allowed_…`` lists. ``rules.py`` is the book.
"""

from __future__ import annotations

from dataclasses import dataclass

from paceline.ledger.plural import many
from paceline.plan import degrees
from paceline.plan.cost.terms import micro_batches
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
        residency: the place that raw data may not leave (``data.residency``); empty = it may be read on every host.
        compiler: whether there is a C++ compiler, which torch.compile needs on a CPU; None = not known.
    """

    widths: Widths | None = None
    global_batch: int = 0
    devices: int = 0
    hosts: int = 1
    cpu: bool = False
    optimizer: str = "adamw"
    sequence_length: int = 0
    residency: str = ""
    compiler: bool | None = None


ABSENT = "not in this version"


def ring_absent(layout: Layout, facts: Facts) -> str:
    return f"cp={layout.cp}:ring is {ABSENT}" if layout.cp_kind == "ring" else ""


def ring_on_cpu(layout: Layout, facts: Facts) -> str:
    return f"cp={layout.cp}:ring on a CPU" if layout.cp_kind == "ring" and facts.cpu else ""


def thin(layout: Layout, facts: Facts) -> str:
    if facts.widths is None:
        return ""
    for axis, name, size in _thinnest(facts.widths):
        if layout.degree(axis) > size:
            return f"{axis}={layout.degree(axis)} cannot cut {name} = {size}"
    return ""


def _thinnest(widths: Widths) -> list[tuple[str, str, int]]:
    """(axis, width, its size) of what an axis cuts in single rows or features, beside the heads'."""
    found = [("tp", "vocab_size", widths.vocab_size)]  # features: see degrees.tp_degrees
    if widths.num_experts:
        found.append(("etp", "moe_intermediate_size", widths.moe_intermediate_size))
    return found


def split_over_zero3(layout: Layout, facts: Facts) -> str:
    if layout.schedule in SPLIT_BACKWARD and layout.fsdp > 1 and layout.zero == "zero3":
        return f"pp={layout.pp}:{layout.schedule} over fsdp={layout.fsdp}:zero3 gives wrong gradients"
    return ""


def vpp_and_schedule(layout: Layout, facts: Facts) -> str:
    if layout.schedule in V_SCHEDULES and layout.vpp != 2:
        return f"vpp={layout.vpp} with {layout.schedule}"
    if layout.schedule in ("1f1b", "gpipe") and layout.vpp > 1:
        return f"vpp={layout.vpp} " + (f"with {layout.schedule}" if layout.pp > 1 else "without pp")
    if layout.schedule in ("interleaved", "zero-bubble") and layout.vpp < 2:
        return f"vpp=1 with {layout.schedule}"
    return ""


def heads(layout: Layout, facts: Facts) -> str:
    if facts.widths is None or layout.tp <= 1 or layout.tp in degrees.tp_degrees(facts.widths):
        return ""
    return f"tp={layout.tp} cannot cut this model"


def allowed_heads(layout: Layout, facts: Facts) -> str:
    return degrees.listed("tp", degrees.tp_degrees(facts.widths)) if facts.widths else ""


def tokens(layout: Layout, facts: Facts) -> str:
    unit = degrees.token_unit(layout)
    if not facts.sequence_length or facts.sequence_length % unit == 0:
        return ""
    axes = ",".join(f"{axis}={layout.degree(axis)}" for axis in ("tp", "cp") if layout.degree(axis) > 1)
    return f"{axes} cannot cut a row of {many(facts.sequence_length, 'token')}"


def allowed_tokens(layout: Layout, facts: Facts) -> str:
    unit = degrees.token_unit(layout)
    return f"data.sequence_length in multiples of {unit} ({max(1, facts.sequence_length // unit) * unit})"


def ulysses(layout: Layout, facts: Facts) -> str:
    if layout.cp_kind != "ulysses" or facts.widths is None or layout.tp > facts.widths.num_attention_heads:
        return ""
    if layout.cp in degrees.ulysses_degrees(facts.widths, layout):
        return ""
    heads = facts.widths.num_attention_heads // layout.tp
    return f"cp={layout.cp}:ulysses cannot share {many(heads, 'query head')}"


def allowed_ulysses(layout: Layout, facts: Facts) -> str:
    return degrees.listed("cp", degrees.ulysses_degrees(facts.widths, layout)) if facts.widths else ""


def stages(layout: Layout, facts: Facts) -> str:
    if facts.widths is None or layout.pp <= 1 or layout.stages <= facts.widths.num_hidden_layers:
        return ""
    return f"{many(layout.stages, 'stage')} for {many(facts.widths.num_hidden_layers, 'layer')}"


def no_experts(layout: Layout, facts: Facts) -> str:
    if facts.widths is None or facts.widths.num_experts or layout.ep * layout.etp <= 1:
        return ""
    axis = "ep" if layout.ep > 1 else "etp"
    return f"{axis}={layout.degree(axis)} without experts"


def experts(layout: Layout, facts: Facts) -> str:
    experts = facts.widths.num_experts if facts.widths else 0
    return f"ep={layout.ep} does not divide {many(experts, 'expert')}" if experts % layout.ep else ""


def allowed_experts(layout: Layout, facts: Facts) -> str:
    return degrees.listed("ep", degrees.ep_degrees(facts.widths, layout)) if facts.widths else ""


def expert_ranks(layout: Layout, facts: Facts) -> str:
    ranks = degrees.expert_ranks(layout)
    if layout.etp not in (1, layout.tp) or ranks % (layout.ep * layout.etp):
        return f"ep={layout.ep},etp={layout.etp} does not divide {many(ranks, 'rank')}"
    return ""


def allowed_expert_ranks(layout: Layout, facts: Facts) -> str:
    """Degrees of ep beside this etp; where it is etp that cannot be, those of etp."""
    ranks = degrees.expert_ranks(layout)
    if layout.etp not in (1, layout.tp) or ranks % layout.etp:
        return degrees.listed("etp", sorted({1, layout.tp}))
    experts = facts.widths.num_experts if facts.widths else 0
    return degrees.listed("ep", [n for n in degrees.divisors(ranks // layout.etp) if experts % n == 0])


def wrong_count(layout: Layout, facts: Facts) -> str:
    if layout.pp == 1 or not facts.global_batch or not layout.mbs:
        return ""
    return pipeline.refuses(layout, micro_batches(layout, facts.global_batch)[1]) or ""


def allowed_micro_batches(layout: Layout, facts: Facts) -> str:
    count = micro_batches(layout, facts.global_batch)[1] if facts.global_batch else 1
    few = pipeline.allowed_micro_batches(layout, count)
    return ", ".join(map(str, few)) + ", … micro-batches a step (mbs sequences each, on each data rank)"


def no_compiler(layout: Layout, facts: Facts) -> str:
    if layout.compile == "on" and facts.cpu and facts.compiler is False:
        return "compile=on without a C++ compiler"
    return ""


def too_many(layout: Layout, facts: Facts) -> str:
    if facts.devices and not facts.cpu and layout.world_size > facts.devices:
        return f"{many(layout.world_size, 'rank')} for {many(facts.devices, 'device')}"
    return ""


def fewer_on_hosts(layout: Layout, facts: Facts) -> str:
    per_host = facts.devices // facts.hosts
    world = layout.world_size
    if facts.hosts > 1 and facts.devices and world > per_host and world % per_host:
        return f"{world} ranks leave a host of {many(per_host, 'device')} half filled"
    return ""


def moves_raw_data(layout: Layout, facts: Facts) -> str:
    """Every data rank reads its rows, and under tp, pp and cp several ranks the same ones: over hosts they travel."""
    per_host = facts.devices // max(1, facts.hosts)
    if facts.residency and facts.hosts > 1 and layout.world_size > per_host:
        hosts = -(-layout.world_size // per_host)
        return f"{layout} reads raw data on {many(hosts, 'host')}; it may not leave {facts.residency}"
    return ""


def empty_ranks(layout: Layout, facts: Facts) -> str:
    if facts.global_batch and layout.data_degree > facts.global_batch:
        return f"{many(layout.data_degree, 'data rank')} for {many(facts.global_batch, 'sequence')} a step"
    return ""


def large_mbs(layout: Layout, facts: Facts) -> str:
    rows = layout.data_rows(facts.global_batch) if facts.global_batch else 0
    if rows and layout.mbs and layout.mbs > rows:
        return f"mbs={layout.mbs} is more than a rank's {many(rows, 'sequence')} a step"
    return ""
