"""What a run is at one step: named tensors, and a few numbers that every rank knows.

Names are the model's own: ``model/layers.0.mlp.up.weight``, ``optimizer/layers.0.mlp.up.weight/exp_avg``.
*Wrappers leave no trace in names*: DDP, torch.compile and activation checkpointing each put a prefix in,
and a checkpoint that keeps it loads nowhere else. A tied weight is one tensor under its first name; the
others are listed as ties.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from paceline.deliver.held import Held
from paceline.ledger.outcome import Exit, Refused

WRAPPERS = frozenset({"_orig_mod", "_checkpoint_wrapped_module", "_fsdp_wrapped_module"})
"""Attribute names that torch's wrappers use for the module inside; DDP's ``module`` is known by its class."""

HYPER = ("lr", "initial_lr", "betas", "eps", "weight_decay", "momentum", "dampening", "nesterov", "amsgrad")


@dataclass
class TrainState:
    """Everything that a checkpoint holds.

    Attributes:
        tensors: name → the live tensor (a plain tensor, or a DTensor); no copy is made, except of step
            counters.
        scalars: numbers and strings that are equal on all ranks: step, position, epoch, schedule
            length, seed, best.
        ties: another name of a tensor → its first name.
        groups: the optimizer's options, by names of parameters.
        places: for a tensor that is a part of a larger one, or that not every rank holds: what of it is here.
        everywhere: names that the state has on any rank; those of this rank are among them. Empty = the same ones.
    """

    tensors: dict[str, torch.Tensor] = field(default_factory=dict)
    scalars: dict[str, Any] = field(default_factory=dict)
    ties: dict[str, str] = field(default_factory=dict)
    groups: list[dict[str, Any]] = field(default_factory=list)
    places: dict[str, Place] = field(default_factory=dict)
    everywhere: frozenset[str] = frozenset()

    def shape(self, name: str) -> tuple[int, ...]:
        """Global shape of a tensor."""
        return self.places[name].shape if name in self.places else tuple(self.tensors[name].shape)


@dataclass(frozen=True)
class Place:
    """Where a tensor of this rank lies in the whole one.

    ``starts`` is where it begins, before a DTensor's own sharding; ``replicas`` are the ranks that hold the same
    elements after it.
    """

    shape: tuple[int, ...]
    starts: tuple[int, ...]
    replicas: tuple[int, ...]


@dataclass(frozen=True)
class Whole:
    """What the whole model has, whatever part of it a rank holds.

    Attributes:
        parameters, buffers: name → shape, each tensor once; of the buffers those that are kept.
        ties: another name of a tensor → its first.
    """

    parameters: Mapping[str, tuple[int, ...]]
    buffers: Mapping[str, tuple[int, ...]]
    ties: Mapping[str, str]

    @classmethod
    def of(cls, model: nn.Module) -> Whole:
        """Of a model, on any device."""
        first: dict[int, str] = {}
        ties: dict[str, str] = {}
        shapes: dict[bool, dict[str, tuple[int, ...]]] = {True: {}, False: {}}
        for name, tensor in named_tensors(model):
            if id(tensor) in first:
                ties[name] = first[id(tensor)]
                continue
            first[id(tensor)] = name
            shapes[isinstance(tensor, nn.Parameter)][name] = tuple(tensor.shape)
        return cls(shapes[True], shapes[False], ties)


def collect(
    models: nn.Module | Sequence[nn.Module],
    optimizer: torch.optim.Optimizer | None = None,
    scalars: dict[str, Any] | None = None,
    *,
    held: Mapping[str, Held] | None = None,
    whole: Whole | None = None,
) -> TrainState:
    """The state of a model and its optimizer, as views: reading a checkpoint into it changes both in place.

    Optimizer state that does not exist yet (no step was taken) is made of zeros, as the optimizer itself
    would.

    Args:
        models: the model, or the parts of it that this rank holds; of two tensors of one name the first counts.
        held: by parameter or buffer name, which part of the whole is here; absent = all of it, on every rank.
        whole: names of the model on all ranks, where this one has only some of them.

    Raises:
        Refused: a parameter on the meta device, an optimizer other than AdamW, Adam or SGD, or extra
            state of a
            module that is not a tensor.
    """
    state = TrainState(scalars=dict(scalars or {}))
    parts = [models] if isinstance(models, nn.Module) else list(models)
    first: dict[int, str] = {}
    for name, tensor in _named(parts):
        if tensor.is_meta:
            raise Refused(
                f"{name} has no data",
                seen="a tensor on the meta device",
                rule="a state is saved after it is made",
                use="to_empty and initialise the model first",
            )
        if id(tensor) in first:
            state.ties[f"model/{name}"] = first[id(tensor)]
        else:
            first[id(tensor)] = f"model/{name}"
            state.tensors[f"model/{name}"] = tensor.detach()
    if optimizer is not None:
        names = {key: name.removeprefix("model/") for key, name in first.items()}
        for group in optimizer.param_groups:
            state.groups.append(_options(group, names))
            for parameter in group["params"]:
                name = _known(parameter, names)
                for slot, value in _slots(optimizer, group, parameter).items():
                    state.tensors[f"optimizer/{name}/{slot}"] = value
    for full, tensor in state.tensors.items():
        place = place_of(full, tuple(tensor.shape), held or {})
        if place is not None:
            state.places[full] = place
    if whole is not None:
        state.everywhere = _everywhere(whole, optimizer) | frozenset(state.tensors)
        state.ties = {f"model/{alias}": f"model/{name}" for alias, name in whole.ties.items()}
    return state


def place_of(full: str, shape: tuple[int, ...], held: Mapping[str, Held]) -> Place | None:
    """A tensor of a parameter lies where the parameter does; a step counter is whole, on the same ranks.

    Args:
        full: name in a state. shape: of the tensor here, before sharding.
        held: by name of parameter or buffer; None is returned for what is not in it.
    """
    name = owner_of(full)
    if name not in held:
        return None
    have = held[name]
    if is_counter(full, shape, have):
        return Place(shape, (0,) * len(shape), have.holders)
    return Place(have.shape, have.starts, have.replicas)


def is_counter(full: str, shape: Sequence[int], have: Held) -> bool:
    """Whether a tensor of the optimizer is one number for a whole parameter, so that no axis cuts it."""
    return len(shape) != len(have.shape) or full.endswith("/step")


def owner_of(full: str) -> str:
    """The parameter or buffer that a name of a state belongs to: ``optimizer/a.weight/exp_avg`` → ``a.weight``."""
    kind, _, name = full.partition("/")
    return name if kind == "model" else name.rpartition("/")[0]


def _everywhere(whole: Whole, optimizer: torch.optim.Optimizer | None) -> frozenset[str]:
    """Every name of the whole state: all parameters have the optimizer's slots, buffers have none."""
    found = {f"model/{name}" for name in (*whole.parameters, *whole.buffers)}
    if optimizer is not None:
        slots = {slot for group in optimizer.param_groups for slot in slot_names(optimizer, group)}
        found |= {f"optimizer/{name}/{slot}" for name in whole.parameters for slot in slots}
    return frozenset(found)


