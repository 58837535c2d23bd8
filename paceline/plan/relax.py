"""What would make a layout fit that does not: smaller micro-batches or recompute, more devices, or memory of the host,
which this version does not use."""

from __future__ import annotations

from dataclasses import replace

from paceline.plan.answer import GIB
from paceline.plan.broken import ABSENT
from paceline.plan.cost.step import SLACK, memory_of
from paceline.plan.decide import judge, memory_limit
from paceline.plan.digits import three
from paceline.plan.enumerate import with_micro_batches
from paceline.plan.grammar import OPTIONS
from paceline.plan.layout import Layout
from paceline.plan.weigh import Question, fits

MOST_DOUBLINGS = 14


def relaxations(question: Question, least: Layout) -> str:
    """Of the layout that comes nearest, in words with numbers."""
    found = [_more_devices(question, least), _host_memory(question, least)]
    return "; ".join(text for text in found if text)


def gentler(question: Question, wanted: Layout) -> Layout | None:
    """The same cut on the same ranks with a smaller micro-batch, or that and as little recompute as makes it fit."""
    words = OPTIONS["recompute"]
    for recompute in words[words.index(wanted.recompute) :]:
        asked = with_micro_batches(wanted.replace(mbs=None, recompute=recompute), question.facts.work)
        found = judge(question, asked, explain=False).candidates
        if found:
            return found[0].layout
    return None


def _more_devices(question: Question, least: Layout) -> str:
    """The fewest devices, by doublings, over which full sharding and recompute make it fit."""
    if question.cluster.is_cpu:
        return ""
    work = question.facts.work
    for doubling in range(MOST_DOUBLINGS):
        degree = least.data_degree << doubling
        if degree > work.global_batch:
            break
        wide = least.replace(dp=1, fsdp=degree, mbs=1, recompute="full")
        if degree < 2 or wide.world_size <= question.cluster.world:
            continue
        size = memory_of(wide, work, question.speeds, question.cluster)[3]
        if fits(size, memory_limit(question, wide)):
            return f"{wide.world_size} such devices hold it ({three(size / GIB)} GiB each with {wide})"
    return ""


def _host_memory(question: Question, least: Layout) -> str:
    """What offload would leave on the device, were it here."""
    tight = replace(least, recompute="full", mbs=1)
    parts, _, _, device = memory_of(tight, question.facts.work, question.speeds, question.cluster)
    limit = memory_limit(question, tight)
    gone = {"optimizer": ("optimizer",), "all": ("optimizer", "weights", "gradients", "whole gradients")}
    left = {
        word: device - SLACK * sum(parts.get(part, 0.0) for part in kinds) for word, kinds in gone.items()
    }
    helps = next((word for word, size in left.items() if fits(size, limit)), None)
    if helps is None:
        return f"offload ({ABSENT}) would not help: {three(left['all'] / GIB)} GiB would stay on the device"
    return f"offload={helps} would fit with {three(left[helps] / GIB)} GiB on the device, but is {ABSENT}"
