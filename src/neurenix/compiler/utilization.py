"""How much of the chips' peak a step uses.

Owns MFU and the peak that it is measured against; the seconds are ``time``'s.
"""

from __future__ import annotations

from neurenix.compiler.operations import peak_of
from neurenix.compiler.schedule import Schedule


def peak_flops_per_second(schedule: Schedule) -> float:
    """Return a device's peak for the types that a program multiplies, weighed by their work.

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
    """Return MFU: model FLOPs over what the devices' peak does in that time; None without any.

    Counted are at most the FLOPs of the products and kernels of the compiled program, those of
    recomputation among them. Where XLA merges equal products, or computes the part of one that is
    used, the rest of the model's FLOPs is work that no device does.

    Args:
        schedule: after ``run``.
        model_flops: of all devices for one step.
        seconds: of one step.
        num_devices: that share the work.
    """
    if not model_flops:
        return None
    operations = schedule.operations.values()
    if not any(op.unstated and not op.flops for op in operations):  # who knows what that computes
        model_flops = min(model_flops, num_devices * sum(op.flops for op in operations))
    return model_flops / (seconds * peak_flops_per_second(schedule) * num_devices)
