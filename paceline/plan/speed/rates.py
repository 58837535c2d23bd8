"""What a machine and its software take over the closed forms: one multiplier of time for each kind of work.

A multiplier is kept as its natural logarithm, so that 0 is the closed form, errors are symmetric, and the change
of a step's logarithm with one of them is that kind's share of the step. Nothing here names a machine, a model or a
program: each is a physical quantity. ``plan/calibrate`` learns them from measured runs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace

from paceline.plan.speed.speeds import Factors


@dataclass(frozen=True)
class Rates:
    """Logarithms of time over the closed form of ``speed/gpu.py``.

    Attributes:
        matmul: dense products. narrow, few_tokens: more of it for each factor e by which the smallest dimension is
            below 4096, and the tokens of a micro-batch below 8192. grouped: the experts' products over dense ones.
        attention: the core of attention. unfused: what attention moves through memory where it is not fused.
        memory: element-wise work. routing: that of routed tokens over it.
        launch: operators launched from the host, a layer. loss: head and loss.
        link, nic: bytes inside and between hosts. latency: of a message. optimizer: clip and update.
        recompute, exposed, contention, idle, host: as :class:`paceline.plan.speed.speeds.Factors`.
    """

    matmul: float = 0.0
    narrow: float = 0.0
    few_tokens: float = 0.0
    grouped: float = 0.0
    attention: float = 0.0
    unfused: float = 0.0
    memory: float = 0.0
    routing: float = 0.0
    launch: float = 0.0
    loss: float = 0.0
    link: float = 0.0
    nic: float = 0.0
    latency: float = 0.0
    optimizer: float = 0.0
    recompute: float = 0.0
    exposed: float = 0.0
    contention: float = 0.0
    idle: float = 0.0
    host: float = 0.0

    def times(self, name: str) -> float:
        """The multiplier itself."""
        return math.exp(getattr(self, name))

    def moved(self, name: str, by: float) -> Rates:
        """With one logarithm changed."""
        return replace(self, **{name: getattr(self, name) + by})

    @property
    def factors(self) -> Factors:
        return Factors(*(self.times(field.name) for field in fields(Factors)))

    def values(self) -> tuple[float, ...]:
        """In the order of :data:`NAMES`."""
        return tuple(getattr(self, name) for name in NAMES)


NAMES = tuple(field.name for field in fields(Rates))
AS_PUBLISHED = Rates()


@dataclass(frozen=True)
class Software:
    """What a program does that the planner's own runtime does otherwise, where a table of runs says it.

    Attributes:
        products: number type of the dense products ("" = that of the work).
        fused: attention never writes its scores to memory, and leaves out what causality hides.
        causal: a token sees only those before it.
    """

    products: str = ""
    fused: bool = True
    causal: bool = True
