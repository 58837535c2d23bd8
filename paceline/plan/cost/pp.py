"""The price of ``pp``: what waits while the pipeline fills and drains, and what travels between stages.

Closed forms, for ranking: the slowest coordinate works through all micro-batches, and waits for one micro-batch of
each other coordinate, of which a schedule saves a part (Narayanan et al. 2021, arXiv:2104.04473; Qi et al. 2023,
arXiv:2401.10241). ``plan/pipeline/clock.py`` runs the orders themselves: with forward, backward of inputs and of
weights equally long it agrees (``tests/plan/cost/test_pp.py``).
"""

from __future__ import annotations

from paceline.plan.columns import Column, choose, least, most
from paceline.plan.cost.held import Held
from paceline.plan.cost.sheaf import Priced
from paceline.plan.cost.terms import Delivered, Work
from paceline.plan.pipeline.counts import per_round
from paceline.plan.speed.speeds import Group, Speeds

ACTION_S = 0.3e-3  # what the schedule's loop costs around one forward or backward


def waiting(layout: Priced, micros: Column) -> Column:
    """Which part of the others' single micro-batch the slowest coordinate waits for.

    Stages of a rank, and halves of a backward, fill the waiting with other micro-batches: with fewer than ranks there
    are none to fill it with, and a single one goes through the whole depth alone.
    """
    if layout.pp == 1:
        return 0.0
    share, others = 1 / layout.vpp, layout.pp - 1
    if layout.schedule == "interleaved":
        return most(share, 1 - (micros - 1) / others * (1 - share))
    if layout.schedule == "zero-bubble":
        alone = 2 / 3 - (1 - share) / (3 * others) - (micros - 1) * (1 - 2 / 3 * share) / others
        return most(share / 3, share / 3 + (layout.pp - micros) / (3 * others), alone)
    if layout.schedule == "zbv":
        return most(1 / 6, 2 / 3 - (micros - 1) / (3 * others))
    return 1 / 3 if layout.schedule == "dualpipev" else 1.0


def in_flight(layout: Priced, place: int, micros: Column) -> Column:
    """Micro-batches whose activations a coordinate keeps at once, in units of all of its layers."""
    pp, vpp = layout.pp, layout.vpp
    if pp == 1:
        return 1.0
    if layout.schedule == "gpipe":
        return 1.0 * micros
    if layout.schedule in ("interleaved", "zero-bubble"):
        hop = 2 if layout.schedule == "interleaved" else 1
        ahead = (vpp - 1) * per_round(layout, micros) + hop * (pp - 1 - place) + 1
        late = place if layout.schedule == "zero-bubble" else 0  # micro-batches whose weights are still owed
        return 1.0 * least(micros, (ahead + late) / vpp)
    kept = {"1f1b": pp - place, "zbv": pp, "dualpipev": pp + 0.5}[layout.schedule]
    return 1.0 * least(micros, kept)


def splits(layout: Priced) -> bool:
    """Whether a backward runs in two halves: not where fsdp drops gathered weights between them."""
    if layout.pp == 1 or (layout.sharded and layout.zero == "zero3"):
        return False
    return layout.schedule in ("zero-bubble", "zbv", "dualpipev")


def owing(layout: Priced, place: int, micros: Column) -> Column:
    """Micro-batches whose second half is owed while most are in flight, in units of all layers of a coordinate."""
    late = place if layout.schedule == "zero-bubble" else 0
    return least(micros, late + 1 / layout.vpp)


def deliver(
    layout: Priced, work: Work, speeds: Speeds, devices: Column, held: Held, rows: Column
) -> Delivered:
    """Of one micro-batch: the stream to the next stage and its gradient back, for each stage that is here.

    Sends run beside compute where the device can; a receive is waited for. Of coordinates that hold the same, the one
    at the edge of its host counts: its sends to one side leave the host.
    """
    if layout.pp == 1:
        return Delivered()
    near_s, far_s = hop_s(layout, work, speeds, devices, rows)
    size = _stream_bytes(layout, work, rows)
    edges = 2 * layout.vpp - held.embeds - held.predicts  # to both sides of each stage, but for the two ends
    leaving = choose(layout.pp > stages_on_host(layout, devices), _leaving(layout, devices, held), 0)
    seconds = (edges - leaving) * near_s + leaving * far_s
    exposed = seconds / 2 if speeds.overlaps else seconds
    return Delivered(seconds, exposed, edges * size, 2 * layout.vpp * ACTION_S)


def stages_on_host(layout: Priced, devices: Column) -> Column:
    """Coordinates of a pipeline that share a host, where more than one host holds it."""
    return most(1, devices // (layout.world_size // layout.pp))


def hop_s(layout: Priced, work: Work, speeds: Speeds, devices: Column, rows: Column) -> tuple[Column, Column]:
    """Seconds of one micro-batch's stream to the next coordinate: on the same host where hosts hold several, and on
    the next host."""
    apart, size = layout.world_size // layout.pp, _stream_bytes(layout, work, rows)
    near = Group(2, least(2, stages_on_host(layout, devices)), apart)
    return speeds.collective_s("send", size, near), speeds.collective_s("send", size, Group(2, 1, apart))


def _stream_bytes(layout: Priced, work: Work, rows: Column) -> Column:
    tokens = rows * work.sequence_length / (layout.cp * layout.tp)
    return tokens * work.widths.hidden_size * work.weight_bytes


def _leaving(layout: Priced, devices: Column, held: Held) -> Column:
    """Edges that leave the host, of the coordinate with most of them among those that hold this.

    A schedule that goes round and round also sends from the last coordinate to the first; one that turns does not.
    """
    if held.embeds and held.predicts:  # the first, where the schedule turns: all of its edges go one way
        return 0
    if held.embeds:
        return layout.vpp - 1
    if held.predicts:
        begins = (layout.pp - 1) % stages_on_host(layout, devices) == 0  # it is the first of its host
        return choose(begins, 2 * layout.vpp - 1, layout.vpp - 1)
    return layout.vpp


def tied(layout: Priced, work: Work, speeds: Speeds, devices: Column, held: Held) -> Delivered:
    """The gradient of a weight that the first and the last stage share, once a step."""
    ends = held.embeds + held.predicts
    apart = layout.stages > 1 and layout.stage_rank(layout.stages - 1) != 0
    if not work.widths.tie_word_embeddings or not ends or not apart:
        return Delivered()
    size = held.tables * work.gradient_bytes / layout.fsdp
    # The two ends of the pipeline share a host where one host holds all of it.
    on_host = choose(layout.world_size <= devices, 2, 1)
    group = Group(2, on_host, layout.world_size // layout.pp * (layout.pp - 1))
    seconds = speeds.collective_s("all_reduce", size, group)
    return Delivered(seconds, seconds, size)
