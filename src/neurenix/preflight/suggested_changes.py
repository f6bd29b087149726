"""Changes that may make a program fit, each compiled and shown with its result.

Owns which changes are tried, one at a time, for a program that the compiler refused for lack of
HBM. For a function only other slices are tried. A change that does not help is shown as such.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

import jax

from neurenix import chips
from neurenix._core.errors import ArgumentError, CompilationError
from neurenix.compiler.abstract_placement import axis_names
from neurenix.compiler.analysis import Analysis, analyse
from neurenix.compiler.compile import compile_all
from neurenix.compiler.findings.precision import is_wide_float
from neurenix.compiler.program import Program
from neurenix.compiler.target import Target
from neurenix.distribute.mesh import BATCH_AXES
from neurenix.interop.torch import TorchModule
from neurenix.preflight.report.report_data import Suggestion
from neurenix.preflight.script.script_step import ScriptStep
from neurenix.preflight.search.workload import Choice, Workload
from neurenix.train.options import REMATS

_SPARE = 0.97  # target for a smaller batch: share of the memory beside the state
_TRIES = 3
_SLICES_OF_A_FUNCTION = 2  # larger slices, and generations with more memory
_ROOMIER = ("v6e", "v5p", "tpu7x")  # generations in order of HBM per device
_GROWN = ("fsdp", "tensor", "data")  # mesh axes, in the order in which a larger slice extends one
_Change = tuple[str, chips.Slice, Program]  # the change in words, its slice and its program


def suggestions(workload: Workload, refused: Analysis) -> tuple[Suggestion, ...]:
    """Compile the changes that may make a refused program fit; those that do come first.

    Args:
        workload: the target and its arguments.
        refused: its analysis on one slice. There are no suggestions if the program fits or was
            refused for another reason than HBM.
    """
    if refused.refused != "hbm":
        return ()
    if workload.trainer is None:
        tried = list(_answered(workload, _of_function(workload, refused)))
    else:
        tried = list(_compiled(workload, list(_changes(workload, refused))))
        smaller = _smaller_batch(workload, refused)
        tried = ([smaller] if smaller else []) + tried
    return tuple(sorted(tried, key=_merit))


def _merit(suggestion: Suggestion) -> tuple[bool, bool, int]:
    """Return the sort key: suggestions that fit, then those whose memory is known."""
    analysis = suggestion.analysis
    known = analysis.refused in (None, "hbm")
    return not suggestion.fits, not known, analysis.memory.peak_bytes if known else 0


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
    wide = any(
        leaf.role == "optimizer" and is_wide_float(leaf.dtype) for leaf in refused.program.leaves
    )
    if wide and roles.get("optimizer", 0) > roles.get("parameters", 0):
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
            yield _taking(where, mesh), replace(here, slice=where, mesh=mesh)


def _of_function(workload: Workload, refused: Analysis) -> list[_Change]:
    """Return a function on other slices; a script is not run again for them."""
    step = workload.target
    if not isinstance(step, ScriptStep):
        return list(_elsewhere(workload, refused))
    with jax.sharding.use_abstract_mesh(step.mesh):
        return list(_elsewhere(replace(workload, target=step.function), refused))


def _elsewhere(workload: Workload, refused: Analysis) -> Iterator[_Change]:
    """Yield a function on each slice whose devices have more memory or smaller arguments."""
    here, before = refused.where, refused.program
    for where in _larger(here, _SLICES_OF_A_FUNCTION):
        roomier = where.generation is not here.generation
        for mesh in _divided_further(before, where.num_devices):
            change = (_taking(where, mesh), Choice(where, mesh))
            found = next(_traced(workload, [change]), None)
            if found and (roomier or _held(found[-1]) < _held(before)):
                yield found
                break


def _divided_further(program: Program, count: int) -> Iterator[dict[str, int]]:
    """Yield a function's mesh extended to ``count`` devices, by each axis that shards an argument.

    A single axis is always tried, since on one device nothing may be sharded yet.
    """
    axes, now = program.axes, program.num_devices
    if now == count:
        yield dict(axes)
        return
    entries = (entry for leaf in program.leaves for entry in leaf.partition)
    dividing = {name for entry in entries for name in axis_names(entry)}
    for name in dict.fromkeys([*_GROWN, *axes]):
        if name in axes and (name in dividing or len(axes) == 1) and count * axes[name] % now == 0:
            yield axes | {name: count * axes[name] // now}


def _held(program: Program) -> int:
    """Return the bytes of the arguments on each device."""
    return sum(leaf.device_bytes for leaf in program.leaves)


def _taking(where: chips.Slice, mesh: Mapping[str, int]) -> str:
    return f"take {where.name}" + ("" if set(mesh) == {"data"} else f", {_written(mesh)}")


def _recomputing(module: Any, policy: str) -> str:
    """Return the change in words, for the place where this module takes its policy."""
    option = f'remat="{policy}"'
    if policy in REMATS:
        return f"recompute activations: compile(…, {option})"
    if isinstance(module, TorchModule):
        return f"recompute activations: nx.from_torch(…, {option}), or --remat {policy}"
    return f"recompute activations: {option} in its configuration"


def _grown(workload: Workload, axes: Mapping[str, int], count: int) -> dict[str, int] | None:
    """Return a mesh extended to ``count`` devices along one axis; None if the batch rules it out.

    The axis is the first possible one of ``"fsdp"``, ``"tensor"`` and ``"data"``, since the first
    two shard the state. A single axis is extended whatever its name.
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
    """Return a mesh as a Python argument."""
    return f"mesh={json.dumps(dict(mesh))}"


def _shares(workload: Workload, axes: Mapping[str, int]) -> int:
    """Return the number that must divide a batch: replicas × accumulation steps."""
    replicas = math.prod(axes.get(axis, 1) for axis in BATCH_AXES)
    return replicas * workload.trainer.options.accumulate_steps


def _larger(where: chips.Slice, most: int = 1) -> Iterator[chips.Slice]:
    """Yield the next larger slices of this generation, and slices with more memory per chip."""
    if where.num_slices > 1:
        return
    generation = where.generation
    known = [chips.resolve(name) for name in chips.known_slices()]
    same = [s for s in known if s.generation is generation and s.num_chips > where.num_chips]
    sizes = sorted({s.num_chips for s in same})
    yield from (next(s for s in same if s.num_chips == size) for size in sizes[:most])
    roomier = [
        other
        for other in map(chips.generation, _ROOMIER)
        if other.hbm_bytes_per_device > generation.hbm_bytes_per_device
    ]
    for other in roomier[:most]:
        as_many = [s for s in known if s.generation is other and s.num_chips == where.num_chips]
        yield from as_many[:1]


def _compiled(workload: Workload, changes: list[tuple[str, Choice]]) -> Iterator[Suggestion]:
    return _answered(workload, list(_traced(workload, changes)))


def _traced(workload: Workload, changes: list[tuple[str, Choice]]) -> Iterator[_Change]:
    for change, choice in changes:
        # The batch cannot be divided there, or the module has no recomputation.
        with suppress(ArgumentError, CompilationError):
            yield change, choice.slice, workload.program(choice)


def _answered(workload: Workload, programs: list[_Change]) -> Iterator[Suggestion]:
    pairs = [(program, Target.of(where)) for _, where, program in programs]
    answers = compile_all(pairs, workload.options.compiler)
    for (change, where, program), answer in zip(programs, answers, strict=True):
        yield Suggestion(change, analyse(program, where, answer))


def _smaller_batch(workload: Workload, refused: Analysis) -> Suggestion | None:
    """Return the largest batch found to fit, predicted from the memory that grows with it."""
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
