"""What a search may change: meshes, batches, recomputation and compiler options."""

from __future__ import annotations

import itertools
import numbers
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from neurenix import chips
from neurenix._core.errors import ArgumentError, ArgumentTypeError, ShapeError, unknown_name
from neurenix.preflight.describe_program import axes_on
from neurenix.preflight.search.workload import Choice, Workload

COLLECTIVE_MATMUL_OFF = {"xla_jf_spmd_threshold_for_windowed_einsum_mib": 1_000_000}
"""Gather before a product instead of in pieces during it; halved a GPT-2 step on v5e-8."""
LARGE_TILES_V6E = {"xla_tpu_scoped_vmem_limit_kib": 98304}
"""From the Trillium recipes of tpu-recipes. Reduced the estimated step of Llama 3.1 8B from 5.1 s
to 4.0 s and tripled its compile time."""


@dataclass(frozen=True)
class SearchSpace:
    """What a search may change; each field is a list, or ``"auto"`` for a recommended list.

    Attributes:
        meshes: mappings of axis names to sizes. ``"auto"``: data parallel, FSDP, and FSDP with
            tensor parallelism of 2, 4 and 8 if the model's rules use the axis. Default: the mesh
            of the model's strategy.
        batches: global batch sizes. Default: the one given.
        remats: policies. ``"auto"``: all of the model or the trainer. Default: its own.
        compiler_options: mappings. ``"auto"``: XLA's defaults; collective matmul off; on v6e, the
            latter with larger tiles in VMEM. Default: XLA's defaults.
    """

    meshes: Sequence[Mapping[str, int]] | str | None = None
    batches: Sequence[int] | None = None
    remats: Sequence[str] | str | None = None
    compiler_options: Sequence[Mapping[str, Any]] | str | None = None

    def __post_init__(self) -> None:
        for name in ("meshes", "remats", "compiler_options"):
            value = getattr(self, name)
            if isinstance(value, Mapping) or (isinstance(value, str) and value != "auto"):
                raise ArgumentError(f'SearchSpace: {name} is a list or "auto"; got {value!r}.')
            if value is not None and not isinstance(value, Sequence):
                raise ArgumentTypeError(
                    f'SearchSpace: {name} is a list or "auto"; got {type(value).__name__}.'
                )
        if self.batches is None:
            return
        if isinstance(self.batches, str) or not isinstance(self.batches, Iterable):
            raise ArgumentTypeError(
                "SearchSpace: batches is a list of whole numbers, such as [64, 128]; got "
                f"{self.batches!r}."
            )
        for batch in self.batches:
            if not isinstance(batch, numbers.Integral):
                raise ArgumentTypeError(f"SearchSpace: a batch is a whole number; got {batch!r}.")
            if batch < 1:
                raise ArgumentError(f"SearchSpace: a batch has 1 example or more; got {batch}.")

    @classmethod
    def auto(cls) -> SearchSpace:
        """Return the space of everything but the batch.

        For a plain function, which has no meshes or policies to choose, it is the compiler options.
        """
        return cls(meshes="auto", remats="auto", compiler_options="auto")

    def check(self, slices: Sequence[chips.Slice]) -> None:
        """Check what can be checked without a program.

        Raises:
            ShapeError: no mesh has the number of devices of any slice.
            ArgumentTypeError: a mesh is not a mapping of names to sizes.
        """
        mistakes: list[ShapeError] = []
        meshes = () if isinstance(self.meshes, str) else self.meshes or ()
        for mesh, where in itertools.product(meshes, slices):
            try:
                axes_on(where, mesh)
            except ShapeError as error:
                mistakes.append(error)
        if mistakes and len(mistakes) == len(meshes) * len(slices):
            raise mistakes[0]

    def choices(self, workload: Workload, slices: Sequence[chips.Slice]) -> list[Choice]:
        """Return every combination once."""
        remats = workload.remats if self.remats == "auto" else self.remats
        if workload.trainer is None and (self.batches or remats):
            raise ArgumentError(
                "SearchSpace: batches and remats are a training step's; a plain function is "
                "compiled as it is written. Pass a compiled model or a Trainer."
            )
        for remat in remats or ():
            if remat not in workload.remats:
                raise unknown_name("remat policy", remat, workload.remats)
        choices = [
            Choice(where, mesh, batch, remat, compiler_options=option or {})
            for where in slices
            for mesh, batch, remat, option in itertools.product(
                self._meshes(workload, where),
                self.batches or (None,),
                remats or (None,),
                self._options(where),
            )
        ]
        return [choice for n, choice in enumerate(choices) if choice not in choices[:n]]

    def _options(self, where: chips.Slice) -> Sequence[Any]:
        if not isinstance(self.compiler_options, str):
            return self.compiler_options or (None,)
        choices: list[Any] = [None, COLLECTIVE_MATMUL_OFF]
        if where.generation.name == "v6e":
            choices.append({**COLLECTIVE_MATMUL_OFF, **LARGE_TILES_V6E})
        return choices

    def _meshes(self, workload: Workload, where: chips.Slice) -> Sequence[Any]:
        if isinstance(self.meshes, str):
            return workload.meshes(where)
        return self.meshes or (None,)
