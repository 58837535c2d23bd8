"""What the ranks of the expert-parallel tests run: a layer of experts over an exchange, a few steps by hand."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from paceline.compute.models.balance import Balance, Balances
from paceline.compute.models.moe import MoE
from paceline.compute.seams import Seams
from paceline.deliver import ep
from paceline.deliver.wire.world import World
from paceline.job.presets import ModelWidths

RATE = 0.1
CUT = {"experts.gate_proj": 1, "experts.up_proj": 1, "experts.down_proj": 2}  # the dim of F


def train(
    world: World | None,
    *,
    widths: ModelWidths,
    state: dict[str, Tensor],
    batches: list[list[Tensor]],
    etp: int = 1,
    poisoned: bool = True,
) -> dict[str, Any]:
    """Steps of plain gradient descent on Σ tanh(y) / N; ``batches[step][rank]`` are the rank's tokens [1, P, D].

    One device takes all ranks' tokens, one after the other, as micro-batches.

    Returns:
        Whole gradients of the first and the last step, the last weights, the inputs' gradients of the last step by
        rank, the losses, the balance's counts and term.
    """
    deterministic = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(poisoned)  # with its default, new memory is filled with NaN
    try:
        assert torch.utils.deterministic.fill_uninitialized_memory
        return _train(world, widths, state, batches, etp)
    finally:
        torch.use_deterministic_algorithms(deterministic)


def _train(
    world: World | None,
    widths: ModelWidths,
    state: dict[str, Tensor],
    batches: list[list[Tensor]],
    etp: int,
) -> dict[str, Any]:
    size = 1 if world is None else world.size
    rank = 0 if world is None else world.rank
    ep_group, etp_group = _groups(world, etp)
    balance = Balance(widths)
    dispatch = Seams().dispatch if world is None else ep.dispatch(ep_group, etp_group)
    layer = MoE(widths, 0, Seams(dispatch=dispatch), balance).to(torch.float64)
    layer.load_state_dict(state)
    _cut(layer, size // etp, rank // etp, etp, rank % etp)
    balances = Balances([balance])
    losses, kept, inputs = [], [], []
    for parts in batches:
        tokens = sum(part.shape[1] for part in parts)
        balances.weigh(torch.tensor(1.0 / max(tokens, 1), dtype=torch.float64))
        layer.zero_grad(set_to_none=True)
        inputs = [part.clone().requires_grad_() for part in (parts if world is None else [parts[rank]])]
        loss = torch.zeros((), dtype=torch.float64)
        for x in inputs:
            if world is None and not x.numel():
                x.grad = torch.zeros_like(x)  # one device has no empty micro-batch
                continue
            term = layer(x).tanh().sum() / max(tokens, 1)
            term.backward()
            loss += term.detach()
        grads = {name: _summed(name, p, world, etp) for name, p in layer.named_parameters()}
        with torch.no_grad():
            for name, p in layer.named_parameters():
                p -= RATE * grads[name]
        balances.add_up(lambda values: values if world is None else _sum(values))
        balances.settle()
        losses.append(float(loss if world is None else _sum(loss)))
        kept.append({name: _joined(name, g, world, etp) for name, g in grads.items()})
    weights = {n: _joined(n, p.detach(), world, etp) for n, p in layer.named_parameters()}
    assert balances.aux_loss is not None
    assert balances.load_max is not None
    return {
        "losses": losses,
        "grads": kept,
        "weights": weights,
        "inputs": [x.grad for x in inputs],
        "fraction": layer.gate.fraction.clone(),
        "aux": float(balances.aux_loss),
        "load_max": float(balances.load_max),
    }


def _groups(world: World | None, etp: int) -> tuple[dist.ProcessGroup | None, dist.ProcessGroup | None]:
    if world is None:
        return None, None
    inner = [world.rank // etp * etp + i for i in range(etp)]
    across = list(range(world.rank % etp, world.size, etp))
    return (
        world.group("ep", across) if len(across) > 1 else None,
        world.group("etp", inner) if etp > 1 else None,
    )


def _cut(layer: MoE, degree: int, index: int, etp: int, inner: int) -> None:
    for name in CUT:
        short = name.removeprefix("experts.")
        whole = getattr(layer.experts, short).detach()
        part = whole.chunk(degree, 0)[index].chunk(etp, CUT[name])[inner]
        setattr(layer.experts, short, nn.Parameter(part.clone()))


def _summed(name: str, parameter: nn.Parameter, world: World | None, etp: int) -> Tensor:
    """The complete gradient of what is here: of experts it is one, of the rest a partial sum."""
    assert parameter.grad is not None, f"{name} has no gradient"
    return parameter.grad if world is None or name in CUT else _sum(parameter.grad)


def _joined(name: str, value: Tensor, world: World | None, etp: int) -> Tensor:
    if world is None or name not in CUT:
        return value.clone()
    parts = [torch.empty_like(value) for _ in range(world.size)]
    dist.all_gather(parts, value.contiguous())
    rows = [torch.cat(parts[i : i + etp], CUT[name]) for i in range(0, world.size, etp)]
    return torch.cat(rows, 0)


def _sum(values: Tensor) -> Tensor:
    values = values.clone()
    dist.all_reduce(values)
    return values


def one_exchange(world: World, *, dtype: str, choices: list[Tensor], hidden: int) -> tuple[Tensor, Tensor]:
    """Each expert e multiplies by e + 1; result [N, K, D] and the gradient of its sum."""
    group = world.group("ep", range(world.size))
    choice = choices[world.rank]
    first = world.rank * 4 // world.size

    def experts(x_MD: Tensor, counts_E: Tensor) -> Tensor:
        factors = torch.arange(first, first + len(counts_E)) + 1
        return x_MD * factors.repeat_interleave(counts_E)[:, None].to(x_MD.dtype)

    x = torch.arange(choice.shape[0] * hidden).view(-1, hidden).to(getattr(torch, dtype)).requires_grad_()
    y = ep.dispatch(group)(x, choice, experts, 4)
    y.sum().backward()
    assert x.grad is not None
    return y.detach(), x.grad
