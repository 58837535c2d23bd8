"""The frame around every command: the common options, the screen, the exit code, and how anything ends.

A command is a function ``(screen, **arguments) -> Reply``; it prints no result itself and catches no error.
"""

from __future__ import annotations

import inspect
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from typing import Annotated, Any, get_type_hints

import typer

from paceline.api.absent import not_here
from paceline.cli.screen import Reply, Screen, open_screen
from paceline.cli.streams import BROKEN_PIPE, StdoutLost, drop
from paceline.cli.surface import BY_NAME
from paceline.cli.usage import command_of, explain, is_usage_error
from paceline.ledger.outcome import Exit, PacelineError, Refused

INTERRUPTED, TERMINATED = 130, 143


class Color(StrEnum):
    """``--color``."""

    auto = "auto"
    always = "always"
    never = "never"


@dataclass(frozen=True)
class Later:
    """An option of the interface that has not arrived: in the help, and refused when it is given.

    ``value`` is its metavar; empty for a flag. ``instead``: what to do without it, where that is more than to
    leave it out.
    """

    name: str
    says: str
    arrives: str
    value: str = ""
    instead: str = ""

    def parameter(self, command: str) -> inspect.Parameter:
        """The option as typer sees it; eager, so that it is refused before anything else is missed."""

        def refuse(value: Any) -> Any:
            if value not in (None, False):
                raise not_here(
                    f"{self.name} of `paceline {command}`",
                    self.arrives,
                    use=self.instead or f"leave {self.name} out",
                )
            return value

        says = f"{self.says} (not in this version)"
        option = typer.Option(
            self.name,
            help=says,
            metavar=self.value or None,
            callback=refuse,
            is_eager=True,
            show_default=False,
        )
        kind: Any = str | None if self.value else bool
        default = None if self.value else False
        return inspect.Parameter(
            self.key, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, option]
        )

    @property
    def key(self) -> str:
        return "later_" + self.name.strip("-").replace("-", "_")


_COMMON: dict[str, tuple[Any, Any]] = {
    "json": (Annotated[bool, typer.Option("--json", help="one JSON object on stdout")], False),
    "quiet": (Annotated[bool, typer.Option("--quiet", "-q", help="result and errors only")], False),
    "verbose": (Annotated[bool, typer.Option("--verbose", "-v", help="more of what happens")], False),
    "color": (
        Annotated[Color, typer.Option("--color", metavar="auto|always|never", help="colour on stderr")],
        Color.auto,
    ),
}


@dataclass(frozen=True)
class Here:
    """A command of the surface table that has arrived.

    Attributes:
        body: ``(screen, **arguments) -> Reply``; its docstring is the help.
        later: options of the interface that it does not have yet.
        top: it is what a section does without a further word (``paceline runs``).
    """

    name: str
    body: Callable[..., Reply]
    later: tuple[Later, ...] = ()
    top: bool = False


def attach(app: typer.Typer, here: Here) -> None:
    """Registers a command under its last word, with the common options."""

    def run(**values: Any) -> None:
        code = in_frame(here.name, here.later, here.body, values)
        if code:
            raise typer.Exit(code)

    hints = get_type_hints(here.body, include_extras=True)
    own = [
        p.replace(annotation=hints[p.name], kind=inspect.Parameter.KEYWORD_ONLY)
        for p in list(inspect.signature(here.body).parameters.values())[1:]
    ]
    common = [
        inspect.Parameter(key, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)
        for key, (kind, default) in _COMMON.items()
    ]
    _sign(run, [*own, *(option.parameter(here.name) for option in here.later), *common])
    entry = BY_NAME[here.name]
    text = inspect.cleandoc(here.body.__doc__ or entry.says)
    if here.top:
        _as_top(app, run, text)
    else:
        app.command(entry.path[-1], help=text, short_help=entry.says)(run)


def _sign(function: Callable[..., None], parameters: list[inspect.Parameter]) -> None:
    function.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    function.__annotations__ = {p.name: p.annotation for p in parameters}


