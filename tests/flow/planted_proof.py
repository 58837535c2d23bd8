"""What ranks run in ``test_prove.py``: a proof's rank entry, with a fault planted in this process before it.

``paceline.api.trials.ENTRY`` names the entry; a test that names this one plants a fault, and the product has no switch.
"""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

from paceline.recipes import prove
from paceline.recipes.place import Emit, Place, Stop
from paceline.update.passes import InTurn


def run(payload: dict[str, Any], place: Place, emit: Emit, stop: Stop) -> dict[str, Any]:
    """Gradients are halved where dp and fsdp meet, and nowhere else."""
    original = InTurn.forward_backward

    def halved(self: InTurn, micro: Any, divisor: Any) -> Any:
        return original(self, micro, divisor * 2)

    def case(case: Any, *rest: Any) -> Any:
        both = "dp=" in case.layout.replace("fsdp=", "") and "fsdp=" in case.layout
        with patch.object(InTurn, "forward_backward", halved if both else original):
            return run_case(case, *rest)

    run_case = prove.run_case
    with patch.object(prove, "run_case", case):
        return prove.run(payload, place, emit, stop)


def die(payload: dict[str, Any], place: Place, emit: Emit, stop: Stop) -> dict[str, Any]:
    """One of the ranks of a layout is killed at the second case of a launch."""
    import os
    import signal

    run_case = prove.run_case
    seen: list[str] = []

    def case(case: Any, *rest: Any) -> Any:
        seen.append(case.name)
        if place.rank == 1 and "fsdp=2" in case.layout:
            os.kill(os.getpid(), signal.SIGKILL)
        return run_case(case, *rest)

    with patch.object(prove, "run_case", case):
        return prove.run(payload, place, emit, stop)
