"""How long a step takes: the schedule's seconds as an estimate for hardware, with its interval.

Owns the estimate and its floor: no step is shorter than its operations at the device's peak, its
bytes in HBM, or the bytes of the busiest links. It does not own the walk over the schedule
(``schedule``), what one instruction has to do (``work``) or the numbers fitted to published runs
(``calibration``).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from neurenix.compiler.calibration import DISPATCH_SECONDS, Calibration, calibration
from neurenix.compiler.schedule import Schedule

_PASSES = 10  # over the bytes of what has no cycles, at most: a judgement, for the interval


@dataclass(frozen=True)
class StepTime:
    """Seconds of one step: an estimate, never a measurement.

    ``low`` to ``high`` is the 80 % interval, in which four of five measured steps are to lie.
    ``bound`` is what most of the time goes to, a kind of ``Operation`` or ``"host"``; ``shares`` is
    every kind's part of the device's time.
    """

    seconds: float
    low: float
    high: float
    device_seconds: float
    host_seconds: float
    bound: str
    shares: dict[str, float]
    basis: str
    unmodelled: tuple[str, ...] = ()


def step_time(
    schedule: Schedule,
    raw_seconds: float,
    batch_bytes_per_device: int,
    steps_per_call: int = 1,
    unlike: str = "",
) -> StepTime:
    """Turn the schedule's seconds into an estimate with an interval around it and a bound.

    No step is shorter than its operations at the device's peak, its bytes in HBM, or the bytes that
    the same links carry, one collective after the other.

    Args:
        schedule: after ``run``.
        raw_seconds: what ``run`` returned.
        batch_bytes_per_device: of input that the host sends for one step.
        steps_per_call: steps that the host starts with one dispatch.
        unlike: what sets the program apart from the published runs, or nothing (``coverage``).
    """
    where = schedule.where
    factors: Calibration = calibration(where.generation.name)
    factor = schedule.factor
    operations = schedule.operations.values()
    rate = where.generation.hbm_bandwidth_bytes_per_second_per_device
    faster = slower = sure = work = traffic = 0.0
    for op in operations:
        if op.kind not in ("ici", "dcn", "host"):
            work += op.floor_seconds
            traffic += op.busy_seconds if op.transfer else min(op.bytes / rate, op.busy_seconds)
        if op.well_used_product:
            sure += op.seconds
            continue
        slower += max(0.0, op.cycles_seconds - op.seconds)
        if op.uncounted:  # one pass over its bytes; nobody knows how many it makes
            slower += (_PASSES - 1) * op.seconds
        kernel = op.kind == "compute" and not op.products
        if kernel:
            slower += (factors.kernel_doubt - 1) * op.seconds
        if kernel or op.unstated or (op.kind in ("hbm", "vector") and not op.products):
            faster += max(0.0, op.seconds - op.floor_seconds)
    links = max((sum(carried.values()) for carried in schedule.links.values()), default=0.0)
    floor = max(work, traffic, links)
    device = max(raw_seconds * factor, floor)
    share, slices = sure / raw_seconds if raw_seconds else 0.0, where.num_slices
    width = math.exp(factors.half_width(share, unlike=bool(unlike), num_slices=slices))
    pcie = where.generation.pcie_bytes_per_second_per_chip / where.devices_per_chip
    host = max(DISPATCH_SECONDS / steps_per_call, batch_bytes_per_device / pcie)
    totals: dict[str, float] = {}
    for op in operations:
        totals[op.kind] = totals.get(op.kind, 0.0) + op.seconds
    whole = sum(totals.values()) or 1.0
    shares = {kind: part / whole for kind, part in sorted(totals.items(), key=lambda p: -p[1])}
    seconds = max(device, host)
    bound = next(iter(shares), "compute")
    if links and math.isclose(device, links):
        bound = "ici"
    return StepTime(
        seconds=seconds,
        low=min(seconds, max((raw_seconds - faster) * factor / width, floor)),
        high=max((raw_seconds + slower) * factor * width, device * width, host * 2),
        device_seconds=device,
        host_seconds=host,
        bound="host" if host > device else bound,
        shares=shares,
        basis=_basis(factors, unlike, slices),
        unmodelled=tuple(sorted(schedule.unmodelled)),
    )


def _basis(factors: Calibration, unlike: str, num_slices: int) -> str:
    """Return what the estimate rests on, and what of the program was in none of it."""
    several = f"{num_slices} slices" if num_slices > 2 else ""
    told = " and ".join(filter(None, (unlike, several)))
    return factors.basis + (f", none like it: {told}" if told else "")
