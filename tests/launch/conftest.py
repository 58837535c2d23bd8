"""Every test here starts processes, so every test here has a hard limit."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.hard_limit import hard_limit
from tests.pool import warm_up


@pytest.fixture(autouse=True)
def limited() -> Iterator[None]:
    warm_up()
    with hard_limit(120):
        yield