def _as_top(section: typer.Typer, run: Callable[..., None], text: str) -> None:
    def unless_further(ctx: typer.Context, **values: Any) -> None:
        if ctx.invoked_subcommand is None:
            run(**values)
        elif any(values[name] != default for name, (_, default) in _COMMON.items()):
            words = f"{ctx.command_path} {ctx.invoked_subcommand}"
            raise Refused(
                f"options come after `{words}`",
                exit_code=Exit.USAGE,
                seen=f"an option between {ctx.info_name} and {ctx.invoked_subcommand}",
                rule="an option belongs to the command that it follows",
                use=f"{words} … --json",
            )

    context = inspect.Parameter("ctx", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)
    _sign(unless_further, [context, *inspect.signature(run).parameters.values()])
    section.callback(invoke_without_command=True, help=text)(unless_further)


def in_frame(name: str, later: Sequence[Later], body: Callable[..., Reply], values: dict[str, Any]) -> int:
    """Runs a command's body with its screen; returns the exit code."""
    flags = {key: values.pop(key) for key in _COMMON}
    screen = open_screen(name, **{**flags, "color": flags["color"].value})

    for option in later:
        values.pop(option.key)
    return guarded(screen, lambda: screen.finish(body(screen, **values)))


def guarded(screen: Screen, work: Callable[[], int], argv: Sequence[str] = ()) -> int:
    """Runs ``work``; whatever it raises ends as an explained error with a code of interface §8."""
    try:
        return _explained(screen, work, argv)
    except StdoutLost as lost:
        if lost.reader_left:  # `paceline runs | head`: nothing is wrong
            return BROKEN_PIPE
        screen.json = False  # the object would go where nothing can go
        return screen.error(lost.explained())


def _explained(screen: Screen, work: Callable[[], int], argv: Sequence[str]) -> int:
    try:
        return work()
    except StdoutLost:
        raise
    except PacelineError as error:
        return screen.error(error)
    except KeyboardInterrupt:
        screen.note("stopped  by Ctrl-C")
        return INTERRUPTED
    except SystemExit as left:
        signal = {INTERRUPTED: "Ctrl-C", TERMINATED: "SIGTERM"}.get(left.code) if left.code else None  # type: ignore[arg-type]
        if signal is None:
            raise
        kept = ": the last verified checkpoint stands" if screen.command == "train" else ""
        screen.note(f"stopped  at once by {signal}{kept} · exit {left.code}")
        return int(left.code or 0)
    except Exception as error:
        if type(error).__name__ == "NoArgsIsHelpError":
            screen.line(error.ctx.get_help())  # type: ignore[attr-defined]
            return Exit.DONE
        if is_usage_error(error):
            return screen.error(explain(error, argv))
        return screen.error(_fault(error, screen))


def main(app: Any, argv: Sequence[str]) -> int:
    """Parses and runs a command line. ``app`` is the typer command; mistakes in the line itself end here."""

    def parse_and_run() -> int:
        try:
            return int(app.main(args=list(argv), prog_name="paceline", standalone_mode=False) or 0)
        except OSError as error:  # commands end in frames of their own: this is a help page, or --version
            drop(sys.stdout)
            raise StdoutLost(error) from error
        except SystemExit as left:  # typer's own end of a help page that nobody reads
            if not isinstance(left.__context__, OSError):
                raise
            drop(sys.stdout)
            raise StdoutLost(left.__context__) from None

    color = next((b for a, b in pairwise(argv) if a == "--color"), "auto")
    screen = open_screen(
        command_of(argv),
        json="--json" in argv,
        quiet=False,
        verbose=False,
        color=color if color in Color.__members__ else "auto",
    )
    return guarded(screen, parse_and_run, argv)


def _fault(error: Exception, screen: Screen) -> PacelineError:
    """A fault in Paceline: asks for a report, and leaves the traceback in a log."""
    from paceline.api.fault_log import write_fault

    log = write_fault("".join(traceback.format_exception(error)), command=screen.command)
    said = str(error).splitlines() or ["(no text)"]
    return PacelineError(
        f"a fault in Paceline: {type(error).__name__}: {said[0]}",
        exit_code=Exit.FAULT,
        seen=f"traceback in {log}" if log else "the traceback could not be written to a log",
        rule="this is our mistake, not yours",
        use="report it with that log and the output of `paceline doctor`",
    )
