"""What torch remembers of a world that is gone.

DTensor caches its decisions by mesh, and two meshes of one shape are equal: a process that joins a second
world would be handed specs of the first one's, whose groups are gone ("could not resolve the process group").
"""

from __future__ import annotations

import sys

import torch


def forget_meshes() -> None:
    """Empties DTensor's caches. Only those that are loaded: torch's own function for it lives in a module
    whose import takes seconds, because it brings the compiler with it."""
    if "torch.distributed.tensor" not in sys.modules:
        return
    from torch.distributed.tensor import DTensor, _redistribute

    propagator = DTensor._op_dispatcher.sharding_propagator
    for cached in (propagator.propagate_op_sharding, *vars(_redistribute).values()):
        if hasattr(cached, "cache_clear"):
            cached.cache_clear()
    clear = getattr(torch._C, "_clear_DTensor_sharding_propagator_cache", None)
    if clear is not None:
        clear()
