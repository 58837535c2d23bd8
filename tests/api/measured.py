"""A made-up measurement of this machine, put where the planner looks: tests do not measure for a minute."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from paceline.api.surroundings import environment
from paceline.launch.machine import probe
from paceline.plan.measured import SCHEMA, machine_key, measurement_path
from tests.plan.answers import measurement


def plant(cache: Path, **speeds: float) -> None:
    """Writes the file below ``cache``; ``speeds`` as :func:`tests.plan.answers.measurement` takes them."""
    here = probe(environment())
    key = machine_key(here.cpu_model, here.cores, here.memory_bytes)
    path = measurement_path(cache, key)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"schema": SCHEMA, **asdict(measurement(**speeds)), "key": key}))
