"""What commands that run a user's script share: whose options are whose, slices, the simulation.

Owns the command line of such commands. Running the script is
``neurenix.preflight.script.run_script``'s.
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

    Once ``--on`` stands before the script, all that follows the script is the script's. Else
    options that the command knows may follow it, and the others, or all after ``--``, are its.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse, with the meaning of options after the script decided first."""
        ctx.ignore_unknown_options = True
        ctx.allow_interspersed_args = False
        before_script, _, _ = self.make_parser(ctx).parse_args(list(args))
        ctx.allow_interspersed_args = "on" not in before_script
        return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Run the command; what nobody foresaw gives no answer either, and shows where it was."""
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
        UnknownNameError: there is no such slice.
        ArgumentError: it names none.
    """
    from neurenix import chips

    slices = [chips.resolve(name) for name in listed(on)]
    if not slices:
        raise ArgumentError("--on names no slice; write --on v5e-8 or --on v5e-8,v6e-8.")
    return slices


def hint_at_steps(script: Path, step: str | None) -> None:
    """Say how to name the step, before a script that knows nothing of Neurenix runs to its end."""
    from neurenix.preflight.script.run_script import step_to_name

    if step is None and script.is_file():
        text = script.read_text(encoding="utf-8", errors="replace")
        if "neurenix" not in text and (hint := step_to_name(script)):
            print(f"neurenix: {script} does not mention Neurenix. {hint}", file=sys.stderr)


def simulate_first(slices: list[chips.Slice]) -> None:
    """Simulate the first slice, so that the script finds the devices that it asks for."""
    from neurenix.simulation import simulate, simulated

    if simulated() is None:
        simulate(slices[0].name)


def xla_options(texts: Sequence[str]) -> dict[str, Any]:
    """Return the XLA options that ``--xla`` names, numbers and truths as such.

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
            raise ArgumentError(f"--xla: {part!r} is not an option. Write name=value.")
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
