"""What would make a program fit: changes, each compiled and shown with its effect.

Owns which changes are tried for a training step that the compiler refused for want of HBM, one at
a time. It promises nothing that was not compiled: a change that does not help is shown as such.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from neurenix import chips
from neurenix._core.errors import ArgumentError
from neurenix.compiler.analysis import Analysis, analyse
from neurenix.compiler.compile import compile_all
from neurenix.compiler.target import Target
from neurenix.distribute.mesh import BATCH_AXES
from neurenix.preflight.choice import Choice, Workload

_SPARE = 0.97  # of the memory beside the state: what a smaller batch is aimed at
_TRIES = 3
_ROOMIER = ("v6e", "v5p", "tpu7x")  # generations by the HBM of a device
_GROWN = ("fsdp", "tensor", "data")  # mesh axes in the order in which a larger slice grows one


@dataclass(frozen=True)
class Suggestion:
    """One change, compiled.

    Attributes:
        change: what to write.
        analysis: of the program with the change.
    """

    change: str
    analysis: Analysis

    @property
    def fits(self) -> bool:
        """Whether the program fits with it."""
        return self.analysis.fits


def suggestions(workload: Workload, refused: Analysis) -> tuple[Suggestion, ...]:
    """Compile the changes that may make a refused training step fit, those that do first.

    Args:
        workload: what was asked about.
        refused: its analysis on one slice; one that fits, a plain function, and a refusal for
            another reason than HBM have no suggestions.
    """
    if refused.fits or workload.trainer is None or refused.findings[0].rule != "refused-hbm":
        return ()
    tried = list(_compiled(workload, list(_changes(workload, refused))))
    smaller = _smaller_batch(workload, refused)
    tried = ([smaller] if smaller else []) + tried
    return tuple(sorted(tried, key=lambda s: (not s.fits, s.analysis.memory.peak_bytes)))


def _changes(workload: Workload, refused: Analysis) -> Iterator[tuple[str, Choice]]:
    here = Choice(refused.where, refused.program.axes)
    trainer, batch = workload.trainer, workload.batch
    for remat in workload.remats:
        if remat not in ("none", workload.remat) and workload.remat == "none":
            yield _recomputing(trainer.module, remat), replace(here, remat=remat)
    whole = set(refused.program.axes) == {"data"}
    if whole and refused.where.num_devices > 1:
        mesh = workload.meshes(refused.where)[1]
        change = f"divide parameters and optimizer state: {_written(mesh)}"
        yield change, replace(here, mesh=mesh)
    roles = refused.memory.roles
    if roles.get("optimizer", 0) > roles.get("parameters", 0):
        yield (
            'hold moments in bfloat16: nx.optim.held_in("bfloat16", optimizer)',
            replace(here, moment_dtype="bfloat16"),
        )
    parts = trainer.options.accumulate_steps * 2
    if batch and batch % (2 * _shares(workload, refused.program.axes)) == 0:
        change = f"compute each batch in {parts} parts: compile(…, accumulate_steps={parts})"
        yield change, replace(here, accumulate_steps=parts)
    for where in _larger(refused.where):
        mesh = _grown(workload, refused.program.axes, where.num_devices)
        if mesh is not None:
            said = "" if set(mesh) == {"data"} else f", {_written(mesh)}"
            yield f"take {where.name}{said}", replace(here, slice=where, mesh=mesh)


def _recomputing(module: Any, policy: str) -> str:
    """Return the change in the words of the place where this module has its policy."""
    own = hasattr(module, "with_remat")
    where = f'remat="{policy}" in its configuration' if own else f'compile(…, remat="{policy}")'
    return f"recompute activations: {where}"


def _grown(workload: Workload, axes: Mapping[str, int], count: int) -> dict[str, int] | None:
    """Return a mesh laid over ``count`` devices by one of its axes; None where no batch allows it.

    The axis is the first of ``"fsdp"``, ``"tensor"`` and ``"data"`` that can: the first two divide
    the state. One axis alone has whatever name the user gave it.
    """
    mesh = dict(axes)
    if math.prod(mesh.values()) == count:
        return mesh
    for name in _GROWN if len(mesh) > 1 else mesh:
        if name not in mesh or count * mesh[name] % math.prod(mesh.values()):
            continue
        grown = mesh | {name: count * mesh[name] // math.prod(mesh.values())}
        if (workload.batch or 0) % _shares(workload, grown) == 0:
            return grown
    return None


def _written(mesh: Mapping[str, int]) -> str:
    """Return a mesh as the argument that it is."""
    return f"mesh={json.dumps(dict(mesh))}"


def _shares(workload: Workload, axes: Mapping[str, int]) -> int:
    """Return what a batch must be a multiple of: one part of it on one replica is a share."""
    replicas = math.prod(axes.get(axis, 1) for axis in BATCH_AXES)
    return replicas * workload.trainer.options.accumulate_steps


def _larger(where: chips.Slice) -> Iterator[chips.Slice]:
    """Yield the next larger slice of this generation, and as many chips with more memory each."""
    if where.num_slices > 1:
        return
    generation = where.generation
    known = [chips.resolve(name) for name in chips.known_slices()]
    same = [s for s in known if s.generation is generation and s.num_chips > where.num_chips]
    if same:
        yield min(same, key=lambda s: s.num_chips)
    for other in map(chips.generation, _ROOMIER):
        if other.hbm_bytes_per_device > generation.hbm_bytes_per_device:
            as_many = [s for s in known if s.generation is other and s.num_chips == where.num_chips]
            yield from as_many[:1]
            return


def _compiled(workload: Workload, changes: list[tuple[str, Choice]]) -> Iterator[Suggestion]:
    programs = []
    for change, choice in changes:
        try:
            programs.append((change, choice.slice, workload.program(choice)))
        except ArgumentError:  # a batch that does not divide there, a module without recomputation
            continue
    pairs = [(program, Target.of(where)) for _, where, program in programs]
    answers = compile_all(pairs, workload.options.compiler)
    for (change, where, program), answer in zip(programs, answers, strict=True):
        yield Suggestion(change, analyse(program, where, answer))


def _smaller_batch(workload: Workload, refused: Analysis) -> Suggestion | None:
    """Return the largest batch found to fit: aimed at by the memory that grows with the batch."""
    batch, shares = workload.batch, _shares(workload, refused.program.axes)
    memory = refused.memory
    fixed = memory.arguments_bytes - memory.roles.get("batch", 0)
    if batch is None or memory.peak_bytes <= fixed or memory.limit_bytes <= fixed:
        return None
    suggestion = None
    spare = _SPARE
    for _ in range(_TRIES):
        share = spare * (memory.limit_bytes - fixed) / (memory.peak_bytes - fixed)
        smaller = int(batch * share) // shares * shares
        if not 0 < smaller < batch:
            return suggestion
        choice = Choice(refused.where, refused.program.axes, batch=smaller)
        suggestion = next(
            _compiled(workload, [(f"a global batch of {smaller} in place of {batch}", choice)]),
            None,
        )
        if suggestion is None or suggestion.fits:
            return suggestion
        spare *= 0.75
    return suggestion
