"""The routing of one run, kept so that another run can be made to take it.

In bfloat16 near-ties between experts flip from run to run of different layouts, and a flipped choice is no rounding
error. A comparison in low precision therefore lets a reference record its choices and hands them to the runs that it
is compared with; weights and gradients are still each run's own.

Title of the hard why: *a call is known by its mask*. A layer's n-th forward since the replay was made is its call n;
a forward that is recomputed in the backward repeats one, in an order that a pipeline decides. The recompute gets the
very same mask tensor as its forward got (checkpointing keeps the arguments), so that object names the call.

Legend: N tokens, K experts a token.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary


class Replay:
    """Records choices, or gives them back.

    Args:
        choices: layer → the choice [N, K] of each call in order, from the ``choices`` of a recording. None = record.

    Attributes:
        choices: what was recorded, or what is given back. Call n of layer l is ``choices[l][n]``; forwards without
            gradients are calls too. Cut them by row and position for a layout that sees other micro-batches.
    """

    def __init__(self, choices: Mapping[int, Sequence[Tensor]] | None = None) -> None:
        self.records = choices is None
        self.choices: dict[int, list[Tensor]] = {
            layer: list(calls) for layer, calls in (choices or {}).items()
        }
        self._done: dict[int, int] = {}
        self._calls: dict[int, WeakTensorKeyDictionary] = {}

    def __call__(self, layer: int, own_NK: Tensor, counted: Tensor | None, again: bool) -> Tensor:
        """The choice to take.

        Args:
            layer: global number.
            own_NK: what the router of this run chose.
            counted: the mask of the forward, which a recompute is known by.
            again: whether this is a recompute.
        """
        call = self._repeated(layer, counted) if again else self._next(layer, counted)
        calls = self.choices.setdefault(layer, [])
        if self.records and not again:
            calls.append(own_NK.detach())
        if call >= len(calls):
            raise ValueError(
                f"layer {layer}: {len(calls)} calls were recorded, this is number {call} (from 0)"
            )
        if calls[call].shape != own_NK.shape:
            raise ValueError(
                f"layer {layer}, call {call}: choice [N, K] {list(calls[call].shape)} was recorded, "
                f"this forward has {list(own_NK.shape)}; cut the recording as the layout cuts the batch"
            )
        return calls[call].to(own_NK.device)

    def _next(self, layer: int, counted: Tensor | None) -> int:
        call = self._done.get(layer, 0)
        self._done[layer] = call + 1
        if counted is not None:
            self._calls.setdefault(layer, WeakTensorKeyDictionary())[counted] = call
        return call

    def _repeated(self, layer: int, counted: Tensor | None) -> int:
        calls = self._calls.get(layer)
        if counted is None or calls is None or counted not in calls:
            raise ValueError(f"layer {layer}: a recompute with another mask than its forward's")
        return int(calls[counted])
