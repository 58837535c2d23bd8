"""The update policy ``every_step``: all gradients of the global batch become one change of the weights.

Two reductions a step carry all that ranks must agree on. The first, before any forward, counts the valid tokens of
the global batch, by which each micro-batch's loss sum is divided: exactly once, on every layout. The second,
after the last backward, carries the square of the gradient norm, the loss, and what rank 0 decided by its clock
or was told from outside, so that every rank clips, stops, evaluates and saves at the same step.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn

from paceline.compute.optim import set_learning_rate
from paceline.deliver.delivery import Delivery
from paceline.deliver.device import Device
from paceline.deliver.mesh import Mesh
from paceline.ledger.spans import Ledger
from paceline.update.clip import local_square_sum, scale_gradients
from paceline.update.controls import Rule, Verdict, armed, judge, nothing_remembered, signals
from paceline.update.culprit import culprit
from paceline.update.passes import Passes
from paceline.update.sentinel import Sentinel


@dataclass(frozen=True)
class Counts:
    """What one rank, or after the reduction all ranks, bring to a step."""

    valid_tokens: float
    target_bytes: float
    rows: float


@dataclass(frozen=True)
class StepResult:
    """One optimizer step as every rank knows it.

    ``loss`` is nats per valid target token of the global batch, ``grad_norm`` before clipping; ``carried`` is the
    sum over ranks of what the caller sent along with the first reduction, ``decisions`` of the second. ``fired`` has
    the rules that fired, the most severe first; ``ratios`` what is known of loss and norm against their usual values.
    ``aux_loss`` and ``load_max`` are those of this stage's experts, None without experts.
    """

    loss: float
    grad_norm: float
    counts: Counts
    carried: tuple[float, ...]
    decisions: tuple[float, ...]
    fired: tuple[Verdict, ...] = ()
    ratios: Mapping[str, float] = field(default_factory=dict)
    aux_loss: float | None = None
    load_max: float | None = None

    @property
    def verdict(self) -> Verdict | None:
        """What decided that the step did not change the weights; None where it did."""
        return self.fired[0] if self.fired and self.fired[0].acts else None


class Routers(Protocol):
    """What a mixture of experts needs of a step (``compute/models/balance.py``)."""

    aux_loss: Tensor | None
    load_max: Tensor | None

    def weigh(self, scale: Tensor) -> None:
        """Before the forward: by what the balance loss's gradient is multiplied, 1 / valid tokens."""
        ...

    def add_up(self, sum_over_stage: Callable[[Tensor], Tensor]) -> None:
        """Before the update: the counts of this step over all ranks."""
        ...

    def settle(self) -> None:
        """With the update: the global counts of this step become the next one's balance. Sends nothing."""
        ...

    def forget(self) -> None:
        """The step did not touch the weights: its counts do not count."""
        ...


class Commit(Protocol):
    """What is told around each change of the weights (``recover/live/commit.py``). No message is sent in between."""

    def enter(self) -> None:
        """Gradients and norm are there; returns when a rank that dies from here on costs no step."""
        ...

    def leave(
        self,
        valid_tokens: float,
        target_bytes: float,
        rows: float,
        loss: float,
        grad_norm: float,
        rate: float,
        remembered: tuple[float, ...],
    ) -> None:
        """Weights, optimizer and buffers are those after the step, and so is what rules remember."""
        ...


def nothing() -> None:
    """Nobody looks on."""


