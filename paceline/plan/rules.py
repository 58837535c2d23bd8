"""The rule book: which layouts are refused, why, and the nearest one that runs. One table, read by all.

``plan`` drops what the rules refuse, ``train`` asks before a process starts, the docs print the table and
the tests walk it. A rule that is about this version ("not in this version") ends with exit 2, a rule
about the combination with exit 10.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from paceline.ledger.outcome import Exit, Refused
from paceline.ledger.plural import many
from paceline.plan import broken
from paceline.plan.broken import ABSENT
from paceline.plan.broken import Facts as Facts
from paceline.plan.grammar import OPTIONS
from paceline.plan.layout import Layout
from paceline.plan.nearest import nearest


@dataclass(frozen=True)
class Rule:
    """One line of the rule book.

    Attributes:
        name: a word to refer to it. text: the rule, as the error prints it.
        broken: what is wrong with a layout, as the headline; empty when the rule holds.
        allowed: the values that the rule leaves, in words.
        exit_code: 10, or 2 for what has not arrived.
    """

    name: str
    text: str
    broken: Callable[[Layout, Facts], str]
    allowed: Callable[[Layout, Facts], str] = lambda layout, facts: ""
    exit_code: Exit = Exit.RULE


def _option_absent(name: str) -> Rule:
    default = OPTIONS[name][0]

    def absent(layout: Layout, facts: Facts) -> str:
        value = getattr(layout, name)
        return f"{name}={value} is {ABSENT}" if value != default else ""

    return Rule(
        f"{name} absent",
        f"this version runs {name}={default} only",
        absent,
        exit_code=Exit.USAGE,
    )


RULES: tuple[Rule, ...] = (
    Rule(
        "split backward needs kept weights",
        "schedules that split the backward need the weights kept over the step: fsdp=N:zero2",
        broken.split_over_zero3,
        lambda layout, facts: f"fsdp={layout.fsdp}:zero2, fsdp={layout.fsdp}:zero1",
    ),
    Rule(
        "vpp belongs to its schedule",
        "vpp is 2 or more with interleaved and zero-bubble, 2 with zbv and dualpipev, else absent",
        broken.vpp_and_schedule,
    ),
    Rule(
        "tp divides the heads",
        "tp divides num_attention_heads, and num_key_value_heads or a multiple of them (then repeated)",
        broken.heads,
        broken.allowed_heads,
    ),
    Rule(
        "a cut has a part for each rank",
        "tp is at most vocab_size, etp at most moe_intermediate_size",
        broken.thin,
    ),
    Rule(
        "a stage has a layer",
        "pp · vpp is at most num_hidden_layers",
        broken.stages,
        lambda layout, facts: (
            f"up to {many(facts.widths.num_hidden_layers, 'stage')}" if facts.widths else ""
        ),
    ),
    Rule(
        "ring needs cuda",
        "ring attention takes the kernels of a CUDA device; allgather and ulysses run on any",
        broken.ring_on_cpu,
        lambda layout, facts: "allgather, ulysses",
    ),
    Rule(
        "ulysses shares heads",
        "with ulysses tp·cp divides num_attention_heads; allgather takes any number",
        broken.ulysses,
        broken.allowed_ulysses,
    ),
    Rule(
        "ranks have equal tokens",
        "data.sequence_length divides by tp, and with cp by 2·cp·tp",
        broken.tokens,
        broken.allowed_tokens,
    ),
    Rule(
        "ep needs experts",
        "ep and etp cut the experts of a mixture (model.num_experts)",
        broken.no_experts,
    ),
    Rule(
        "ep divides the experts",
        "ep divides num_experts: each rank holds as many",
        broken.experts,
        broken.allowed_experts,
    ),
    Rule(
        "experts divide the ranks",
        "ep·etp divides dp·fsdp·cp·tp, and etp is 1 or tp",
        broken.expert_ranks,
        broken.allowed_expert_ranks,
    ),
    Rule(
        "ring absent",
        "this version runs cp=N:allgather and cp=N:ulysses; ring arrives later",
        broken.ring_absent,
        exit_code=Exit.USAGE,
    ),
    _option_absent("offload"),
    Rule(
        "compile needs a compiler",
        "on a CPU torch.compile builds C++: g++ or clang++ is in the path",
        broken.no_compiler,
    ),
    Rule(
        "a rank has a device",
        "world size = dp · fsdp · tp · pp · cp is at most the devices",
        broken.too_many,
    ),
    Rule(
        "hosts are filled",
        "beyond one host the ranks fill whole hosts",
        broken.fewer_on_hosts,
    ),
    Rule(
        "raw data stays in its place",
        "data.residency: ranks read raw data on the one host that has it; more hosts are a federation, whose sites "
        "send updates only (paceline federate)",
        broken.moves_raw_data,
        lambda layout, facts: (
            f"up to {many(facts.devices // max(1, facts.hosts), 'device')}, those of one host"
        ),
    ),
    Rule(
        "a data rank has a row",
        "dp · fsdp is at most train.global_batch_size",
        broken.empty_ranks,
    ),
    Rule(
        "mbs fits the rank's rows",
        "mbs is at most a data rank's sequences in a step: global_batch_size / (dp · fsdp), rounded up",
        broken.large_mbs,
    ),
    Rule(
        "a schedule takes its micro-batches",
        "1f1b takes pp micro-batches a step or more, dualpipev 2·pp; interleaved and zero-bubble numbers "
        "that split evenly into max(1, number // pp) rounds; gpipe and zbv any",
        broken.wrong_count,
        broken.allowed_micro_batches,
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
    """The nearest layout that keeps every rule; how near is measured in ``nearest``."""
    return nearest(layout, facts, lambda one: first_broken(one, facts) is None)


def read(text: str, facts: Facts, where: str = "") -> Layout:
    """``Layout.parse``; where the text is wrong, what was probably meant keeps the book as well.

    Raises:
        Refused: exit 2, with a layout in ``use`` that runs.
    """
    try:
        return Layout.parse(text, where)
    except Refused as refused:
        _mend(refused, facts)
        raise


def _mend(refused: Refused, facts: Facts) -> None:
    meant = Layout.parse(refused.use.removeprefix("--layout "))
    try:
        check(meant, facts)
    except Refused as also:
        refused.use = also.use


def check(layout: Layout, facts: Facts, where: str = "") -> None:
    """Refuse a layout that breaks a rule.

    Args:
        layout: closed, but for ``auto`` (whose options are still checked).
        facts: the model's widths, the batch and the devices, as far as they are known.
        where: where the layout was written.

    Raises:
        Refused: exit 10, or 2 for what is not in this version; ``use`` holds the nearest layout that runs.
    """
    try:
        resolved = layout.resolve(facts.devices) if facts.devices else layout
    except Refused as refused:
        _mend(refused, facts)
        raise
    if resolved.open and not resolved.auto:
        return
    found = first_broken(_closed(resolved), facts)
    if found is None:
        return
    rule, message = found
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
        seen.append(many(facts.widths.num_attention_heads, "attention head"))
        seen.append(many(facts.widths.num_key_value_heads, "key/value head"))
    if layout.ep > 1 and facts.widths and facts.widths.num_experts:
        seen.append(many(facts.widths.num_experts, "expert"))
    if layout.pp > 1 and facts.widths:
        seen.append(many(facts.widths.num_hidden_layers, "layer"))
    if layout.pp > 1 and facts.global_batch:
        seen.append(f"{many(facts.global_batch, 'sequence')} a step")
    if layout.tp * layout.cp > 1 and facts.sequence_length:
        seen.append(f"rows of {many(facts.sequence_length, 'token')}")
    if facts.devices:
        seen.append(many(facts.devices, "device"))
    return "; ".join([seen[0], ", ".join(seen[1:])]) if seen[1:] else seen[0]