def apply(
    state: TrainState,
    models: nn.Module | Sequence[nn.Module],
    optimizer: torch.optim.Optimizer | None = None,
) -> None:
    """Put a state into a model and its optimizer: what is already the same memory stays, the rest is copied.

    Options of the optimizer come from the job, except ``lr`` and ``initial_lr``, which a schedule may have
    moved.
    """
    parts = [models] if isinstance(models, nn.Module) else list(models)
    names = _first_names(parts)
    for name, tensor in _named(parts):
        if names[id(tensor)] == name:
            _put(tensor, _of(state, f"model/{name}"))
    if optimizer is None:
        return
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            have, name = optimizer.state[parameter], _known(parameter, names)
            for slot in slot_names(optimizer, group):
                value = _of(state, f"optimizer/{name}/{slot}")
                if slot == "step":
                    counter = _step_counter(value, group, parameter)
                    if isinstance(have.get(slot), torch.Tensor) and have[slot].dtype == counter.dtype:
                        have[slot].copy_(counter)  # its memory may be shared
                    else:
                        have[slot] = counter
                elif have.get(slot) is None:
                    have[slot] = value
                else:
                    _put(have[slot], value)
        mine = {names[id(p)] for p in group["params"]}
        for saved in state.groups:
            if set(saved["params"]) == mine:
                group.update({k: saved[k] for k in ("lr", "initial_lr") if k in saved and k in group})


def members(
    models: nn.Module | Sequence[nn.Module], optimizer: torch.optim.Optimizer
) -> dict[str, torch.Tensor]:
    """The tensors themselves by the names of :func:`collect`, not views; the optimizer's must exist (:func:`apply`)."""
    parts = [models] if isinstance(models, nn.Module) else list(models)
    names = _first_names(parts)
    found: dict[str, torch.Tensor] = {}
    for name, tensor in _named(parts):
        if names[id(tensor)] == name:
            found.setdefault(f"model/{name}", tensor)  # of two tensors of one name the first counts
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            for slot in slot_names(optimizer, group):
                value = optimizer.state[parameter][slot]
                found[f"optimizer/{_known(parameter, names)}/{slot}"] = value
    return found


