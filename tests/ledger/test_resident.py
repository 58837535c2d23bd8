"""Memory of this process, not of the one that started it."""

from __future__ import annotations

import resource
import subprocess
import sys

from paceline.ledger.resident import peak_bytes, resident_bytes

ASK = """
import sys
held = bytearray(int(sys.argv[1]))
held[::4096] = b"x" * len(held[::4096])
from paceline.ledger.resident import peak_bytes, resident_bytes
now = resident_bytes()
del held
print(now, peak_bytes())
"""
MANY, SLACK = 300 << 20, 1 << 20  # the kernel counts pages in batches, processor by processor


def ask(held: int) -> tuple[int, int]:
    argv = [sys.executable, "-c", ASK, str(held)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=True)
    now, peak = map(int, done.stdout.split())
    return now, peak


def test_what_is_held_is_seen_and_stays_the_peak() -> None:
    now, peak = ask(MANY)
    assert MANY < now < MANY + (100 << 20)
    assert now - SLACK < peak < MANY + (100 << 20)


def test_a_small_process_of_a_large_one_is_small() -> None:
    """getrusage hands the launcher's peak down; a rank's memory is its own."""
    held = bytearray(MANY)
    held[::4096] = b"x" * len(held[::4096])
    assert resident_bytes() > MANY
    assert ask(4096)[1] < 100 << 20
    assert peak_bytes() >= MANY
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss << 10 >= MANY
