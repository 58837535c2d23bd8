"""Which parts of a failing layout the failure needs: each is taken out in turn, and stays out while it still fails."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from paceline.plan.layout import Layout

PLAIN: dict[str, object] = {
    "offload": "none",
    "compile": "off",
    "recompute": "none",
    "etp": 1,
    "ep": 1,
    "pp": 1,
    "cp": 1,
    "tp": 1,
    "dp": 1,
    "fsdp": 1,
    "zero": "zero3",
    "schedule": "1f1b",
    "vpp": 0,
    "cp_kind": "allgather",
}
"""What a layout may lose, in the order in which it is tried, and what stands in its place."""


def isolate(layout: Layout, fails: Callable[[Layout], bool]) -> tuple[Layout, tuple[str, ...]]:
    """The smallest failing part of ``layout``, and the names of what is left in it.

    Args:
        layout: one that fails.
        fails: runs a layout and says whether it fails too; False for one that the rule book refuses.
    """
    kept = layout
    for name in PLAIN:
        for less in _without(kept, name):
            if less != kept and fails(less):
                kept = less
                break
    return kept, tuple(present(kept))


def present(layout: Layout) -> Iterator[str]:
    """Names of what is not plain in a layout."""
    for name, plain in PLAIN.items():
        if name == "vpp":
            if layout.vpp != layout.default_vpp:
                yield name
        elif getattr(layout, name) != plain:
            yield name


def _without(layout: Layout, name: str) -> Iterator[Layout]:
    if name in present(layout):
        yield layout.replace(**{name: PLAIN[name]})
