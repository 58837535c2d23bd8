"""The hardware to choose from: ``aws``, ``gcp``, ``azure``, ``any``, or names with commas between them.

A name without a number of hosts (``p5.48xlarge``, ``8xB200``) stands for 1, 2, 4, 8, … of them; a name with one
(``p5.48xlargex4``, ``2x8xB200``), a cluster file and ``this`` for what they say.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace

from paceline.ledger.outcome import Exit, Refused
from paceline.plan.cluster import Cluster, is_file, parse_cluster, shapes
from paceline.plan.rates import NAMES, rates

CLOUDS = (*NAMES, "any")
MOST_HOSTS = 64
VENDORS = ("NVIDIA", "AMD")
"""Whose devices a cloud's menu offers: those that the training code runs on. Others are asked for by name."""

Parse = Callable[[str], Cluster]


@dataclass(frozen=True)
class Offer:
    """One kind of machine, and the numbers of hosts that may be had."""

    name: str
    clusters: tuple[Cluster, ...]

    def with_hosts(self, hosts: int) -> Cluster | None:
        """Its cluster of so many hosts; None where the name says how many there are."""
        return several(self.clusters[0], hosts) if len(self.clusters) > 1 else None


def is_menu(text: str) -> bool:
    """Whether a cluster's name asks for a choice."""
    return text.strip().lower() in CLOUDS or "," in text


def parse_menu(text: str, parse: Parse = parse_cluster, where: str = "--cluster") -> list[Offer]:
    """The offers of a menu, each once.

    Args:
        parse: a cluster by name, ``this`` probed.

    Raises:
        Refused: as ``parse_cluster`` does, with the whole list repaired.
    """
    words = [word.strip() for word in text.split(",")]
    found: dict[str, Offer] = {}
    for at, word in enumerate(words):
        names = _of_cloud(word.lower()) or [word]
        for name in names:
            try:
                offer = _offer(name, parse)
            except Refused as refused:
                raise _whole(refused, words, at, where) from None
            found.setdefault(offer.name.lower(), offer)
    return list(found.values())


def _of_cloud(word: str) -> list[str]:
    """The shapes of a cloud that can train, cheapest first; empty where the word is no cloud."""
    if word not in CLOUDS:
        return []
    found = [
        (rate.usd_per_hour, shape)
        for shape, rate in rates().items()
        if word in ("any", rate.cloud.lower()) and parse_cluster(shape).accelerator.vendor in VENDORS
    ]
    return [shape for _, shape in sorted(found)]


def _offer(name: str, parse: Parse) -> Offer:
    cluster = parse(name)
    if not _counted(name):
        return Offer(name, (cluster,))
    hosts = [1 << k for k in range(MOST_HOSTS.bit_length()) if 1 << k <= MOST_HOSTS]
    return Offer(name, tuple(several(cluster, n) for n in hosts))


def _counted(name: str) -> bool:
    """Whether the name leaves the number of hosts open."""
    return _is_shape(name) or (re.fullmatch(r"[0-9]+x(?!\d+x).+", name) is not None and not is_file(name))


def several(cluster: Cluster, hosts: int) -> Cluster:
    """So many hosts of a machine whose cluster is one host, by the name that says so."""
    one = cluster.name.removesuffix("x1") if _is_shape(cluster.name.removesuffix("x1")) else cluster.name
    one = one.removeprefix("1x")
    return replace(cluster, hosts=hosts, name=f"{one}x{hosts}" if _is_shape(one) else f"{hosts}x{one}")


def _is_shape(name: str) -> bool:
    return name.lower() in {each.lower() for each in shapes()}


def _whole(refused: Refused, words: list[str], at: int, where: str) -> Refused:
    """The refusal of one name, with the list as it should have been."""
    import difflib

    near = difflib.get_close_matches(words[at].lower(), CLOUDS, n=1, cutoff=0.6)
    shape = difflib.get_close_matches(words[at], list(shapes()), n=1, cutoff=0.75)
    word = (near or shape or [refused.use.removeprefix("--cluster ")])[0]
    if not words[at]:
        word = ""
    mended = ",".join(each for each in [*words[:at], word, *words[at + 1 :]] if each)
    return Refused(
        refused.message if words[at] else "an empty name in the list of hardware",
        exit_code=Exit(refused.exit_code),
        key="cluster.use",
        seen=",".join(words),
        rule=refused.rule if words[at] else "names with commas between them",
        allowed=refused.allowed,
        use=f"--cluster {mended}" if mended else "--cluster any",
        where=where,
    )
