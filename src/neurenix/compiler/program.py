"""Trace a jittable function for a mesh of absent devices, and describe it as data.

Owns tracing on an abstract mesh, exporting, and the leaves with roles and partitions.
``abstract_placement`` owns specs and meshes, ``untraceable`` the messages of functions that cannot
be traced, and ``compile`` the compiler.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import jax
from jax import export
from jax.sharding import AbstractMesh

from neurenix._core.errors import ArgumentError
from neurenix._core.source_files import SourceLine
from neurenix._jax import jaxpr_as_fun, with_shardy
from neurenix._jit.target_device import tracing_for
from neurenix.compiler import jaxpr_facts as traits_module
from neurenix.compiler import pytree_json
from neurenix.compiler.abstract_placement import abstract_mesh as abstract_mesh
from neurenix.compiler.abstract_placement import place
from neurenix.compiler.abstract_placement import spec as spec
from neurenix.compiler.argument_arrays import (
    Leaf,
    as_their_like,
    is_placed,
    leaf_of,
    may_be_divided,
    whole,
)
from neurenix.compiler.argument_roles import roles_of
from neurenix.compiler.callers import users_caller
from neurenix.compiler.captured_arrays import Captured, captured
from neurenix.compiler.donation import replaceable
from neurenix.compiler.fingerprint import fingerprint
from neurenix.compiler.flops import model_flops, without_dead_code
from neurenix.compiler.host_callbacks import has_callbacks, without_callbacks
from neurenix.compiler.inner_jit import compiled_before, donated_already, kept_on_host
from neurenix.compiler.jaxpr_facts import Traits, leaf_path
from neurenix.compiler.lowering import Lowered, lower
from neurenix.compiler.meshes import mesh_in, meshes_named, outside_of_meshes
from neurenix.compiler.untraceable import NoArray, check_results, explained


@dataclass(frozen=True)
class Program:
    """A traced program and its properties before compilation.

    Attributes:
        name: of the function.
        fingerprint: equal for equal programs, wherever they are called.
        axes: mesh axes and their sizes.
        leaves: the arguments that the program uses, in the order of the compiled parameters.
        donated: indices into ``leaves`` of the donated arguments.
        model_flops: floating-point operations of all devices for one call, from the matrix products
            and convolutions of the program as written, without recomputation.
        output_bytes: global bytes of the outputs in device memory.
        lowered: the compiler's input for an estimate; ``None`` for a program read from a file.
        serialized: ``jax.export`` bytes for executables; empty unless requested.
        traits: properties of the program as written that the compiled program does not show.
        platform: platform of the lowering.
        unused: paths of the arguments that the program does not use.
        output_tree: of its result, as written by ``pytree_json``.
        captured: arrays captured by closure.
        compiler_options: XLA options of the function's own ``jax.jit``.
        replaceable: arguments that results could overwrite, by the position or name that donates
            them: indices into ``leaves`` of those that match.
        called_from: the user's line that was about to call it, if any.
    """

    name: str
    fingerprint: str
    axes: dict[str, int]
    leaves: tuple[Leaf, ...]
    donated: tuple[int, ...]
    model_flops: float
    output_bytes: int
    lowered: Lowered | None = None
    serialized: bytes = b""
    traits: Traits = field(default_factory=Traits)
    platform: str = "tpu"
    unused: tuple[str, ...] = ()
    output_tree: Any = None
    captured: tuple[Captured, ...] = ()
    replaceable: Mapping[int | str, tuple[int, ...]] = field(default_factory=dict)
    compiler_options: Mapping[str, Any] = field(default_factory=dict)
    called_from: SourceLine | None = None

    @property
    def constant_bytes(self) -> int:
        """Bytes of the arrays captured by closure."""
        return sum(array.num_bytes for array in self.captured)

    @property
    def num_devices(self) -> int:
        """Number of devices."""
        return math.prod(self.axes.values())


@dataclass(frozen=True)
class TraceOptions:
    """Options of tracing.

    ``donate_argnums`` are positions of whole arguments. ``donatable`` has, for each argument, the
    position or name that donates it, or None if it cannot be donated. ``leaf_roles`` names a role
    for each leaf of all arguments in flattening order; if empty, roles follow from optax state.
    ``platform`` and ``device_kind`` are JAX's names; the second matters for code that differs
    between generations, such as attention kernels. ``numbers`` are parameters that received Python
    numbers, for error messages. ``explicit`` are the explicit axes of the mesh, as of
    ``jax.make_mesh``. ``any_mesh`` allows a mesh of the function's own with as many devices to
    replace ``axes``. ``compiler_options`` are those of the function's own ``jax.jit``. ``exported``
    requests an export, from which executables are made.
    """

    donate_argnums: tuple[int, ...] = ()
    leaf_roles: tuple[str, ...] = ()
    name: str = ""
    platform: str = "tpu"
    device_kind: str = ""
    numbers: tuple[str, ...] = ()
    explicit: tuple[str, ...] = ()
    any_mesh: bool = False
    donatable: tuple[int | str | None, ...] | None = None
    compiler_options: Mapping[str, Any] = field(default_factory=dict)
    exported: bool = False


def trace(
    function: Callable[..., Any],
    args: Sequence[Any],
    *,
    axes: Mapping[str, int],
    options: TraceOptions | None = None,
) -> Program:
    """Trace ``function(*args)`` for a mesh and lower it.

    Args:
        function: pure and jittable; it may be jitted already.
        args: trees of arrays or ``spec``s. A ``NamedSharding`` on a leaf keeps its partition; its
            mesh axes must be among ``axes``.
        axes: mesh axis names and sizes, whose product is the device count.
        options: donation, roles and a name.

    Raises:
        ShapeError: the mesh does not divide an array as its partition says.
        ArgumentTypeError: an argument is neither an array nor a ``spec``.
        ArgumentError: the function cannot be traced; the message names the line.
        CompilationError: JAX lacks one of its operations on the platform.

    Example:
        >>> import jax.numpy as jnp
        >>> p = trace(jnp.dot, (spec((8, 4)), spec((4, 2))), axes={"data": 1})
        >>> p.model_flops
        128.0
    """
    options = options or TraceOptions()
    for number in options.donate_argnums:
        if not 0 <= number < len(args):
            raise ArgumentError(
                f"donate_argnums names argument {number}, and there are {len(args)} arguments."
            )
    # Use Shardy even if JAX_USE_SHARDY_PARTITIONER disables it.
    with with_shardy(), outside_of_meshes(), tracing_for(options.device_kind):
        mesh = abstract_mesh(axes, options.device_kind, options.explicit)
        return _trace_on(function, args, mesh, options)


def _trace_on(
    function: Callable[..., Any], args: Sequence[Any], mesh: AbstractMesh, options: TraceOptions
) -> Program:
    """Trace on a mesh, or on the function's own mesh if it rejects the first."""
    try:
        return _trace(function, args, mesh, options)
    except ArgumentError as error:
        own = mesh_in(error.__cause__, mesh)
        if own is None:
            raise
        instead = options.any_mesh and own.size == mesh.size
        if own.shape_tuple != mesh.shape_tuple and not instead:
            if "mesh" in str(error.__cause__).lower():
                raise _other_mesh(own, mesh, error) from error.__cause__
            raise
        return _trace(function, args, own, options)


