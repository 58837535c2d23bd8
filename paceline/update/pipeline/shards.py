"""FSDP2 under a pipeline: what each ZeRO stage keeps between the micro-batches of one stage of the pipeline.

The table of ``deliver/fsdp.py`` holds here too: gradients are reduce-scattered every micro-batch under zero3 and
zero2, once under zero1; weights are dropped after use under zero3 only. torch's own pipeline runtime would keep
the whole gradients of a stage over the step in all three. So the stage is hidden from it (``stages.Opaque``) and
the switches are set here, before each backward.

Title of the hard why: *a split backward passes FSDP2 by*. ``I`` computes the gradients of the inputs with
``autograd.grad``: FSDP2's hooks run, and find no gradient of a weight. ``W`` writes the weights' gradients by hand,
and no hook runs. So for schedules that split, hooks are told to leave everything alone, and the reduction is called
by hand after each ``W`` or ``B``, as torch's runtime calls it once. The weights that ``W`` finds must be those that
``I`` saw: zero3, which drops them in between, is refused (``plan/rules.py``; tests/update/pipeline pins torch's
wrong gradients).
"""

from __future__ import annotations

from torch import nn
from torch.distributed.fsdp import FSDPModule


class Shards:
    """The FSDP2 units of one stage.

    Args:
        stage: the stage's module; without FSDP2 inside, every call does nothing.
        zero: ``zero1``, ``zero2`` or ``zero3``.
        split: whether backwards run in two halves.

    Raises:
        ValueError: a split backward over zero3.
    """

    def __init__(self, stage: nn.Module, zero: str, split: bool) -> None:
        self.units = [module for module in stage.modules() if isinstance(module, FSDPModule)]
        self.zero, self.split = zero, split
        if self.units and split and zero == "zero3":
            raise ValueError("a split backward over zero3 gives wrong gradients: fsdp=N:zero2")

    def before_backward(self, last: bool) -> None:
        """``last``: of this stage in this step."""
        sync = not self.split and (self.zero != "zero1" or last)
        self._switch(sync, drop=not self.split and (self.zero == "zero3" or last), everywhere=last)

    def after_backward(self, last: bool) -> None:
        """After what computed gradients of weights: ``B`` or ``W``."""
        if not self.split or not self.units or (self.zero == "zero1" and not last):
            return
        self._switch(True, drop=last, everywhere=last)
        for unit in self.units:
            for group in unit._get_fsdp_state()._fsdp_param_groups:
                group.post_backward()
        self.units[0]._get_fsdp_state()._root_post_backward_final_callback()

    def _switch(self, sync: bool, drop: bool, everywhere: bool) -> None:
        """Reduce after this backward or not; drop the weights or not; sum over replicas too or not yet."""
        for unit in self.units:
            unit.set_requires_gradient_sync(sync, recurse=False)
            unit.set_requires_all_reduce(everywhere, recurse=False)
            unit.set_reshard_after_backward(drop, recurse=False)
