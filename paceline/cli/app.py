"""The command line as a whole: the four groups, the help, the refusal of what has not arrived."""

from __future__ import annotations

from collections.abc import Sequence
from shlex import quote
from typing import Annotated, Any

import typer
from typer.core import TyperGroup
from typer.main import get_command

from paceline import __version__
from paceline.api.absent import not_here
from paceline.cli import decide, keep, look
from paceline.cli import run as run_group
from paceline.cli.frame import attach, main
from paceline.cli.surface import COMMANDS, GROUPS, SECTION_SAYS, Command
from paceline.cli.usage import unknown_command

# typer would use rich for help: 0.1 s for boxes that a screen reader and a pager do not want.
_SETTINGS: dict[str, Any] = {
    "rich_markup_mode": None,
    "pretty_exceptions_enable": False,
    "context_settings": {"help_option_names": ["--help", "-h"], "max_content_width": 100},
}


class Section(TyperGroup):
    """A group of commands that refuses an unknown one with the nearest."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if self.get_command(ctx, args[0]) is None and not args[0].startswith("-"):
            section = ctx.command_path.removeprefix("paceline").strip()
            raise unknown_command(args[0], section, self.list_commands(ctx))
        return super().resolve_command(ctx, args)


class Whole(Section):
    """The top: its help shows the four groups and every command of the interface."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        formatter.write(help_text())


def help_text() -> str:
    """``paceline --help``."""
    lines = [
        f"paceline {__version__} · trains PyTorch models on one device or on many, and shows its work",
        "",
        "Usage: paceline COMMAND [ARGUMENTS] [OPTIONS]        paceline COMMAND --help",
    ]
    for group in GROUPS:
        lines += ["", group]
        lines += [_help_line(entry) for entry in COMMANDS if entry.group == group]
    lines += [
        "",
        "JOB  a job file, or a run      RUN  a path, a run's name, or `last` (also when left out)",
        "On every command: --json, -q/--quiet, -v/--verbose, --color auto|always|never",
        "Here: --version, --install-completion, --show-completion, --help",
        "Start: paceline job new > job.toml, then paceline plan job.toml, then paceline train job.toml",
    ]
    return "\n".join(lines) + "\n"


def _help_line(entry: Command) -> str:
    later = " (not in this version)" if entry.arrives else ""
    return f"  {entry.name + ' ' + entry.args:<28} {entry.says}{later}"


def build(only: str = "") -> Any:
    """The typer command of the whole line, or of the one command or section that is asked for (faster)."""
    app = typer.Typer(cls=Whole, no_args_is_help=True, **_SETTINGS)
    app.callback()(_top)
    sections = {
        name: typer.Typer(cls=Section, help=says, no_args_is_help=name != "runs", **_SETTINGS)
        for name, says in SECTION_SAYS.items()
        if only in ("", name)
    }
    here = {h.name: h for h in (*decide.HERE, *run_group.HERE, *look.HERE, *keep.HERE)}
    for entry in COMMANDS:
        if only not in ("", entry.path[0]):
            continue
        home = sections.get(entry.path[0], app)
        if entry.arrives:
            _register_absent(home, entry)
        else:
            attach(home, here[entry.name])
    for name, section in sections.items():
        app.add_typer(section, name=name)
    return get_command(app)


def _register_absent(app: typer.Typer, entry: Command) -> None:
    """A command that has not arrived: it has a help page, and refuses whatever it is given."""

    def refuse(ctx: typer.Context) -> None:
        words = [quote(word) for word in ctx.args if not word.startswith("-")]
        use = entry.instead.replace("JOB", words[-1] if words else "job.toml")
        use = use.replace("RUN", words[0] if words else "last")
        raise not_here(f"`paceline {entry.name}`", entry.arrives, use=use)

    text = f"{entry.says[0].upper()}{entry.says[1:]}. Not in this version."
    if entry.options:
        text += "\n\n\b\nOptions to come:\n  " + "\n  ".join(entry.options)  # \b: lines stay as they are
    app.command(
        entry.path[-1],
        help=text,
        short_help=f"{entry.says} (not in this version)",
        context_settings={
            **_SETTINGS["context_settings"],
            "allow_extra_args": True,
            "ignore_unknown_options": True,
        },
    )(refuse)


def _print_version(value: bool) -> None:
    if value:
        print(f"paceline {__version__}", flush=True)
        raise typer.Exit


def _top(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="the version")
    ] = False,
) -> None:
    """Trains PyTorch models on one device or on many, and shows its work."""


def common_last(argv: Sequence[str]) -> list[str]:
    """``paceline --json runs`` is ``paceline runs --json``: the common options may also come first."""
    words, moved = list(argv), []
    while len(words) > 1 and words[0] in ("--json", "-q", "--quiet", "-v", "--verbose", "--color"):
        count = 2 if words[0] == "--color" else 1
        moved += words[:count]
        words = words[count:]
    return [*words, *moved]


def run(argv: Sequence[str]) -> int:
    """Runs a command line; returns the exit code."""
    argv = common_last(argv)
    first = argv[0] if argv else ""
    known = any(entry.path[0] == first for entry in COMMANDS)
    return main(build(first if known else ""), argv)