def _other_mesh(own: AbstractMesh, asked: AbstractMesh, error: ArgumentError) -> ArgumentError:
    sizes = [", ".join(f"{k}={v}" for k, v in m.shape_tuple) for m in (own, asked)]
    return ArgumentError(
        f"{error} The function divides over a mesh of its own, {sizes[0]}, and the program is for "
        f"{sizes[1]}. Give that mesh (mesh={dict(own.shape_tuple)}) and a slice with as many "
        "devices, or leave mesh= out of shard_map."
    )


def _trace(
    function: Callable[..., Any], args: Sequence[Any], mesh: AbstractMesh, options: TraceOptions
) -> Program:
    """Trace; leave the sharding of uncommitted arrays to the compiler where ``jax.jit`` does.

    ``jax.jit`` does so if a committed array is used, or if the function has a mesh of as many
    devices.
    """
    undecided = may_be_divided(args, mesh)
    if undecided and any(map(is_placed, jax.tree.leaves(args))):
        program, _ = _traced(function, args, mesh, options)
        if any(leaf.shape and not leaf.is_unplaced for leaf in program.leaves):
            return program
    program, jaxpr = _traced(function, jax.tree.map(whole, tuple(args)), mesh, options)
    named = [own for own in meshes_named(jaxpr) if own.size == mesh.size]
    if not undecided or not named:
        return program
    others = (own for own in named if own.shape_tuple != mesh.shape_tuple)
    own = next(others, None) if options.any_mesh else None  # Neurenix's layers use the given mesh
    if own is not None:
        mesh = abstract_mesh(own.shape, options.device_kind, options.explicit)
    return _traced(function, args, mesh, options)[0]


