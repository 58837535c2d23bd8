"""The same cache as whole runs have: data prepared once, and a made-up measurement."""

from __future__ import annotations

from tests.flow.conftest import cache as cache
