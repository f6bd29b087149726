"""Preflight of a PyTorch workload: a module with its batch and its loss."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from neurenix import chips
from neurenix.compiler.compile import compiler_ready
from neurenix.interop.torch.workload import TorchWorkload
from neurenix.preflight.api import On, preflight
from neurenix.preflight.describe_program import PreflightOptions
from neurenix.preflight.report.report import Report
from neurenix.preflight.torch_target import compiled_model, targets_of
from neurenix.train.options import REMATS


def target_of(workload: TorchWorkload, remat: str | None = None) -> tuple[Any, tuple[Any, ...]]:
    """Return a workload as a target of ``preflight`` and its arguments.

    Args:
        workload: the module, its batch and its loss.
        remat: as for ``from_torch``, or ``"dots"`` as for ``compile``.

    Raises:
        ArgumentError, ArgumentTypeError, ConversionError: as ``torch_target``.
    """
    of_compile = remat in REMATS[1:]
    model = compiled_model(
        workload.module,
        workload.inputs,
        loss=workload.loss,
        optimizer=workload.optimizer,
        remat="none" if of_compile or remat is None else remat,
    )
    targets = workload.targets or targets_of(model, workload.loss)
    target = model.trainer.variant(remat=remat) if of_compile else model
    return target, (workload.inputs, targets)


def preflight_workload(
    workload: TorchWorkload,
    *,
    on: Sequence[On],
    mesh: Mapping[str, int] | None = None,
    remat: str | None = None,
    options: PreflightOptions | None = None,
) -> list[Report]:
    """Report how the training step of a workload runs on slices.

    Args:
        workload: the module, its batch and its loss.
        on: names of slices.
        mesh: as for ``preflight``; by default parameters, optimizer state and batch are divided
            over all devices: one axis ``"fsdp"``, and ``"data"`` between slices.
        remat: as for ``target_of``.
        options: as for ``preflight``.

    Raises:
        NeurenixError: as ``preflight``.
    """
    with compiler_ready(options.compiler if options else None):
        target, args = target_of(workload, remat)
        reports = preflight(target, *args, on=list(on), mesh=mesh or fully_divided, options=options)
    return [replace(report, workload=workload.description) for report in reports]


def fully_divided(where: chips.Slice) -> dict[str, int]:
    """Return the mesh that divides all state over the devices of each slice.

    Example:
        >>> from neurenix import chips
        >>> fully_divided(chips.resolve("v5e-8"))
        {'fsdp': 8}
    """
    across = {"data": where.num_slices} if where.num_slices > 1 else {}
    return {**across, "fsdp": where.num_devices // where.num_slices}
