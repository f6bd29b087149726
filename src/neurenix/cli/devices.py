"""``neurenix devices``: list usable devices and why others are unavailable."""

from __future__ import annotations

from typing import Annotated

import typer


def devices(
    simulate: Annotated[
        str | None, typer.Option(metavar="SLICE", help="Simulate a slice first, such as v5e-8.")
    ] = None,
) -> None:
    """List the usable devices, and what the others need."""
    from neurenix import device as device_module
    from neurenix.simulation import simulate as start_simulation

    if simulate is not None:
        start_simulation(simulate)
    found = device_module.devices()
    for one in found:
        simulated = "  simulated" if one.is_simulated else ""
        print(f"{one!s:<10}  {one.kind}{simulated}")
    here = {one.type for one in found}
    for kind, state in device_module.availability().items():
        if kind not in here:
            print(f"{kind!s:<10}  {' '.join(part for part in (state.problem, state.fix) if part)}")