def _traced(
    function: Callable[..., Any], args: Sequence[Any], mesh: AbstractMesh, options: TraceOptions
) -> tuple[Program, Any]:
    """Return the program and its jaxpr as written."""
    paths, tree = jax.tree_util.tree_flatten_with_path(tuple(args))
    names = [leaf_path(path) for path, _ in paths]
    placed = [place(leaf, name, mesh) for (_, leaf), name in zip(paths, names, strict=True)]
    with jax.sharding.use_abstract_mesh(mesh):  # for partitions that name only axes
        before = compiled_before(function, placed, tree)
    asked = (own for n, own in enumerate(_spans(args)) if n in options.donate_argnums)
    donated = tuple(leaf for own in asked for leaf in own) or donated_already(before)

    out_tree: list[Any] = []

    name = options.name or getattr(function, "__name__", type(function).__name__)

    def flat(*leaves: Any) -> list[Any]:
        out = function(*jax.tree.unflatten(tree, leaves))
        check_results(out, name)
        out_tree[:] = [jax.tree.structure(out)]
        return kept_on_host(jax.tree.leaves(out), before)

    flat.__name__ = name if name.isidentifier() else "program"
    jitted = jax.jit(flat, donate_argnums=donated)
    with jax.sharding.use_abstract_mesh(mesh):
        made = _lowered(jitted, placed, mesh, name, options)
    jaxpr, own = made.jaxpr, made.lowered.num_devices
    if own != mesh.size:
        raise ArgumentError(
            f"{name} divides over a mesh of its own with {own} devices, and the program is for "
            f"{mesh.size}. Take a slice with as many devices, or name the mesh's axes alone."
        )
    if not jaxpr.out_avals:
        raise ArgumentError(f"{name} returns no array; there is nothing to compile.")
    out = jax.tree.unflatten(out_tree[0], jaxpr.out_avals)
    carried = traits_module.recompiles(args, out, donate_argnums=_whole(args, donated))
    kept = {leaf: place for place, leaf in enumerate(made.kept)}
    roles = options.leaf_roles or roles_of(args, out, donated)
    leaves = as_their_like(leaf_of(names[i], roles[i], placed[i], mesh) for i in kept)
    spared = {i for i, role in enumerate(roles) if role == "batch"} | set(donated)
    matched = replaceable(
        jax.tree.unflatten(tree, placed),
        out,
        [n for n, own in enumerate(_spans(args)) if spared.intersection(own)],
    )
    written = without_dead_code(jaxpr)
    compiled = written if made.compiled is jaxpr else without_dead_code(made.compiled)
    program = Program(
        name=name,
        lowered=made.lowered,
        serialized=made.serialized,
        fingerprint=fingerprint(made.text),
        axes=dict(mesh.shape_tuple),
        leaves=leaves,
        donated=tuple(kept[i] for i in donated if i in kept),
        model_flops=model_flops(compiled),
        output_bytes=sum(
            a.size * a.dtype.itemsize
            for a in jaxpr.out_avals
            if a.memory_space != jax.memory.Space.Host
        ),
        platform=options.platform,
        unused=tuple(path for i, path in enumerate(names) if i not in kept),
        output_tree=pytree_json.describe(out),
        captured=captured(jaxpr),
        compiler_options=options.compiler_options,
        replaceable=_named_leaves(options, jax.tree.unflatten(tree, placed), kept, matched),
        traits=replace(traits_module.read(written), recompiles=carried),
        called_from=users_caller(),
    )
    return program, jaxpr


