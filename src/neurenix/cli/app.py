"""Register the commands of ``neurenix`` and run the command line.

Each command is one function in its own file. It imports its dependencies when it runs, so that
``neurenix --version`` starts fast. ``_COMMANDS`` lists the commands.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import wraps
from typing import Annotated, Any

import typer

from neurenix.cli.check import check
from neurenix.cli.compile import compile
from neurenix.cli.convert import convert
from neurenix.cli.devices import devices
from neurenix.cli.env import env
from neurenix.cli.failure import Interrupted, ReaderGone, ending_clean
from neurenix.cli.output import spell_all
from neurenix.cli.plan import plan
from neurenix.cli.preflight import preflight
from neurenix.cli.rule import rule
from neurenix.cli.run import run
from neurenix.cli.scripts import ScriptsCommand

_COMMANDS: tuple[Callable[..., None], ...] = (
    devices,
    run,
    preflight,
    plan,
    compile,
    convert,
    check,
    rule,
    env,
)
# All arguments after the script belong to the script.
_OF_A_SCRIPT = {"allow_interspersed_args": False, "ignore_unknown_options": True}
_SETTINGS: dict[str, dict[str, Any]] = {"run": _OF_A_SCRIPT}
_CLASSES = {name: ScriptsCommand for name in ("preflight", "plan", "compile")}

app = typer.Typer(
    name="neurenix",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _with_own_exits(command: Callable[..., None]) -> Callable[..., None]:
    """Turn exceptions that Typer would report as status 1 into exceptions of ``failure``."""

    @wraps(command)
    def run_it(*args: Any, **options: Any) -> None:
        try:
            command(*args, **options)
        except BrokenPipeError:
            raise ReaderGone from None
        except KeyboardInterrupt:
            raise Interrupted from None

    return run_it


for _command in _COMMANDS:
    app.command(
        _command.__name__,
        cls=_CLASSES.get(_command.__name__),
        context_settings=_SETTINGS.get(_command.__name__),
    )(_with_own_exits(_command))


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"neurenix {sys.modules['neurenix'].__version__}")
        raise typer.Exit


@app.callback()
def _frame(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    """Deep learning with one programming model for every accelerator."""


def main() -> None:
    """Run the command line. A ``NeurenixError`` prints its message and exits with status 2."""
    spell_all()
    with ending_clean():
        app()
