"""A model that can take a step: widths, layout and device → parameters on their ranks, delivered, with an optimizer.

Used by training, evaluation, measurement and proofs alike, so that what is proven is what trains.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from paceline.compute.init import fill_rule, fill_slice
from paceline.compute.models.cuts import shard_units
from paceline.compute.models.decoder import Decoder
from paceline.compute.optim import build_optimizer
from paceline.deliver.axes import cuts_before_memory, deliver
from paceline.deliver.delivery import Delivery, Precision
from paceline.deliver.device import DTYPES, Device
from paceline.deliver.mesh import Mesh
from paceline.deliver.slices import slice_of
from paceline.job import Job
from paceline.job.presets import ModelWidths
from paceline.ledger.spans import Ledger
from paceline.update.every_step import EveryStep


@dataclass(frozen=True)
class Assembly:
    """A delivered model with its optimizer. ``names`` are the model's own, in the order of ``parameters``."""

    model: Decoder
    delivery: Delivery
    optimizer: torch.optim.Optimizer
    names: list[str]
    parameters: list[nn.Parameter]

    def policy(self, job: Job, mesh: Mesh, device: Device, ledger: Ledger) -> EveryStep:
        """The update policy of the job over this model."""
        return EveryStep(
            self.delivery,
            self.parameters,
            self.optimizer,
            mesh,
            device,
            ledger,
            max_grad_norm=job.optimizer.max_grad_norm,
        )


def assemble(job: Job, widths: ModelWidths, precision_name: str, mesh: Mesh, device: Device) -> Assembly:
    """Build, cut, materialise and fill the model, then its optimizer.

    Args:
        job: seed, reduce precision and optimizer are read.
        widths: of the model, vocabulary included.
        precision_name: ``fp32``, ``bf16`` or ``fp64``, already decided (never ``auto``).
        mesh: the rank's groups.
        device: where the parameters live.
    """
    precision = precision_of(job, precision_name)
    master = torch.float64 if precision.compute == torch.float64 else torch.float32
    with torch.device("meta"):
        model = Decoder(widths, dtype=precision.compute).to(master)
    if cuts_before_memory(mesh):
        delivery = deliver(model, shard_units(model), mesh, precision)
        fill(model, device, job.train.seed)
    else:
        fill(model, device, job.train.seed)
        delivery = deliver(model, shard_units(model), mesh, precision)
    named = list(model.named_parameters())
    optimizer = build_optimizer(named, job.optimizer)
    return Assembly(model, delivery, optimizer, [n for n, _ in named], [p for _, p in named])


def fill(model: Decoder, device: Device, seed: int) -> None:
    """Give the parameters memory on ``device`` and their initial values, each rank its own slices."""
    model.to_empty(device=device.torch)
    model.tie_weights()
    for name, parameter in model.named_parameters():
        part = slice_of(parameter.detach())
        rule = fill_rule(name, model.widths)
        fill_slice(part.local, rule, seed=seed, name=name, shape=part.shape, offsets=part.offsets)


def precision_of(job: Job, name: str) -> Precision:
    """Compute and reduction dtypes. Float64 reduces in float64; else the job's ``train.reduce_precision``."""
    compute = DTYPES[name]
    reduce = compute if compute == torch.float64 else DTYPES[job.train.reduce_precision]
    return Precision(compute, reduce)
