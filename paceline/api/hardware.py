"""``pl.plan`` where the hardware is to be chosen too: a menu instead of a cluster (docs/decisions/0020)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from paceline.job import Job
    from paceline.plan.answer import Plan
    from paceline.plan.cluster import Cluster
    from paceline.plan.hardware.search import Hardware
    from paceline.plan.layout import Layout
    from paceline.plan.measured import Measured


def plan_on(
    job: Job,
    menu: str,
    *,
    parse: Callable[[str], Cluster],
    measured: Measured | None,
    layout: str | Layout | None = None,
    top: int = 5,
    what_if: Mapping[str, Sequence[Any]] | None = None,
) -> tuple[Hardware, Plan]:
    """Choose the hardware from a menu, then plan on it in full.

    Args:
        menu: ``aws``, ``gcp``, ``azure``, ``any``, or names with commas between them.
        parse: a cluster by name (``resolve_cluster``). measured: this machine's measurement.
        layout, top, what_if: as in ``pl.plan``.

    Raises:
        Refused: 2, 10, 11 or 12, as ``choose_hardware`` does.
    """
    from paceline.plan.hardware.menu import parse_menu
    from paceline.plan.hardware.search import choose_hardware, hosts_used
    from paceline.plan.layout import Layout
    from paceline.plan.search import plan as search

    asked = layout if layout is not None else job.layout.use
    wanted = asked if isinstance(asked, Layout) else Layout.parse(asked, "--layout")
    offers = parse_menu(menu, parse)
    hardware = choose_hardware(job, offers, measured=measured, layout=wanted, menu=menu)
    offer = next(offer for offer in offers if offer.name == hardware.chosen.offer)
    cluster = hardware.cluster
    rented = cluster.own is None
    # Rented machines are paid whole, so on a number of them the fastest layout is the cheapest.
    asked_job = (
        job.replace({"layout.objective": "time"}) if rented and job.layout.objective == "cost" else job
    )
    while True:
        found = search(
            asked_job, cluster=cluster, measured=measured, layout=wanted, top=top, what_if=what_if or {}
        )
        found = replace(found, job=job, objective=job.layout.objective)
        # The full search may find that fewer hosts do as well, inside the interval: then those are what is rented.
        used = hosts_used(cluster, found.best)
        fewer = offer.with_hosts(used) if rented and used < cluster.hosts else None
        if fewer is None:
            return hardware.settled(found, measured), found
        cluster = fewer
