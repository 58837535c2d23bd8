"""What a backend's error means: a peer that is gone, a peer that is late, or ranks that disagree.

gloo and nccl raise ``RuntimeError`` for all three, told apart by their words only. The words are read in this
one file. An error that comes from *another* rank's trouble is called second-hand: when ranks fail together,
the launcher shows the first cause and not these.
"""

from __future__ import annotations

import re

from paceline.ledger.outcome import Exit, Failed, PacelineError

_GONE = re.compile(
    r"connection closed by peer|connection reset|broken pipe|connection refused|connectFullMesh|socket closed"
    r"|failed to recv, got 0 bytes|remote process exited|ncclRemoteError|sendBytes failed",
    re.IGNORECASE,
)
_LATE = re.compile(r"timed out|time-?out|DeadlineExceeded", re.IGNORECASE)
_DIFFERENT = re.compile(r"preamble\.length|op\.nbytes|Detected mismatch between collectives", re.IGNORECASE)

SECOND_HAND = frozenset({Exit.RANK_DIED, Exit.HUNG, Exit.PEERS})


def explain(error: BaseException, call: str, timeout_s: float = 0.0) -> PacelineError | None:
    """The error in our words, or ``None`` when it is not about peers.

    Args:
        error: what the backend raised.
        call: the collective, as ``all_reduce #12 on fsdp (ranks 0-3)``.
        timeout_s: the group's time-out, named in the message.
    """
    text = str(error)
    if _DIFFERENT.search(text):
        return Failed(
            f"ranks disagree in {call}",
            exit_code=Exit.DISAGREE,
            seen=_first_line(text),
            rule="each rank of a group makes the same calls in the same order, with tensors of the same size",
            use="the rank logs: compare what each rank did before this number",
        )
    if _GONE.search(text):
        return Failed(
            f"lost a peer in {call}",
            exit_code=Exit.RANK_DIED,
            seen=_first_line(text),
            rule="a collective needs each rank of its group until it ends",
            use="the log of the rank that ended first",
        )
    if _LATE.search(text):
        return Failed(
            f"a peer did not answer in {call}",
            exit_code=Exit.HUNG,
            seen=_first_line(text),
            rule=f"a collective ends within {timeout_s:g} s" if timeout_s else "a collective ends in time",
            use="--set restart.hang_timeout=10min, if the peers are only slow",
        )
    return None


def is_second_hand(error: PacelineError) -> bool:
    """True when the error may only be the echo of another rank's end."""
    return error.exit_code in SECOND_HAND


def _first_line(text: str, width: int = 160) -> str:
    line = text.strip().splitlines()[0] if text.strip() else ""
    return line if len(line) <= width else line[: width - 1] + "…"
