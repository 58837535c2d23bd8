"""Why a run ended: errors of ranks in one form, and which of several is the first cause.

When one rank fails the others fail too, a moment later and for no reason of their own: they lose a peer, or
wait for it until a time-out. So the causes are ordered by what they can tell, and by time only among equals.
"""

from __future__ import annotations

import errno
import os
import signal
import traceback
from dataclasses import dataclass
from pathlib import Path

from paceline.deliver.wire.lost import explain, is_second_hand
from paceline.deliver.wire.slot import LastCall
from paceline.ledger.outcome import Exit, Failed, PacelineError
from paceline.ledger.resident import peak_bytes

_STORE_IS_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)
_OUTSIDE = ("site-packages", "dist-packages", "lib/python3", "<frozen", "<string")


@dataclass(frozen=True, slots=True)
class Cause:
    """One reason for the end.

    Attributes:
        rank: whose.
        error: in the five fields.
        died: the process ended without a word.
    """

    rank: int
    error: PacelineError
    died: bool = False

    @property
    def is_echo(self) -> bool:
        """Another rank must have failed before."""
        return not self.died and is_second_hand(self.error)

    @property
    def weight(self) -> int:
        """Smaller tells more: a death, then an error of the rank's own, then the echo of another's."""
        if self.died:
            return 0
        return 2 if self.is_echo else 1


def first_cause(causes: list[Cause]) -> Cause:
    """The one to show. ``causes`` in the order of arrival; of equals the first, of missing peers the lowest
    rank's.

    Rank 0 serves the meeting, so it alone always knows who is missing; the others may only see that it left.
    """
    missing = [cause for cause in causes if cause.error.exit_code == Exit.PEERS]
    if len(missing) == len(causes):
        return min(causes, key=lambda cause: cause.rank)
    return min(causes, key=lambda cause: cause.weight)


def from_exception(error: BaseException, rank: int, host: str, world_size: int) -> PacelineError:
    """What a rank raised, in our form: ours as it is, out of memory 23, a lost peer 58, anything else 1."""
    if isinstance(error, PacelineError):
        return error
    place = line_of(error)
    words = f"{type(error).__name__}: {error}".strip().splitlines()[0]
    if _is_out_of_memory(error):
        return Failed(
            f"rank {rank} ran out of memory",
            exit_code=Exit.DEVICE_MEMORY,
            seen=f"{words}; at its peak the process held {peak_bytes() / 2**30:.2f} GiB of host memory",
            rule="weights, gradients, optimizer state and activations of a rank fit its device",
            use=f"--layout fsdp={max(2, world_size)},mbs=1",
            where=place,
        )
    if isinstance(error, OSError) and error.errno in _STORE_IS_FULL:
        return Failed(
            f"rank {rank} on {host} cannot write: {os.strerror(error.errno)}",
            exit_code=Exit.STORE,
            seen=words,
            rule="the disk has room for the run's ledger, metrics and checkpoints",
            use="make room, then paceline train JOB --resume",
            where=place,
        )
    if isinstance(error, RuntimeError) and (explained := explain(error, f"a collective of rank {rank}")):
        return explained
    return Failed(
        f"rank {rank} on {host} raised {words}",
        exit_code=Exit.FAULT,
        seen=words,
        rule="a rank ends by returning",
        use=f"paceline logs RUN --rank {rank}   (the traceback; report it, if the code is not yours)",
        where=place,
    )


def from_death(
    rank: int, host: str, code: int | None, log: Path | None = None, call: str = ""
) -> PacelineError:
    """A rank whose process ended without a result and without an error.

    gloo aborts a process whose peers send another size than it expects: the words are in the log only.
    """
    if code == -signal.SIGABRT and log is not None:
        for line in reversed(_tail(log)):
            told = explain(RuntimeError(line.strip()), call or f"a collective of rank {rank}")
            if told is not None and told.exit_code == Exit.DISAGREE:
                return told
    if code is not None and code < 0:
        name = _signal_name(-code)
        message, seen = f"rank {rank} on {host} was killed by {name}", f"signal {-code}"
        if code == -signal.SIGKILL:
            seen += "; if nobody sent it, the kernel did, out of host memory (dmesg)"
    else:
        message, seen = (
            f"rank {rank} on {host} ended without a result (exit code {code})",
            f"exit code {code}",
        )
    return Failed(
        message,
        exit_code=Exit.RANK_DIED,
        seen=seen,
        rule="each rank lives until the run ends",
        use=f"paceline train JOB --resume   (log: paceline logs RUN --rank {rank})",
    )


def from_hang(calls: list[LastCall], quiet_s: float, limit_s: float) -> Failed:
    """No rank has moved: names who is waited for, and in which collective the others wait."""
    waiting = [call for call in calls if call.inside]
    if not waiting:
        late, where = calls, "no collective is open"
    else:
        most = max(waiting, key=lambda c: sum((o.group, o.seq) == (c.group, c.seq) for o in waiting))
        late = [call for call in calls if (call.group, call.seq, call.op) != (most.group, most.seq, most.op)]
        where = f"{most.call}, step {most.step}"
    names = ", ".join(str(call.rank) for call in late) or "none"
    return Failed(
        f"collective hung: {where}; waiting for rank {names}"
        if waiting
        else f"every rank stands still: {where}",
        exit_code=Exit.HUNG,
        seen="\n".join(str(call) for call in (*late, *[c for c in waiting if c not in late])[:9]),
        rule=f"restart.hang_timeout: some rank moves within {limit_s:g} s (none did for {quiet_s:.1f} s)",
        use=f"paceline logs RUN --rank {late[0].rank if late else 0}   (its stack); then --resume",
    )


def from_early_end(ended: list[int], calls: list[LastCall], lost: PacelineError) -> PacelineError:
    """Ranks returned while others still called a collective: they made fewer calls than their peers.

    Args:
        ended: the ranks that have returned their results.
        calls: each rank's last call.
        lost: what a peer said of it, given back when the slots do not know better.
    """
    left = [call for call in calls if call.rank not in ended and call.inside]
    if not left:
        return lost
    names = ", ".join(str(rank) for rank in ended)
    has = "rank {} has ended" if len(ended) == 1 else "ranks {} have ended"
    return Failed(
        f"{has.format(names)}, and others wait for {'it' if len(ended) == 1 else 'them'} in {left[0].call}, "
        f"step {left[0].step}",
        exit_code=Exit.DISAGREE,
        seen="\n".join(str(call) for call in (*[c for c in calls if c.rank in ended], *left)[:9]),
        rule="each rank of a group makes the same calls in the same order",
        use=f"paceline logs RUN --rank {ended[0]}   (which call did it leave out?)",
    )


def line_of(error: BaseException) -> str:
    """``file.py:12`` of the innermost line that is neither torch's nor the standard library's."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if not any(part in frame.filename for part in _OUTSIDE)]
    if not (ours or frames):
        return ""
    frame = (ours or frames)[-1]
    return f"{Path(frame.filename).name}:{frame.lineno}"


def _tail(path: Path, count: int = 40) -> list[str]:
    try:
        with open(path, "rb") as file:
            file.seek(max(0, file.seek(0, 2) - 16_384))
            return file.read().decode(errors="replace").splitlines()[-count:]
    except OSError:
        return []


def _is_out_of_memory(error: BaseException) -> bool:
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    return isinstance(error, RuntimeError) and "can't allocate memory" in str(error)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