@dataclass(frozen=True)
class _Made:
    """The products of tracing and lowering.

    ``jaxpr`` is as written, ``compiled`` is without host callbacks, ``kept`` are the arguments that
    the program uses, and ``text`` is that of its module.
    """

    jaxpr: Any
    compiled: Any
    lowered: Lowered
    kept: tuple[int, ...]
    text: str
    serialized: bytes


def _lowered(
    jitted: Any,
    placed: list[jax.ShapeDtypeStruct],
    mesh: AbstractMesh,
    name: str,
    options: TraceOptions,
) -> _Made:
    compiled: Any = None
    try:
        with _deep_locations():
            traced = jitted.trace(*placed)
            compiled = traced.jaxpr
            if has_callbacks(compiled):
                compiled = without_callbacks(compiled)
                plain: Any = jaxpr_as_fun(compiled)
                plain.__name__ = name if name.isidentifier() else "program"
                jitted = jax.jit(plain, donate_argnums=traced.donate_argnums)
            without_calls = traced if compiled is traced.jaxpr else jitted.trace(*placed)
            lowered, kept, text = lower(without_calls, placed, mesh.size, options.platform)
            serialized = b""
            if options.exported:
                pallas = export.DisabledSafetyCheck.custom_call("tpu_custom_call")
                exported = export.export(
                    jitted, platforms=[options.platform], disabled_checks=[pallas]
                )
                serialized = bytes(exported(*placed).serialize())
    except Exception as error:  # explained, with the original as its cause
        told = explained(error, name, options.numbers, compiled)
        if told is error:
            raise
        raise told from (None if isinstance(error, NoArray) else error)
    return _Made(traced.jaxpr, compiled, lowered, kept, text, serialized)


@contextmanager
def _deep_locations() -> Iterator[None]:
    """Keep enough call stack per operation to reach the user's line from a layer.

    Errors keep their whole stack too, which ``meshes`` searches.
    """
    wanted = {"jax_traceback_in_locations_limit": _FRAMES, "jax_traceback_filtering": "off"}
    before = {option: getattr(jax.config, option) for option in wanted}
    try:
        for option, value in wanted.items():
            jax.config.update(option, value)
        yield
    finally:
        for option, value in before.items():
            jax.config.update(option, value)


_FRAMES = 40


def _spans(args: Sequence[Any]) -> list[range]:
    """Return the ranges of each argument's leaves among all leaves."""
    ends = list(itertools.accumulate(len(jax.tree.leaves(argument)) for argument in args))
    return [range(start, end) for start, end in itertools.pairwise([0, *ends])]


def _named_leaves(
    options: TraceOptions, args: Sequence[Any], kept: Mapping[int, int], found: Mapping[int, Any]
) -> dict[int | str, tuple[int, ...]]:
    """Return leaves by the name that donates their argument, numbered as the used ones."""
    names = options.donatable or range(len(args))
    spans = _spans(args)
    numbered = {names[n]: [spans[n][leaf] for leaf in leaves] for n, leaves in found.items()}
    return {
        name: tuple(kept[leaf] for leaf in leaves)
        for name, leaves in numbered.items()
        if name is not None and kept.keys() >= set(leaves)
    }


def _whole(args: Sequence[Any], leaves: tuple[int, ...]) -> tuple[int, ...]:
    """Return the positions of arguments whose leaves are all donated."""
    given = set(leaves)
    return tuple(n for n, own in enumerate(_spans(args)) if own and given.issuperset(own))
