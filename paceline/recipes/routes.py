"""The routing of one device, kept by row and token, and cut for a rank of any layout.

In the job's own precision near-ties between experts flip, and a flipped choice is no rounding error: every run of that
leg takes the choices of the float64 truth (``compute/models/replay.py``), and differs in what it computes with them.

Legend: G sequences of a global batch, T tokens of a row, P of them in this rank's stream, K experts a token.
"""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from paceline.compute.models.balance import Balance
from paceline.compute.models.replay import Replay
from paceline.deliver import cp
from paceline.deliver.axes import seams
from paceline.recipes.trial import Trial

FILE = "routing.safetensors"


def record(trial: Trial) -> None:
    """From now on, every choice of this model is kept. One device, the batch in one micro-batch."""
    for balance in _balances(trial):
        balance.replay = Replay()


def write(trial: Trial, folder: Path, steps: int) -> None:
    """What was recorded in ``steps`` steps: one tensor [G, T, K] a step and layer."""
    kept: dict[str, Tensor] = {}
    length = trial.feed.train.sequence_length
    for balance in _balances(trial):
        assert balance.replay is not None
        for layer, calls in balance.replay.choices.items():
            if len(calls) != steps:
                raise ValueError(
                    f"layer {layer} was called {len(calls)} times in {steps} steps of one micro-batch"
                )
            for step, choice_NK in enumerate(calls, start=1):
                kept[f"{step}/{layer}"] = choice_NK.view(-1, length, choice_NK.shape[-1]).contiguous()
    if kept:
        save_file(kept, folder / FILE)


def replay(trial: Trial, folder: Path, steps: int) -> None:
    """This model takes the choices kept in ``folder``, those of its own rows and tokens."""
    path = folder / FILE
    if not path.exists():
        return
    for balance in _balances(trial):
        choices: dict[int, list[Tensor]] = {layer: [] for layer in balance.gates}
        with safe_open(path, "pt") as file:
            for step in range(1, steps + 1):
                for layer in choices:
                    choices[layer] += _cut(trial, file.get_tensor(f"{step}/{layer}"), step)
        balance.replay = Replay(choices)


def _cut(trial: Trial, choice_GTK: Tensor, step: int) -> list[Tensor]:
    """[N, K] of each of this rank's micro-batches; rows of weight zero take the first row's."""
    plan, tokens_P = trial.feed.plan, _tokens(trial)
    origin = plan.position_of(step - 1)
    calls = []
    for batch in plan.micro_batches(step - 1):
        slots = torch.from_numpy(batch.positions_in_order).clamp(min=origin) - origin
        calls.append(choice_GTK[slots][:, tokens_P].reshape(-1, choice_GTK.shape[-1]))
    return calls


def _tokens(trial: Trial) -> Tensor:
    """Which tokens of a row are in this rank's part of the stream, int64 [P]."""
    mesh, length = trial.mesh, trial.feed.train.sequence_length
    here_T = cp.rows(length, mesh.layout.cp, mesh.at["cp"]) if mesh.layout.cp > 1 else torch.arange(length)
    return seams(mesh).stream.part(here_T[None])[0]


def _balances(trial: Trial) -> list[Balance]:
    return [model.balance for model in trial.built.models if model.balance is not None]
