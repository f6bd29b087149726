"""Find the meshes of a user's arguments, functions and context.

Also leaves the meshes that are set, and rejects arguments on different devices.
``abstract_placement`` owns the mesh of a trace.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import jax
import numpy as np
from jax.sharding import AbstractMesh, Mesh, NamedSharding

from neurenix._core.errors import ArgumentError
from neurenix._jaxpr import walk
from neurenix.compiler.jaxpr_facts import leaf_path


def axes_of_arguments(args: Any) -> dict[str, int] | None:
    """Return the axes of the single mesh over which arguments are sharded, if any.

    Example:
        >>> mesh = AbstractMesh((2, 4), ("dp", "tp"))
        >>> x = jax.ShapeDtypeStruct((8,), "float32", sharding=NamedSharding(mesh, jax.P()))
        >>> axes_of_arguments([x, 3.0])
        {'dp': 2, 'tp': 4}
    """
    shardings = (getattr(leaf, "sharding", None) for leaf in jax.tree.leaves(args))
    named = (sharding.mesh for sharding in shardings if isinstance(sharding, NamedSharding))
    found = {tuple(mesh.shape.items()) for mesh in named if mesh.size > 1}
    return dict(found.pop()) if len(found) == 1 else None


def check_devices(args: Any, *, unused: Sequence[str] = ()) -> None:
    """Check that committed arrays are on the same devices, as ``jax.jit`` does.

    Args:
        args: of a function.
        unused: paths of unused arguments; these may be on any device.

    Raises:
        ArgumentError: one array is on one device, and another is sharded over several.
    """
    leaves, _ = jax.tree_util.tree_flatten_with_path(args)
    left_out = frozenset(unused)
    put = [(leaf_path(path), leaf) for path, leaf in leaves if getattr(leaf, "committed", False)]
    used = [(path, leaf.sharding.num_devices) for path, leaf in put if path not in left_out]
    alone = next((path for path, devices in used if devices == 1), None)
    wide = next(((path, devices) for path, devices in used if devices > 1), None)
    if alone is None or wide is None:
        return
    raise ArgumentError(
        f"Argument {alone} has been put on one device and argument {wide[0]} lies on {wide[1]}, "
        "and jax.jit refuses such a call. Lay it over the same mesh: "
        "jax.device_put(…, NamedSharding(mesh, PartitionSpec()))."
    )


_NAMING_A_MESH = {
    "shard_map": ("mesh",),
    "sharding_constraint": ("sharding",),
    "jit": ("in_shardings", "out_shardings"),
    "device_put": ("devices",),
}
"""Parameters of primitives; others have the mesh that the program is traced on."""


def meshes_named(jaxpr: Any) -> Iterator[Mesh | AbstractMesh]:
    """Yield the meshes that the equations of a program name; those of its arguments are left out.

    Sharding constraints, ``shard_map`` and jitted functions with shardings name meshes.

    Example:
        >>> from neurenix.compiler.abstract_placement import abstract_mesh
        >>> data = NamedSharding(abstract_mesh({"data": 8}), jax.P("data"))
        >>> jaxpr = jax.make_jaxpr(lambda x: jax.lax.with_sharding_constraint(x, data))(np.ones(8))
        >>> [mesh.size for mesh in meshes_named(jaxpr)]
        [8]
    """
    for equation, _, _ in walk(jaxpr):
        for name in _NAMING_A_MESH.get(equation.primitive.name, ()):
            told = equation.params.get(name)
            for each in told if isinstance(told, (list, tuple)) else (told,):
                mesh = getattr(each, "mesh", each)
                if isinstance(mesh, (Mesh, AbstractMesh)):
                    yield mesh


@contextmanager
def outside_of_meshes() -> Iterator[None]:
    """Leave the meshes that the caller has set by ``jax.set_mesh``, while entered.

    A preflight may run while another mesh, of another size, is set.
    """
    with ExitStack() as stack:
        if not jax.sharding.get_mesh().empty:
            stack.enter_context(jax.set_mesh(Mesh(np.empty((), object), ())))
        stack.enter_context(jax.sharding.use_abstract_mesh(AbstractMesh((), ())))
        yield


def mesh_in(error: BaseException | None, known: AbstractMesh) -> AbstractMesh | None:
    """Return the mesh, other than the known one, of a function that failed.

    ``shard_map`` accepts only the context's mesh, but a script's mesh has the script's devices. It
    is found among the local variables of the failed calls: one with the axes of ``known`` if there
    is one, else the innermost.
    """
    found: list[AbstractMesh] = []
    frame = error.__traceback__ if error else None
    while frame:
        for value in frame.tb_frame.f_locals.values():
            mesh = value.mesh if isinstance(value, NamedSharding) else value
            mesh = mesh.abstract_mesh if isinstance(mesh, Mesh) else mesh
            if isinstance(mesh, AbstractMesh) and mesh.axis_names and mesh != known:
                found.append(mesh)
        frame = frame.tb_next
    same = (mesh for mesh in found if mesh.shape_tuple == known.shape_tuple)
    return next(same, found[-1] if found else None)
