"""Every second of a pipeline is booked once, and waiting for a stage is a bubble that says what it waited for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from paceline.ledger.lines import Line, read_rank
from paceline.ledger.spans import TICKS_PER_S
from tests.pool import RankPool

CASE = "tests.update.pipeline.cases:slow"
PAUSE_S, MICRO = 0.1, 4
PLANTED_S = PAUSE_S * MICRO


def run(
    ranks: RankPool, folder: Path, layout: str, slow_stage: int
) -> tuple[list[dict[str, Any]], list[Line]]:
    """What the ranks say, and the ledger's line of the timed step of each."""
    found = ranks(2).run(
        CASE, layout=layout, micro_batches=MICRO, slow_stage=slow_stage, pause_s=PAUSE_S, path=str(folder)
    )
    lines = [
        [line for line in read_rank(folder / f"rank-{r}.jsonl").lines if line.step == 1][-1] for r in (0, 1)
    ]
    return found, lines


@pytest.mark.parametrize("layout", ["pp=2", "pp=2:gpipe", "pp=2:zbv"])
@pytest.mark.parametrize("slow_stage", [0, 1])
def test_the_neighbour_of_a_slow_stage_is_idle(
    ranks: RankPool, tmp_path: Path, layout: str, slow_stage: int
) -> None:
    """Both ways: 1f1b of torch would wait for its own send while the other side computes."""
    found, lines = run(ranks, tmp_path, layout, slow_stage)
    for rank in found:
        seconds = rank["seconds"]
        assert sum(seconds.values()) == pytest.approx(rank["wall"], abs=0.005)
        assert seconds["unattributed", ""] < 0.01 * rank["wall"]
    slow, waiting = found[slow_stage]["seconds"], found[1 - slow_stage]["seconds"]
    assert slow["compute", "forward"] > PLANTED_S
    assert PLANTED_S * 0.9 < waiting["idle", "bubble"] < found[1 - slow_stage]["wall"]
    assert slow["idle", "bubble"] < 0.5 * PLANTED_S
    assert waiting["deliver", "pp/send"] < 0.5 * PLANTED_S
    for line in lines:
        assert sum(line.ticks().values()) == line.end - line.start


def test_a_bubble_names_the_work_that_it_waited_for(ranks: RankPool, tmp_path: Path) -> None:
    _, lines = run(ranks, tmp_path, "pp=2", 0)
    causes = [[call.cause for call in line.calls if call.op == "recv"] for line in lines]
    assert causes == [[f"1B{m}" for m in range(MICRO)], [f"0F{m}" for m in range(MICRO)]]
    waited = {
        call.cause: call.wait[1] - call.wait[0] for call in lines[1].calls if call.op == "recv" and call.wait
    }
    assert waited["0F0"] > PAUSE_S * 0.9 * TICKS_PER_S  # before it, the rank has nothing else to do
    assert {call.cause for line in lines for call in line.calls if call.op == "send"} == {""}
