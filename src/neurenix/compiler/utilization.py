"""Compute MFU and the peak FLOP/s that it is relative to."""

from __future__ import annotations

from neurenix.compiler.operations import peak_of
from neurenix.compiler.schedule import Schedule


def peak_flops_per_second(schedule: Schedule) -> float:
    """Return a device's peak for the types that a program multiplies, weighted by work.

    Args:
        schedule: after ``run``.
    """
    generation = schedule.where.generation
    flops = seconds = 0.0
    for operation in schedule.operations.values():
        for product in operation.products:
            flops += product.flops * operation.count
            seconds += product.flops * operation.count / peak_of(product.dtypes, generation)
    return flops / seconds if seconds else generation.peak_flops_per_second["bfloat16"]


def utilization(
    schedule: Schedule, model_flops: float, seconds: float, num_devices: int
) -> float | None:
    """Return MFU: model FLOPs over the FLOPs at the devices' peak; None without model FLOPs.

    Model FLOPs count at most as many as the products and kernels of the compiled program have,
    recomputation included. If XLA merges equal products, or computes only the used part of one, no
    device computes the rest.

    Args:
        schedule: after ``run``.
        model_flops: of all devices for one step.
        seconds: of one step.
        num_devices: number of devices.
    """
    if not model_flops:
        return None
    operations = schedule.operations.values()
    if not any(op.unstated and not op.flops for op in operations):  # a kernel of unknown FLOPs
        model_flops = min(model_flops, num_devices * sum(op.flops for op in operations))
    return model_flops / (seconds * peak_flops_per_second(schedule) * num_devices)
