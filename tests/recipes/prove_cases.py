"""What the ranks of a proof's tests run: a case of ``paceline prove``, in a process in which a fault was planted.

*The injection point*: a fault is a function of this file that patches the runtime inside the test's own rank process
before the case is built, and undoes it after. The product has no switch for faults.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist

from paceline.deliver.device import Device
from paceline.deliver.wire.world import World
from paceline.recipes.case import Case
from paceline.recipes.prove import run_case
from paceline.recipes.trial import Trial

CPU = Device("cpu", 0, "gloo")


def run_on_ranks(world: World | None, *, case: dict[str, Any], fault: str = "") -> dict[str, Any]:
    """One case on one rank, with the named fault in it."""
    rank = 0 if world is None else world.rank
    with FAULTS[fault](rank):
        return {**run_case(Case.read(case), world, CPU), "rank": rank}


Fault = Callable[[int], Any]


@contextmanager
def none(rank: int) -> Iterator[None]:
    """Nothing is wrong."""
    yield


@contextmanager
def one_rank_scales(rank: int) -> Iterator[None]:
    """Rank 1 has one gradient of double size, after all sums."""
    original = Trial.step

    def step(self: Trial, number: int, rate: float, look: Any) -> Any:
        def first() -> None:
            if rank == 1:
                at = self.built.names.index("layers.1.mlp.up_proj.weight")
                gradient = self.built.parameters[at].grad
                assert gradient is not None
                gradient.mul_(2.0)
            look()

        return original(self, number, rate, first)

    with patch.object(Trial, "step", step):
        yield


@contextmanager
def no_dp_sum(rank: int) -> Iterator[None]:
    """DDP's buckets are never added up."""
    from paceline.deliver import dp

    def keep(group: Any, reduce: Any) -> Any:
        def hook(_: object, bucket: dist.GradBucket) -> Any:
            done: Any = torch.futures.Future()
            done.set_result(bucket.buffer())
            return done

        hook.__annotations__.clear()  # DDP compares annotations with classes
        return hook

    with patch.object(dp, "_sum_hook", keep):
        yield


@contextmanager
def mean_over_ranks(rank: int) -> Iterator[None]:
    """Gradients are averaged over the ranks and not summed: every one is 1/n of what it should be."""
    from paceline.update.every_step import EveryStep

    original = EveryStep.step

    def step(self: EveryStep, batches: Any, local: Any, *rest: Any) -> Any:
        size = self.mesh.world_size
        wrapped = self.passes.forward_backward

        def averaged(micro: Any, divisor: Any) -> Any:
            return wrapped(micro, divisor * size)

        with patch.object(
            type(self.passes), "forward_backward", lambda _, micro, divisor: averaged(micro, divisor)
        ):
            return original(self, batches, local, *rest)

    with patch.object(EveryStep, "step", step):
        yield


@contextmanager
def local_mean_loss(rank: int) -> Iterator[None]:
    """Each rank divides by its own valid tokens, and the ranks' means are averaged."""
    from paceline.update.passes import InTurn

    original = InTurn.forward_backward

    def own(self: InTurn, micro: Any, divisor: torch.Tensor) -> Any:
        here = sum(int((b["targets"] >= 0).sum()) for b in micro)
        return original(self, micro, torch.full_like(divisor, max(here, 1) * dist.get_world_size()))

    with patch.object(InTurn, "forward_backward", own):
        yield


@contextmanager
def last_micro_batch_dropped(rank: int) -> Iterator[None]:
    """The last micro-batch of a step is never computed, on any rank."""
    from paceline.update.passes import InTurn

    original = InTurn.forward_backward

    def fewer(self: InTurn, micro: Any, divisor: Any) -> Any:
        return original(self, micro[:-1], divisor)

    with patch.object(InTurn, "forward_backward", fewer):
        yield


@contextmanager
def norm_counts_replicas(rank: int) -> Iterator[None]:
    """Every replica's square is in the norm that clips."""
    from paceline.update import every_step

    original = every_step.local_square_sum
    with patch.object(every_step, "local_square_sum", lambda counted: original([(g, 1) for g, _ in counted])):
        yield


@contextmanager
def state_drifts(rank: int) -> Iterator[None]:
    """Rank 1 forgets the optimizer's first moment of one parameter after its second step."""
    original = Trial.step

    def step(self: Trial, number: int, rate: float, look: Any) -> Any:
        result = original(self, number, rate, look)
        if rank == 1 and number == 2:
            parameter = self.built.parameters[self.built.names.index("norm.weight")]
            self.built.optimizer.state[parameter]["exp_avg"].zero_()
        return result

    with patch.object(Trial, "step", step):
        yield


@contextmanager
def unwritten_memory(rank: int) -> Iterator[None]:
    """A gradient's last row is whatever was in fresh memory."""
    original = Trial.step

    def step(self: Trial, number: int, rate: float, look: Any) -> Any:
        def first() -> None:
            at = self.built.names.index("layers.0.self_attn.o_proj.weight")
            gradient = self.built.parameters[at].grad
            assert gradient is not None
            local = gradient.to_local() if hasattr(gradient, "to_local") else gradient
            local[-1:].copy_(torch.empty_like(local[-1:]))
            look()

        return original(self, number, rate, first)

    with patch.object(Trial, "step", step):
        yield


FAULTS: dict[str, Fault] = {
    "": none,
    "one_rank_scales": one_rank_scales,
    "no_dp_sum": no_dp_sum,
    "mean_over_ranks": mean_over_ranks,
    "local_mean_loss": local_mean_loss,
    "last_micro_batch_dropped": last_micro_batch_dropped,
    "norm_counts_replicas": norm_counts_replicas,
    "state_drifts": state_drifts,
    "unwritten_memory": unwritten_memory,
}
