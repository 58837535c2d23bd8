"""A model that can take a step: widths, layout and device → parameters on their ranks, delivered, with an optimizer.

Used by training, evaluation, measurement and proofs alike, so that what is proven is what trains.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from paceline.compute.init import fill_rule, fill_slice
from paceline.compute.models.balance import Balances
from paceline.compute.models.cuts import cuts_of, expert_units, shard_units
from paceline.compute.models.decoder import Decoder
from paceline.compute.optim import build_optimizer
from paceline.deliver.axes import cuts_before_memory, deliver, finished, seams
from paceline.deliver.cut import cut
from paceline.deliver.delivery import Delivery, Part, Precision
from paceline.deliver.device import DTYPES, Device
from paceline.deliver.held import Held, slice_of
from paceline.deliver.mesh import Mesh
from paceline.job import Job
from paceline.job.presets import ModelWidths
from paceline.ledger.spans import Ledger
from paceline.recipes.compiled import compile_blocks
from paceline.recipes.stages import Stage, shared_by, stages_of
from paceline.recipes.twins import Twin, find_twins, follow, gather
from paceline.recover.state import TrainState, Whole, apply, collect
from paceline.update.every_step import EveryStep
from paceline.update.passes import InTurn, Passes
from paceline.update.replicas import Replicas
from paceline.update.sentinel import Sentinel


@dataclass(frozen=True)
class Assembly:
    """A delivered model with its optimizer.

    Attributes:
        stages, models: the parts of the model's depth that are here, one unless pipelined.
        names, parameters: each parameter of this rank once, under the model's own name.
        held: by name, which part of the whole it is and who else holds it.
        twins: weights that two stages of this rank hold; the second follows the first.
    """

    widths: ModelWidths
    stages: list[Stage]
    models: list[Decoder]
    delivery: Delivery
    optimizer: torch.optim.Optimizer
    names: list[str]
    parameters: list[nn.Parameter]
    held: dict[str, Held]
    twins: list[Twin]
    whole: Whole
    mesh: Mesh
    device: Device
    precision: Precision

    def policy(self, job: Job, mesh: Mesh, device: Device, ledger: Ledger) -> EveryStep:
        """The update policy of the job over this model."""
        balances = [model.balance for model in self.models if model.balance is not None]
        return EveryStep(
            self.delivery,
            self.passes(ledger),
            self.names,
            self.parameters,
            [len(self.held[name].replicas) for name in self.names],
            self.optimizer,
            mesh,
            device,
            ledger,
            max_grad_norm=job.optimizer.max_grad_norm,
            router=Balances(balances) if balances else None,
            after=lambda: follow(self.twins),
            sentinel=Sentinel(
                (stage.number, part) for stage, part in zip(self.stages, self.models, strict=True)
            ),
        )

    def replicas(self) -> Replicas:
        """What compares this rank's weights with those of the ranks that hold the same."""
        held_by = [self.held[name].replicas for name in self.names]
        return Replicas(self.names, self.parameters, held_by, self.optimizer, self.mesh)

    def state(self, scalars: dict[str, Any] | None = None) -> TrainState:
        """Everything a checkpoint holds of this rank, as views."""
        stage = self.mesh.members("stage")
        places = dict(self.held)
        for model in self.models:
            for name, buffer in model.named_buffers():
                zero = (0,) * buffer.ndim
                places[name] = Held(tuple(buffer.shape), zero, tuple(buffer.shape), stage, stage, stage)
        return collect(self.models, self.optimizer, scalars, held=places, whole=self.whole)

    def load(self, state: TrainState) -> None:
        """Put what was read into :meth:`state` back where it belongs."""
        apply(state, self.models, self.optimizer)
        self.follow()

    def follow(self) -> None:
        """A second copy of a weight on this rank takes the first one's values."""
        follow(self.twins)

    def passes(self, ledger: Ledger) -> Passes:
        """How micro-batches go through this rank's part of the model."""
        if self.mesh.layout.pp == 1:
            return InTurn(self.delivery, ledger)
        from paceline.recipes.passes import Pipeline

        numbers = [stage.number for stage in self.stages]
        return Pipeline(self.delivery, numbers, self.mesh, self.device, self.precision, self.widths, ledger)


