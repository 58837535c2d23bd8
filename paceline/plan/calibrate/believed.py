"""What the process believes of the multipliers themselves, for our runtime on one accelerator: rates for planning.

Our runtime is a program of its own that no table has, on torch's sharding: what is learnt of all runs, of its engine
and of the accelerator moves the rates, and what programs differ in stays uncertain.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from paceline.plan.calibrate.covariance import Scales, covariance
from paceline.plan.calibrate.example import Example
from paceline.plan.speed.rates import NAMES, Rates

if TYPE_CHECKING:
    import numpy as np

ENGINE = "fsdp"
PART_OF = {
    "link": "deliver",
    "nic": "deliver",
    "latency": "deliver",
    "exposed": "deliver",
    "optimizer": "update",
    "host": "host",
    "idle": "idle",
}
"""Phase that a kind of work is booked to; compute where nothing stands."""
PARTS = ("compute", "deliver", "update", "host", "idle")
LEAST = 0.05


@dataclass(frozen=True)
class Believed:
    """Rates, and the relative error of each phase's seconds.

    Attributes:
        sigma: standard deviation of the logarithm, by phase; ``shared`` by all layouts of a program beyond that;
            ``own`` of each layout.
    """

    rates: Rates
    sigma: Mapping[str, float]

    def to_dict(self) -> dict[str, Any]:
        values = dict(zip(NAMES, self.rates.values(), strict=True))
        return {"rates": {name: round(value, 4) for name, value in values.items()}, "sigma": dict(self.sigma)}


def believed(learnt: Sequence[Example], accelerator: str, products: str, scales: Scales) -> Believed:
    """Of our runtime on an accelerator; of one that no run names, by what all runs share."""
    import numpy as np

    measured = [one for one in learnt if one.measured is not None]
    known = covariance(measured, measured, scales) + scales.noise**2 * np.eye(len(measured))
    kinds = np.array(scales.kinds)
    level = {keys: scale for keys, scale, _ in scales.levels}
    alike = np.array(
        [
            level[()] ** 2
            + level[("engine",)] ** 2 * (one.engine == ENGINE)
            + level[("accelerator", "products")] ** 2
            * ((one.accelerator, one.products) == (accelerator, products))
            for one in measured
        ]
    )
    across = kinds[:, None] ** 2 * np.array([one.shares for one in measured]).T * alike
    solved = np.linalg.solve(known, across.T)
    means = solved.T @ np.array([one.excess for one in measured])
    shared = level[()] ** 2 + level[("engine",)] ** 2 + level[("accelerator", "products")] ** 2
    left = np.diag(kinds**2 * shared) - across @ solved
    # What a program, and a program on an accelerator, does otherwise is not known of ours.
    left += np.diag(kinds**2 * (level[("family",)] ** 2 + level[("accelerator", "family")] ** 2))
    rates = Rates(**dict(zip(NAMES, (float(value) for value in means), strict=True)))
    return Believed(rates, _sigma(measured, left, scales))


def _sigma(learnt: Sequence[Example], left: np.ndarray[Any, Any], scales: Scales) -> dict[str, float]:
    """Errors of the phases, by the mean shares that kinds of work have in them."""
    import numpy as np

    mean = np.mean([one.shares for one in learnt], axis=0)
    found = {}
    for part in PARTS:
        weights = np.array(
            [mean[i] if PART_OF.get(name, "compute") == part else 0.0 for i, name in enumerate(NAMES)]
        )
        weights = np.abs(weights) / max(1e-9, sum(np.abs(weights)))
        found[part] = max(LEAST, math.sqrt(float(weights @ left @ weights)))
    offsets = sum(offset**2 for keys, _, offset in scales.levels if keys != ("group",))
    own = scales.smooth**2 + scales.smooth_in_family**2 + scales.noise**2
    found |= {"shared": math.sqrt(offsets), "own": math.sqrt(own) / 2}
    return {name: round(value, 3) for name, value in found.items()}
