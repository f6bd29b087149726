"""Estimate the time of a step on hardware from the schedule, with an interval.

Owns the estimate and its lower bounds: its operations at the device's peak, its bytes at HBM
bandwidth, and the bytes of the busiest links. ``schedule`` owns the walk, ``instruction_cost`` the
work of instructions, and ``calibration`` the numbers fitted to published runs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from neurenix.compiler.calibration import DISPATCH_SECONDS, Calibration, calibration
from neurenix.compiler.schedule import Schedule

_PASSES = (
    10  # most passes over the bytes of an operation without cycles: a judgement, for the high end
)


@dataclass(frozen=True)
class StepTime:
    """Seconds of one step: an estimate, not a measurement.

    ``low`` to ``high`` is the 80 % interval, meant to contain four of five measured steps.
    ``bound`` is the largest part of the time, a kind of ``Operation`` or ``"host"``; ``shares`` is
    the share of each kind in the device's time.
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
    """Convert the schedule's seconds to an estimate with an interval and a bound.

    The lower bounds are the operations at the device's peak, the bytes at HBM bandwidth, and the
    bytes that the same links carry one collective after another.

    Args:
        schedule: after ``run``.
        raw_seconds: result of ``run``.
        batch_bytes_per_device: input that the host sends for one step.
        steps_per_call: steps in one dispatch.
        unlike: what distinguishes the program from the published runs, or empty (``coverage``).
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
        if op.uncounted:  # counted as one pass over its bytes; the number of passes is unknown
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
    """Return the basis of the estimate, and the parts of the program that it does not cover."""
    several = f"{num_slices} slices" if num_slices > 2 else ""
    told = " and ".join(filter(None, (unlike, several)))
    return factors.basis + (f", none like it: {told}" if told else "")
