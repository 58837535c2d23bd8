"""Ranks on this machine: results, logs, messages, errors, threads."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest

from paceline.launch.local import rank_log, run_here, run_ranks
from paceline.ledger.outcome import Failed, PacelineError, Preempted, Refused
from tests.launch.sockets import listeners

CASES = "tests.launch.cases"


def _rows() -> tuple[list[tuple[int, dict[str, Any]]], Any]:
    rows: list[tuple[int, dict[str, Any]]] = []
    return rows, lambda rank, row: rows.append((rank, row))


def test_results_come_by_rank_and_the_payload_reaches_each(tmp_path: Path) -> None:
    rows, on_message = _rows()
    results = run_ranks(
        f"{CASES}:whoami", {"a": [1, "x"]}, world_size=3, logs=tmp_path, on_message=on_message, attempt=2
    )
    assert [result["rank"] for result in results] == [0, 1, 2]
    assert all(result["payload"] == {"a": [1, "x"]} for result in results)
    assert all(result["attempt"] == 2 for result in results)
    assert all(result["omp"] == "1" for result in results)
    assert sorted(rank for rank, row in rows if row["kind"] == "train") == [0, 1, 2]


def test_a_warning_of_all_ranks_is_shown_once_with_host_and_rank(tmp_path: Path) -> None:
    rows, on_message = _rows()
    run_ranks(f"{CASES}:whoami", {}, world_size=3, logs=tmp_path, on_message=on_message)
    warned = [(rank, row) for rank, row in rows if row["kind"] == "warn"]
    assert len(warned) == 1
    rank, row = warned[0]
    assert row["text"] == f"{row['host']}:{rank}| UserWarning: planted warning"


def test_each_rank_has_its_log_with_a_header_an_attempt(tmp_path: Path) -> None:
    for attempt in (0, 1):
        run_ranks(f"{CASES}:whoami", {}, world_size=2, logs=tmp_path, attempt=attempt)
    text = rank_log(tmp_path, 1).read_text()
    assert rank_log(tmp_path, 1).name == "rank-00001.log"
    headers = [line for line in text.splitlines() if line.startswith("===")]
    assert [line.split(" · ")[0] for line in headers] == ["=== attempt 0", "=== attempt 1"]
    assert "rank 1 of 2 on " in headers[0]
    for words in ("hello from 1", "and to stderr", "from a child of the rank", "planted warning"):
        assert text.count(words) >= 2
    assert "hello from 0" not in text
    assert sorted(p.name for p in tmp_path.iterdir()) == ["rank-00000.log", "rank-00001.log"], (
        "slots left behind"
    )


FAILURES = {
    "raise": (Failed, 1, "raised ValueError: planted"),
    "refuse": (Refused, 20, "planted"),
    "kill": (Failed, 58, "was killed by SIGKILL"),
    "segv": (Failed, 58, "was killed by SIGSEGV"),
    "exit": (Failed, 58, "ended without a result"),
    "memory": (Failed, 23, "rank 1 ran out of memory"),
}


@pytest.mark.parametrize("how", FAILURES)
def test_one_rank_fails_and_all_end_at_once_with_its_cause(tmp_path: Path, how: str) -> None:
    kind, code, words = FAILURES[how]
    begin = time.monotonic()
    with pytest.raises(PacelineError) as caught:
        run_ranks(f"{CASES}:fail", {"rank": 1, "how": how}, world_size=3, logs=tmp_path)
    assert time.monotonic() - begin < 30  # the others sleep for ten minutes
    error = caught.value
    assert type(error) is kind
    assert error.exit_code == code
    assert words in error.message
    if how == "raise":
        assert error.where.startswith("cases.py:")
        assert "ValueError: planted" in rank_log(tmp_path, 1).read_text()
        assert "Traceback" in rank_log(tmp_path, 1).read_text()
    if how == "refuse":
        assert (error.key, error.seen, error.rule, error.use) == ("data.train", "x", "y", "z")


def test_preempted_ranks_may_finish_saving(tmp_path: Path) -> None:
    """Each sleeps longer than the one before; a failure would have ended the last one."""
    begin = time.monotonic()
    with pytest.raises(Preempted) as caught:
        run_ranks(f"{CASES}:fail", {"rank": 9, "how": "preempt"}, world_size=3, logs=tmp_path)
    assert caught.value.exit_code == 50
    assert time.monotonic() - begin > 1.0


def test_a_result_that_is_not_json_is_the_ranks_error(tmp_path: Path) -> None:
    with pytest.raises(Failed, match="not JSON serializable"):
        run_ranks(f"{CASES}:whole_answer", {}, world_size=2, logs=tmp_path)


def test_the_callers_stop_reaches_every_rank(tmp_path: Path) -> None:
    ready: list[int] = []
    results = run_ranks(
        f"{CASES}:until_stopped",
        {},
        world_size=2,
        logs=tmp_path,
        on_message=lambda rank, row: ready.append(rank),
        stop=lambda: "stop command" if len(ready) == 2 else None,
    )
    assert results == [{"reason": "stop command"}] * 2


def test_an_error_in_the_callers_callback_leaves_no_rank_behind(tmp_path: Path) -> None:
    pids: list[int] = []

    def on_message(rank: int, row: dict[str, Any]) -> None:
        pids.append(row["pid"])
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run_ranks(f"{CASES}:until_stopped", {}, world_size=2, logs=tmp_path, on_message=on_message)
    assert pids
    assert not Path(f"/proc/{pids[0]}").exists()


def test_ranks_listen_on_the_loopback_only_and_the_launcher_not_at_all(tmp_path: Path) -> None:
    here, before = [], listeners()  # of an earlier test in this process
    results = run_ranks(
        f"{CASES}:listening",
        {},
        world_size=2,
        logs=tmp_path,
        on_message=lambda rank, row: here.append(listeners()),
    )
    assert here == [before, before]
    for result in results:
        assert set(result["listeners"]) == {"tcp 127.0.0.1"}
    assert len(results[0]["listeners"]) > len(results[1]["listeners"]), (
        "rank 0 serves the store, the others do not"
    )


def test_several_ranks_have_the_threads_they_were_given(tmp_path: Path) -> None:
    results = run_ranks(f"{CASES}:threads_now", {}, world_size=2, logs=tmp_path, threads_per_rank=2)
    assert results == [{"threads": 2}] * 2


def test_here_is_the_same_without_a_process(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    import os

    rows, on_message = _rows()
    with pytest.warns(UserWarning, match="planted"):
        (result,) = run_here(f"{CASES}:whoami", {"a": 1}, logs=tmp_path, on_message=on_message, attempt=1)
    assert (result["rank"], result["payload"], result["pid"]) == (0, {"a": 1}, os.getpid())
    assert rows == [(0, {"kind": "train", "rank": 0, "step": 1})]
    assert "hello from 0" in capfd.readouterr().out
    assert rank_log(tmp_path, 0).read_text().startswith("=== attempt 1 · rank 0 of 1 on ")


def test_here_gives_the_threads_back(tmp_path: Path) -> None:
    import torch

    before = torch.get_num_threads()
    assert run_here(f"{CASES}:threads_now", {}, logs=tmp_path, threads_per_rank=before + 1) == [
        {"threads": before + 1}
    ]
    assert torch.get_num_threads() == before
    with pytest.raises(Failed, match="raised ValueError: planted") as caught:
        run_here(f"{CASES}:threads_now", {"fail": True}, logs=tmp_path, threads_per_rank=before + 1)
    assert isinstance(caught.value.__cause__, ValueError)
    assert torch.get_num_threads() == before
    assert "Traceback" in rank_log(tmp_path, 0).read_text()


def test_the_launcher_has_no_torch_and_the_script_is_not_run_again(tmp_path: Path) -> None:
    """The script has no ``if __name__`` and still starts its ranks only once."""
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent(
            f"""
            import sys
            from pathlib import Path
            from paceline.launch.local import run_ranks

            print("script", __name__)
            results = run_ranks("{CASES}:whoami", {{}}, world_size=2, logs=Path({str(tmp_path)!r}) / "logs")
            print("torch", "torch" in sys.modules)
            print("mains", {{str(r["main"]) for r in results}})
            """
        )
    )
    done = _python(str(script))
    assert done.stdout.splitlines() == ["script __main__", "torch False", "mains {'None'}"]


def test_two_launches_at_once_do_not_meet(tmp_path: Path) -> None:
    code = f"""
        import sys
        from pathlib import Path
        from paceline.launch.local import run_ranks
        logs = Path(sys.argv[1])
        results = run_ranks("{CASES}:collectives", {{"steps": 20, "pause": 0.02}}, world_size=2, logs=logs)
        print([r["sum"] for r in results])
    """
    started = [
        subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(code), str(tmp_path / name)],
            stdout=subprocess.PIPE,
            text=True,
        )
        for name in ("one", "two")
    ]
    assert [process.communicate(timeout=100)[0].strip() for process in started] == ["[2.0, 2.0]"] * 2


def _python(*arguments: str) -> subprocess.CompletedProcess[str]:
    import os

    return subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
        env={**os.environ, "PYTHONPATH": os.getcwd()},
    )