def named_tensors(model: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """(name, tensor) of every parameter and persistent buffer, by the model's own names, tied ones repeated.

    FSDP's parameters are put back to their shards first: between forward and backward the whole ones stand
    there.
    """
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()
    yield from _walk(model, "")


def _named(parts: Sequence[nn.Module]) -> Iterator[tuple[str, torch.Tensor]]:
    for part in parts:
        yield from named_tensors(part)


def _walk(module: nn.Module, prefix: str) -> Iterator[tuple[str, torch.Tensor]]:
    for name, parameter in module._parameters.items():
        if parameter is not None:
            yield prefix + name, parameter
    for name, buffer in module._buffers.items():
        if buffer is not None and name not in module._non_persistent_buffers_set:
            yield prefix + name, buffer
    if type(module).get_extra_state is not nn.Module.get_extra_state:
        raise Refused(
            f"{prefix.rstrip('.') or type(module).__name__} has extra state",
            seen=f"{type(module).__name__}.get_extra_state",
            rule="a checkpoint holds tensors and JSON, never pickles",
            use="register_buffer for what must be kept",
        )
    for name, child in module._modules.items():
        if child is not None:
            inside = name in WRAPPERS or (name == "module" and isinstance(module, DistributedDataParallel))
            yield from _walk(child, prefix if inside else f"{prefix}{name}.")


def _known(parameter: torch.Tensor, names: dict[int, str]) -> str:
    name = names.get(id(parameter))
    if name is None:
        raise Refused(
            "the optimizer holds a parameter that the model does not",
            exit_code=Exit.FAULT,
            seen=f"a parameter of shape {list(parameter.shape)}",
            rule="an optimizer is made after the model is wrapped and sharded, from that model's parameters",
            use="make the optimizer last",
        )
    return name


def _options(group: dict[str, Any], names: dict[int, str]) -> dict[str, Any]:
    row: dict[str, Any] = {"params": [_known(p, names) for p in group["params"]]}
    for key in HYPER:
        if key in group:
            value = group[key]
            value = value.item() if isinstance(value, torch.Tensor) else value
            row[key] = list(value) if isinstance(value, tuple) else value
    return row


def _slots(
    optimizer: torch.optim.Optimizer, group: dict[str, Any], parameter: torch.Tensor
) -> dict[str, torch.Tensor]:
    """The optimizer's tensors of one parameter; a step counter is a plain float64 scalar, whatever holds
    it."""
    have = optimizer.state.get(parameter, {})
    slots: dict[str, torch.Tensor] = {}
    for slot in slot_names(optimizer, group):
        value = have.get(slot)
        if slot == "step":
            slots[slot] = torch.tensor(float(value) if value is not None else 0.0, dtype=torch.float64)
        else:
            slots[slot] = (torch.zeros_like(parameter) if value is None else value).detach()
    return slots


def slot_names(optimizer: torch.optim.Optimizer, group: dict[str, Any]) -> tuple[str, ...]:
    """Which tensors this optimizer keeps for each parameter of a group."""
    if isinstance(optimizer, torch.optim.Adam):  # AdamW is one
        return ("step", "exp_avg", "exp_avg_sq", *(("max_exp_avg_sq",) if group.get("amsgrad") else ()))
    if isinstance(optimizer, torch.optim.SGD) and not (group["momentum"] and group["dampening"]):
        return ("momentum_buffer",) if group["momentum"] else ()
    raise Refused(
        "this optimizer cannot be kept",
        key="optimizer.name",
        seen=type(optimizer).__name__,
        rule="a checkpoint must know every tensor of an optimizer",
        allowed="adamw, sgd without dampening",
        use='optimizer.name = "adamw"',
    )


def _step_counter(value: torch.Tensor, group: dict[str, Any], parameter: torch.Tensor) -> torch.Tensor:
    """torch keeps the counter on the parameter's device when the step is fused, else on the CPU."""
    on_device = group.get("fused") or group.get("capturable")
    wide = not group.get("fused") and torch.get_default_dtype() == torch.float64
    dtype = torch.float64 if wide else torch.float32
    return value.to(device=parameter.device if on_device else "cpu", dtype=dtype)


def _of(state: TrainState, name: str) -> torch.Tensor:
    if name not in state.tensors:
        raise Refused(
            f"the state has no {name}",
            exit_code=Exit.MISMATCH,
            seen=f"{len(state.tensors)} other tensors",
            rule="every tensor of the model and its optimizer comes from the checkpoint",
            use="collect the state from this model and this optimizer",
        )
    return state.tensors[name]


def _first_names(parts: Sequence[nn.Module]) -> dict[int, str]:
    first: dict[int, str] = {}
    for name, tensor in _named(parts):
        first.setdefault(id(tensor), name)
    return first


def local(tensor: torch.Tensor) -> torch.Tensor:
    """The part of a tensor that is in this rank's memory, without its history."""
    tensor = tensor.detach()
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _put(target: torch.Tensor, source: torch.Tensor) -> None:
    mine, other = local(target), local(source)
    if mine.data_ptr() != other.data_ptr() or mine.stride() != other.stride():
        mine.copy_(other)