@dataclass
class EveryStep:
    """Everything that a step touches, assembled by ``recipes``.

    ``names`` are those of the parameters; ``replicas`` has, for each, how many ranks hold the same slice of it.
    ``complete`` runs when all gradients are there, not yet clipped, whatever they are; ``after`` when the weights have
    changed. ``rules`` are those that are judged before it, the same on every rank, and ``memory`` is what they
    remember of the steps before (``controls.py``).
    """

    delivery: Delivery
    passes: Passes
    names: list[str]
    parameters: list[nn.Parameter]
    replicas: list[int]
    optimizer: torch.optim.Optimizer
    mesh: Mesh
    device: Device
    ledger: Ledger
    max_grad_norm: float
    router: Routers | None = None
    complete: Callable[[], None] = nothing
    after: Callable[[], None] = nothing
    commit: Commit | None = None
    sentinel: Sentinel | None = None
    rules: tuple[Rule, ...] = field(default_factory=lambda: armed(None))
    memory: tuple[float, ...] = field(default_factory=nothing_remembered)

    def step(
        self,
        micro_batches: Sequence[Mapping[str, Tensor]],
        local: Counts,
        rate: float,
        carried: Sequence[float] = (),
        decisions: Sequence[float] = (),
    ) -> StepResult:
        """Run one optimizer step.

        Args:
            micro_batches: this rank's share of the global batch; the same number, of the same shapes, on every rank.
            local: what this rank's share counts.
            rate: learning rate of this step.
            carried: numbers to sum over ranks with the first reduction.
            decisions: numbers to sum over ranks with the second; only rank 0 sends other than zero.

        Returns:
            The step's result; when it has a ``verdict``, the weights have not been touched.
        """
        mine = local if self.mesh.speaks else Counts(0.0, 0.0, 0.0)
        with self.ledger.span("update", "counts"):
            totals = self._vector((mine.valid_tokens, mine.target_bytes, mine.rows, *carried))
        self.mesh.sum(totals)
        with self.ledger.span("update", "counts"):
            divisor = totals[0].clamp(min=1.0)
            if self.router is not None:
                self.router.weigh(1.0 / divisor)
        if self.sentinel is not None:
            self.sentinel.forget()
        loss_sum = self.passes.forward_backward(micro_batches, divisor)
        with self.ledger.span("deliver", "set-up"):
            self.delivery.finish()
            self.complete()
        with self.ledger.span("update", "norm"):
            if self.mesh.at["tp"]:
                loss_sum.zero_()  # all tp ranks have computed the same loss; the first one's counts
            gradients = [p.grad for p in self.parameters if p.grad is not None]
            counted = [
                (p.grad, n) for p, n in zip(self.parameters, self.replicas, strict=True) if p.grad is not None
            ]
            squares = local_square_sum(counted).to(loss_sum.device)
            second = torch.cat((torch.stack((squares, loss_sum)), self._vector(decisions)))
        self.mesh.sum(second)
        with self.ledger.span("update", "norm"):
            square_sum, loss_total, *decided = second.tolist()
            valid, target_bytes, rows, *rest = totals.tolist()
            loss, norm = loss_total / max(valid, 1.0), math.sqrt(square_sum)
            seen = signals(loss, norm, self.memory)
            fired, remembered = judge(self.rules, seen, self.memory)
            if not (fired and fired[0].ends):
                self.memory = remembered
        if fired and fired[0].signal == "nonfinite":
            fired[0] = replace(fired[0], origin=self._origin(loss_sum))
        counts = Counts(valid, target_bytes, rows)
        ratios = {name: value for name, value in seen.items() if name.endswith("_ratio")}
        result = StepResult(loss, norm, counts, tuple(rest), tuple(decided), tuple(fired), ratios)
        if result.verdict is None:
            with self.ledger.span("update", "optimizer"):
                scale_gradients(gradients, norm, self.max_grad_norm)
                set_learning_rate(self.optimizer, rate)
            self._change(result, rate)
        else:
            self._pass_over(result, rate)
        with self.ledger.span("update", "optimizer"):
            self.optimizer.zero_grad(set_to_none=True)
            del gradients, counted  # freed here, where its time is booked
            return self._with_routing(result)

    def _change(self, result: StepResult, rate: float) -> None:
        """The weights, the optimizer and the routers' balance, all or none of them: nothing is sent in between."""
        if self.router is not None:
            with self.ledger.span("update", "optimizer"):
                self.router.add_up(self._sum_over_stage)
        if self.commit is not None:
            self.commit.enter()
        with self.ledger.span("update", "optimizer"):
            self.optimizer.step()
            self.after()
            if self.router is not None:
                self.router.settle()
            self._leave(result, rate)

    def _pass_over(self, result: StepResult, rate: float) -> None:
        """A step that changes nothing. One that is left out counts as finished; one that ends the run does not."""
        if self.router is not None:
            self.router.forget()
        if not result.fired[0].ends:
            if self.commit is not None:
                self.commit.enter()
            with self.ledger.span("update", "controls"):
                self._leave(result, rate)

    def _leave(self, result: StepResult, rate: float) -> None:
        if self.commit is not None:
            counts = result.counts
            numbers = (counts.valid_tokens, counts.target_bytes, counts.rows, result.loss, result.grad_norm)
            self.commit.leave(*numbers, rate, self.memory)

    def _origin(self, loss_sum: Tensor) -> str:
        with self.ledger.span("update", "controls"):
            weights = [p.detach() for p in self.parameters]
            gradients = [p.grad for p in self.parameters]
            furthest = 0 if self.sentinel is None else self.sentinel.furthest()
            return culprit(self.names, weights, gradients, loss_sum, self.mesh, furthest)

    def _with_routing(self, result: StepResult) -> StepResult:
        if self.router is None or self.router.aux_loss is None or self.router.load_max is None:
            return result
        aux_loss, load_max = float(self.router.aux_loss), float(self.router.load_max)
        return replace(result, aux_loss=aux_loss, load_max=load_max)

    def _sum_over_stage(self, counts: Tensor) -> Tensor:
        group = self.mesh.group("stage")
        if group is not None:
            dist.all_reduce(counts, group=group)
        return counts

    def _vector(self, values: Sequence[float]) -> Tensor:
        return torch.tensor(values, dtype=torch.float64).to(self.device.torch)
