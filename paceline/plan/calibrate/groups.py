"""Which runs know each other. A run is never predicted from one of its own group.

A group is a model shape on one accelerator in one kind of host, trained by one family of programs: releases of a
program are one family. Names of models and numbers of devices play no part, and no source does.
"""

from __future__ import annotations

import re
from hashlib import blake2b

from paceline.plan.published.cases import Case

ENGINES = (
    ("nemo", "megatron"),
    ("megatron", "megatron"),
    ("fsdp", "fsdp"),
    ("torchtitan", "fsdp"),
    ("torchtune", "fsdp"),
    ("accelerate", "fsdp"),
    ("maxtext", "xla"),
    ("pax", "xla"),
    ("jax", "xla"),
    ("levanter", "xla"),
    ("deepspeed", "deepspeed"),
)
"""Programs that share their machinery: a word of the name → the engine."""


def family(framework: str) -> str:
    """A program without its release: ``NeMo / Megatron-Bridge 26.04`` and ``25.11`` are one."""
    bare = re.sub(r"\(.*?\)", "", framework)
    return " ".join(re.sub(r"[\d.\-]+", " ", bare).lower().split())


def engine(framework: str) -> str:
    """The machinery under a program; its family where nothing else is known."""
    low = framework.lower()
    return next((name for word, name in ENGINES if word in low), family(framework))


def group(case: Case) -> str:
    """A short name of the group that a case is in."""
    who = (case.work.widths, case.cluster.accelerator.name, case.cluster.devices, family(case.run.framework))
    return blake2b(repr(who).encode(), digest_size=8).hexdigest()
