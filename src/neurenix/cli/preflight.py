"""``neurenix preflight script.py --on v5e-8,v6e-8``: a script's first step, compiled elsewhere.

Owns the options and what is printed. It decides nothing: ``neurenix.preflight.script`` does.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer


def preflight(
    script: Annotated[Path, typer.Argument(help="Python file that trains")],
    arguments: Annotated[list[str] | None, typer.Argument(help="its command line")] = None,
    *,
    on: Annotated[str, typer.Option(help="slices, separated by commas: v5e-8,v6e-8")],
    json_path: Annotated[
        Path | None, typer.Option("--json", help="write all reports to this file")
    ] = None,
    html_path: Annotated[
        Path | None,
        typer.Option("--html", help="write a page; with several slices the name gets theirs"),
    ] = None,
    timeout: Annotated[float, typer.Option(help="seconds in which a step must be reached")] = 600,
) -> None:
    """Run a script up to its first training step and say how that step runs on TPU slices."""
    from neurenix import chips
    from neurenix.preflight.script import preflight_script
    from neurenix.simulation import simulate, simulated

    slices = [chips.resolve(name.strip()) for name in on.split(",") if name.strip()]
    if slices and simulated() is None:
        simulate(slices[0].name)  # so that the script finds the devices that it asks for
    reports = preflight_script(script, arguments or [], on=slices, timeout_seconds=timeout)
    for report in reports:
        print(report, end="\n\n")
    if json_path is not None:
        json_path.write_text(json.dumps([report.to_dict() for report in reports], indent=1))
    if html_path is not None:
        for report in reports:
            suffix = f"-{report.slice.name.replace(' ', '')}" if len(reports) > 1 else ""
            report.to_html(html_path.with_stem(html_path.stem + suffix))
    if not all(report.fits for report in reports):
        raise typer.Exit(2)
