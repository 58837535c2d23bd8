"""The words of gloo and nccl, as torch 2.13 wrote them, and what they mean."""

from __future__ import annotations

import pytest

from paceline.deliver.wire.lost import explain, is_second_hand
from paceline.ledger.outcome import Exit, Failed, Refused

WORDS = {
    "[pair.cc:544] Connection closed by peer [127.0.0.1]:38123": Exit.RANK_DIED,
    "[unbound_buffer.cc:93] Read error [127.0.0.1]:1: Connection reset by peer": Exit.RANK_DIED,
    "Gloo connectFullMesh failed with Connection refused": Exit.RANK_DIED,
    "[unbound_buffer.cc:78] Timed out waiting 2000ms for recv operation to complete": Exit.HUNG,
    "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=3)": Exit.HUNG,
    "[enforce fail at pair.cc:488] op.preamble.length <= op.nbytes. 64 vs 32": Exit.DISAGREE,
}


@pytest.mark.parametrize(("words", "code"), WORDS.items())
def test_words_become_codes(words: str, code: Exit) -> None:
    told = explain(RuntimeError(f"{words}\nstack"), "all_reduce #4 on dp (0-3)", 2.0)
    assert isinstance(told, Failed)
    assert told.exit_code == code
    assert "all_reduce #4 on dp (0-3)" in told.message
    assert told.seen == words
    assert told.rule
    assert told.use


def test_other_errors_are_left_alone() -> None:
    assert explain(RuntimeError("mat1 and mat2 shapes cannot be multiplied"), "x") is None


def test_who_speaks_from_hearsay() -> None:
    assert is_second_hand(Failed("x", exit_code=Exit.RANK_DIED))
    assert is_second_hand(Failed("x", exit_code=Exit.HUNG))
    assert not is_second_hand(Failed("x", exit_code=Exit.DISAGREE))
    assert not is_second_hand(Refused("x", exit_code=Exit.DATA))