Materialise = Callable[[Sequence[Decoder], dict[str, Held], Device, int], None]


def assemble(
    job: Job,
    widths: ModelWidths,
    precision_name: str,
    mesh: Mesh,
    device: Device,
    materialise: Materialise | None = None,
) -> Assembly:
    """Build, cut, materialise and fill the model, then its optimizer.

    Args:
        job: seed, reduce precision and optimizer are read.
        widths: of the model, vocabulary included.
        precision_name: ``fp32``, ``bf16`` or ``fp64``, already decided (never ``auto``).
        mesh: the rank's groups.
        device: where the parameters live.
        materialise: instead of :func:`fill`, for a dry run, whose parameters take no memory and have no values.
    """
    precision, layout = precision_of(job, precision_name), mesh.layout
    stages = stages_of(layout, mesh.rank, widths, job.data.sequence_length)
    shared = shared_by(layout, widths)
    models = build(widths, stages, precision, mesh)
    held: dict[str, Held] = {}
    for model in models:
        held |= cut(model, lambda name: cuts_of(name, widths), layout, mesh.rank, shared)
        model.tie_weights()
    if layout.compile == "on":
        compile_blocks(models)
    parts = [Part(m, shard_units(m), expert_units(m) if layout.ep * layout.etp > 1 else ()) for m in models]
    if cuts_before_memory(mesh):
        delivery = deliver(parts, mesh, precision)
        (materialise or fill)(models, held, device, job.train.seed)
    else:
        (materialise or fill)(models, held, device, job.train.seed)
        delivery = deliver(parts, mesh, precision)
    twins = find_twins(models)
    doubles = {id(twin.second) for twin in twins}
    named = [(n, p) for model in models for n, p in model.named_parameters() if id(p) not in doubles]
    delivery = finished(delivery, named, held, mesh, precision)
    if twins:
        delivery = replace(delivery, finish=gather(twins, delivery.finish))
    return Assembly(
        widths,
        stages,
        models,
        delivery,
        build_optimizer(named, job.optimizer),
        [n for n, _ in named],
        [p for _, p in named],
        held,
        twins,
        whole_model(widths),
        mesh,
        device,
        precision,
    )


def whole_model(widths: ModelWidths) -> Whole:
    """Names of the model as one device has it."""
    with torch.device("meta"):
        return Whole.of(Decoder(widths))


def build(widths: ModelWidths, stages: Sequence[Stage], precision: Precision, mesh: Mesh) -> list[Decoder]:
    """The stages' modules on the meta device, in the master dtype, uncut."""
    master = torch.float64 if precision.compute == torch.float64 else torch.float32
    plugs = seams(mesh)
    with torch.device("meta"):
        models = [
            Decoder(widths, precision.compute, plugs, stage.part, mesh.layout.recompute).to(master)
            for stage in stages
        ]
    return models


def fill(models: Sequence[Decoder], held: dict[str, Held], device: Device, seed: int) -> None:
    """Give the parameters memory on ``device`` and their initial values, each rank its own slices."""
    allocate(models, device)
    for model in models:
        for name, parameter in model.named_parameters():
            part = slice_of(parameter.detach(), held[name])
            rule = fill_rule(name, model.widths)
            fill_slice(part.local, rule, seed=seed, name=name, shape=part.shape, offsets=part.starts)


def unfilled(models: Sequence[Decoder], held: dict[str, Held], device: Device, seed: int) -> None:
    """Memory only: every value is about to be read from a checkpoint, or is in the memory that the state goes on in."""
    allocate(models, device)


def allocate(models: Sequence[Decoder], device: Device) -> None:
    """Memory on ``device`` for parameters and buffers; only the buffers have values then."""
    for model in models:
        model.to_empty(device=device.torch)
        model.tie_weights()
        if model.balance is not None:
            model.balance.reset()


def precision_of(job: Job, name: str) -> Precision:
    """Compute and reduction dtypes. Float64 reduces in float64; else the job's ``train.reduce_precision``."""
    compute = DTYPES[name]
    reduce = compute if compute == torch.float64 else DTYPES[job.train.reduce_precision]
    return Precision(compute, reduce)
