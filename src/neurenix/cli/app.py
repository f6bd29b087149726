"""The command ``neurenix``: its options, its commands, and how an error of ours is shown.

Owns the frame. Each command is one function in a file of its own, which imports what it needs when
it runs, so that ``neurenix --version`` is quick. A new command is added in ``_COMMANDS``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import wraps
from typing import Annotated, Any

import typer

from neurenix.cli.compile import compile
from neurenix.cli.devices import devices
from neurenix.cli.env import env
from neurenix.cli.failure import Interrupted, ReaderGone, ending_clean
from neurenix.cli.output import spell_all
from neurenix.cli.plan import plan
from neurenix.cli.preflight import preflight
from neurenix.cli.rule import rule
from neurenix.cli.run import run
from neurenix.cli.scripts import ScriptsCommand

_COMMANDS: tuple[Callable[..., None], ...] = (devices, run, preflight, plan, compile, rule, env)
# Everything after the script belongs to the script.
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


def _until_nobody_reads(command: Callable[..., None]) -> Callable[..., None]:
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
    )(_until_nobody_reads(_command))


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
    """Run the command line; an error of ours is a message, and the exit status 2."""
    spell_all()
    with ending_clean():
        app()
