"""A step's change of the weights, entered by all ranks together and written down when it is done."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from paceline.deliver.wire.record import GroupRecorder
from paceline.ledger.outcome import Exit, Failed
from paceline.recover.live.words import Finished, Words


@dataclass
class SharedCommit:
    """What :class:`paceline.update.every_step.EveryStep` calls around each change of the weights.

    Args:
        position_of: the rows of data that so many steps use.
        step: finished so far, with the run's totals of ``tokens`` and ``samples``.
        record: the wait for the others is a call of its own in the ledger, and in the slot by which a hang is told.
        limit_s: how long the others may take.
    """

    words: Words
    rank: int
    record: GroupRecorder
    limit_s: float
    position_of: Callable[[int], int]
    step: int = 0
    tokens: float = 0.0
    samples: float = 0.0
    _left_s: float = field(default_factory=time.monotonic)

    def enter(self) -> None:
        """Return when every rank has the gradients of the next step and their norm.

        Raises:
            Failed: not all had them in time (31).
        """
        call = self.record.begin("commit", 0)
        try:
            with call.account:
                self.words.enter(self.rank, self.step + 1, self.limit_s)
        except TimeoutError as error:
            raise Failed(
                "a rank did not come to the end of its step",
                exit_code=Exit.HUNG,
                seen=str(error),
                rule="weights are changed when all ranks have their gradients",
                use="paceline logs last, the ranks named",
            ) from error
        call.close()

    def leave(
        self,
        valid_tokens: float,
        target_bytes: float,
        rows: float,
        loss: float,
        grad_norm: float,
        rate: float,
        remembered: tuple[float, ...],
    ) -> None:
        """The weights are those after the step."""
        now_s = time.monotonic()
        self.step += 1
        self.tokens += valid_tokens
        self.samples += rows
        self.words.leave(
            self.rank,
            Finished(
                self.step,
                self.position_of(self.step),
                self.tokens,
                self.samples,
                valid_tokens,
                target_bytes,
                rows,
                loss,
                grad_norm,
                rate,
                now_s - self._left_s,
                remembered,
            ),
        )
        self._left_s = now_s
