"""``neurenix preflight script.py --on v5e-8,v6e-8``: a script's first step, compiled elsewhere.

Owns the options, what is printed, and the exit status: 0; 1 when the condition of ``--fail-if`` is
true of a slice; 2 when there is no answer, for a mistake in the command or in the script. What is
found and what it means is ``neurenix.preflight``'s.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer
from typer.core import TyperCommand

from neurenix._core.errors import ArgumentError, NeurenixError
from neurenix.cli.failure import show

if TYPE_CHECKING:
    from neurenix.preflight.compare import Comparison
    from neurenix.preflight.report import Report

_DOES_NOT_FIT = "not fits"
_TO_STDOUT = Path("-")


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


def preflight(
    script: Annotated[Path, typer.Argument(help="Python file that trains")],
    arguments: Annotated[list[str] | None, typer.Argument(help="its command line")] = None,
    *,
    on: Annotated[str, typer.Option(help="slices, separated by commas: v5e-8,v6e-8")],
    json_path: Annotated[
        Path | None,
        typer.Option("--json", help="write a list of all reports to this file; - is the output"),
    ] = None,
    html_path: Annotated[
        Path | None,
        typer.Option("--html", help="write a page; with several slices the name gets theirs"),
    ] = None,
    fail_if: Annotated[
        str,
        typer.Option(help='exit with 1 if true of a slice: "not fits or step_time > 200 ms"'),
    ] = _DOES_NOT_FIT,
    compare: Annotated[
        Path | None, typer.Option(help="say what changed since this file of --json")
    ] = None,
    region: Annotated[str, typer.Option(help="of the price: us, europe-west4, …")] = "us",
    commitment: Annotated[
        str, typer.Option(help="of the price: on-demand, 1-year, 3-year, spot")
    ] = "on-demand",
    price: Annotated[float | None, typer.Option(help="your own USD for a chip and an hour")] = None,
    timeout: Annotated[float, typer.Option(help="seconds in which a step must be reached")] = 600,
    compile_timeout: Annotated[
        float, typer.Option(help="seconds that the compiler may take for a slice")
    ] = 1800,
) -> None:
    """Run a script up to its first training step and say how that step runs on TPU slices.

    The exit status is 1 when --fail-if is true of a slice, and 2 when there is no answer.
    """
    from neurenix import chips
    from neurenix.compiler.compile import CompileOptions
    from neurenix.preflight.condition import parse
    from neurenix.preflight.cost import Pricing
    from neurenix.preflight.description import PreflightOptions
    from neurenix.preflight.record import load_reports
    from neurenix.preflight.report import write_whole
    from neurenix.preflight.script import preflight_script
    from neurenix.simulation import simulate, simulated

    try:
        slices = [chips.resolve(name.strip()) for name in on.split(",") if name.strip()]
        if not slices:
            raise ArgumentError("--on names no slice; write --on v5e-8 or --on v5e-8,v6e-8.")
        condition = parse(fail_if)
        pricing = Pricing(region, commitment, price)
        earlier = load_reports(compare) if compare is not None else None
        if timeout <= 0:
            raise ArgumentError(f"--timeout must be positive; got {timeout:g}.")
        options = PreflightOptions(compiler=CompileOptions(timeout_seconds=compile_timeout))
        files = [path for path in (json_path, html_path) if path not in (None, _TO_STDOUT)]
        for path in files:
            if not path.parent.is_dir():
                raise ArgumentError(f"There is no folder {str(path.parent)!r} to write into.")
        with _output(json_path == _TO_STDOUT) as output:
            if simulated() is None:
                simulate(slices[0].name)  # so that the script finds the devices that it asks for
            reports = preflight_script(
                script, arguments or [], on=slices, timeout_seconds=timeout, options=options
            )
            for report in reports:
                _print(report.text(pricing=pricing))
                if earlier is not None:
                    _print(_compared(report, earlier, str(compare)))
                print()
            if json_path is not None:
                text = json.dumps([report.to_dict(pricing) for report in reports], indent=1)
                if json_path == _TO_STDOUT:
                    print(text, file=output)
                else:
                    write_whole(json_path, text)
            if html_path is not None:
                for report in reports:
                    suffix = f"-{report.slice.name.replace(' ', '')}" if len(reports) > 1 else ""
                    report.to_html(html_path.with_stem(html_path.stem + suffix))
            failed = [
                report
                for report in reports
                if condition.holds(values := report.record(pricing).values())
                and _failed(report, f"{condition.text} ({condition.values(values)})")
            ]
    except NeurenixError as error:
        show(error)
        raise typer.Exit(2) from None
    except OSError as error:
        show(error)
        raise typer.Exit(2) from None
    if failed:
        raise typer.Exit(1)


def _failed(report: Report, why: str) -> bool:
    print(f"neurenix: failed on {report.slice.name}: {why}", file=sys.stderr)
    return True


def _compared(report: Report, earlier: Sequence[Any], name: str) -> str:
    from neurenix.preflight.compare import compare, matching
    from neurenix.preflight.terminal import width_here

    now = report.record()
    before = matching(earlier, now)
    if before is None:
        return f"{name} holds no report for {report.slice.name}, so there is nothing to compare."
    comparison: Comparison = compare(before, now)
    return comparison.text(width_here())


def _print(text: str) -> None:
    """Print with colours where there is a terminal that has them."""
    if not sys.stdout.isatty():
        print(text)
        return
    from rich.console import Console

    from neurenix.preflight.terminal import styled

    Console(highlight=False).print(styled(text), soft_wrap=True)


@contextmanager
def _output(reserved: bool) -> Iterator[TextIO]:
    """Give the standard output, kept free of what the script and the report print if asked to."""
    if not reserved:
        yield sys.stdout
        return
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        with os.fdopen(os.dup(kept), "w", encoding="utf-8") as output:
            yield output
    finally:
        sys.stdout.flush()
        os.dup2(kept, 1)
        os.close(kept)
