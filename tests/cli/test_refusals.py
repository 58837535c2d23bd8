"""What has not arrived is refused by name with exit 2, commands and options alike; nothing is ignored."""

from __future__ import annotations

import pytest

from paceline.cli.surface import COMMANDS, Command
from tests.cli.shell import in_process

LATER_OPTIONS = [
    ("train", "--profile", "3"),
    ("train", "--dry-controls", ""),
    ("logs", "--host", "n0417"),
    ("report", "--live", ""),
    ("report", "--export", "wandb"),
]


@pytest.mark.parametrize("command", [c for c in COMMANDS if c.arrives], ids=lambda c: c.name)
def test_commands(command: Command, capsys: pytest.CaptureFixture[str]) -> None:
    options = [word for option in command.options for word in option.split()[:2]]
    done = in_process(capsys, *command.path, "job.toml", *options, "--json")
    assert done.code == 2
    found = done.object
    assert (found["command"], found["ok"], found["exit_code"]) == (command.name, False, 2)
    assert found["error"]["message"] == f"`paceline {command.name}` is not in this version"
    assert f"capability {command.arrives}" in found["error"]["rule"]
    assert found["error"]["use"].startswith("paceline "), "what to do instead"


@pytest.mark.parametrize(("command", "option", "value"), LATER_OPTIONS, ids=lambda word: word.strip("-"))
def test_options_are_refused_before_anything_else_is_missed(
    command: str, option: str, value: str, capsys: pytest.CaptureFixture[str]
) -> None:
    done = in_process(capsys, command, option, *([value] if value else []))
    assert done.code == 2
    assert done.out == ""
    assert done.err.startswith(f"error  {option} of `paceline {command}` is not in this version\n")
    assert "\n  use      " in done.err


@pytest.mark.parametrize(
    ("options", "key"),
    [
        (("--allow-change", "zz"), "--allow-change"),
        (("--allow-change", "optimizer.lr"), "--allow-change"),
        (("--name", ""), "run name"),
        (("--name", "a b"), "run name"),
        (("--name", "../x"), "run name"),
    ],
)
def test_options_of_train_that_would_have_no_effect(
    options: tuple[str, str], key: str, capsys: pytest.CaptureFixture[str]
) -> None:
    done = in_process(capsys, "train", "nope.toml", *options)
    assert done.code == 2
    assert key in done.err
    assert "nope.toml" not in done.err


def test_what_is_not_there_in_python_says_what_is() -> None:
    import paceline as pl

    for name in ("claim", "evaluate", "diagnose"):
        with pytest.raises(pl.Refused) as caught:
            getattr(pl, name)()
        assert caught.value.use


@pytest.mark.parametrize(
    ("argv", "use"),
    [
        (("claim", "my.toml"), "paceline plan my.toml says"),
        (("launch", "slurm", "my.toml", "--print"), "paceline train my.toml --layout"),
        (("watch", "lr-3"), "paceline logs lr-3 --follow"),
        (("watch",), "paceline logs last --follow"),
    ],
)
def test_what_to_do_instead_is_about_what_was_typed(
    argv: tuple[str, ...], use: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert use in in_process(capsys, *argv, "--json").object["error"]["use"]
