"""Parse the command line of commands that run a user's script.

``neurenix.preflight.script.run_script`` runs the script.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from typer.core import TyperCommand

from neurenix._core.errors import ArgumentError, NeurenixError
from neurenix.cli.failure import MISTAKE

if TYPE_CHECKING:
    from neurenix import chips


class ScriptsCommand(TyperCommand):
    """A command with a script: ``[options] script [its options]``, or ``script [options]``.

    If ``--on`` comes before the script, all arguments after the script belong to the script.
    Otherwise the command takes its own options from there; unknown ones, and all arguments after
    ``--``, belong to the script.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Decide whose the options after the script are, and parse."""
        ctx.ignore_unknown_options = True
        ctx.allow_interspersed_args = False
        before_script, _, _ = self.make_parser(ctx).parse_args(list(args))
        ctx.allow_interspersed_args = "on" not in before_script
        return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Run the command. An unexpected error prints its traceback and exits with status 2."""
        try:
            return super().invoke(ctx)
        except (NeurenixError, BrokenPipeError, typer.Exit, typer.Abort, typer.BadParameter):
            raise
        except Exception:
            traceback.print_exc()
            raise typer.Exit(MISTAKE) from None


def slices_of(on: str) -> list[chips.Slice]:
    """Return the slices that ``--on`` names.

    Raises:
        UnknownNameError: unknown slice.
        ArgumentError: ``--on`` is empty.
    """
    from neurenix import chips

    slices = [chips.resolve(name) for name in listed(on)]
    if not slices:
        raise ArgumentError("--on names no slice; write --on v5e-8 or --on v5e-8,v6e-8.")
    return slices


def hint_at_steps(script: Path, step: str | None) -> None:
    """Suggest ``--step`` for a script without Neurenix, which would otherwise run to its end."""
    from neurenix.preflight.script.run_script import step_to_name

    if step is None and script.is_file():
        text = script.read_text(encoding="utf-8", errors="replace")
        if "neurenix" not in text and (hint := step_to_name(script)):
            print(f"neurenix: {script} does not mention Neurenix. {hint}", file=sys.stderr)


def simulate_first(slices: list[chips.Slice]) -> None:
    """Simulate the first slice: the script may require its devices."""
    from neurenix.simulation import simulate, simulated

    if simulated() is None:
        simulate(slices[0].name)


def xla_options(texts: Sequence[str]) -> dict[str, Any]:
    """Return the XLA options of ``--xla``, with integers and booleans converted.

    Raises:
        ArgumentError: a part is not ``name=value``.

    Example:
        >>> xla_options(["xla_a=1, xla_b=true", "xla_c=text"])
        {'xla_a': 1, 'xla_b': True, 'xla_c': 'text'}
    """
    options: dict[str, Any] = {}
    for part in (part for text in texts for part in listed(text)):
        name, equals, value = (word.strip() for word in part.partition("="))
        if not (name and equals and value):
            raise ArgumentError(f"--xla: {part!r} is not of the form name=value.")
        truth = {"true": True, "false": False}.get(value.lower())
        options[name] = truth if truth is not None else int(value) if value.isdecimal() else value
    return options


def listed(text: str, separator: str = ",") -> list[str]:
    """Return the parts of an option's value.

    Example:
        >>> listed("v5e-8, v6e-8,")
        ['v5e-8', 'v6e-8']
    """
    return [part.strip() for part in text.split(separator) if part.strip()]
