"""The environment, read once. Below this file there are values."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager


def for_ranks(threads: int) -> dict[str, str]:
    """What a rank's process must find in its environment before torch is loaded."""
    count = str(threads)
    return {
        "OMP_NUM_THREADS": count,
        "MKL_NUM_THREADS": count,
        "OPENBLAS_NUM_THREADS": count,
        "TORCH_CPP_LOG_LEVEL": "ERROR",
    }


@contextmanager
def exported(variables: Mapping[str, str]) -> Iterator[None]:
    """Sets variables for the processes started inside, and takes them back."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
