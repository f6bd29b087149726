"""Specs and meshes: what a program is divided over, and whose mesh that is. Nothing compiles."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import neurenix as nx
from neurenix import chips
from neurenix._core.errors import ArgumentError, ArgumentTypeError, ShapeError
from neurenix.compiler.abstract_placement import abstract_mesh
from neurenix.compiler.meshes import axes_of_arguments
from neurenix.compiler.program import Program, spec, trace
from neurenix.preflight.describe_program import describe

pytestmark = pytest.mark.cpu8

DATA = PartitionSpec("data")
X = spec((64, 64), partition=("data",))


def mesh_of_objects() -> Mesh:
    return Mesh(np.array(jax.devices()[:8]), ("data",))


def mesh_of_make_mesh() -> Mesh:
    return jax.make_mesh((8,), ("data",), devices=jax.devices()[:8])


def summed(mesh: Mesh) -> Callable[..., Any]:
    def function(x: Any) -> Any:
        total = jax.shard_map(
            lambda x: jax.lax.psum(x, "data"), mesh=mesh, in_specs=DATA, out_specs=PartitionSpec()
        )
        return (total(x) ** 2).sum()

    return function


def constrained(mesh: Mesh) -> Callable[..., Any]:
    return lambda x: jax.lax.with_sharding_constraint(x * 2, NamedSharding(mesh, DATA)) @ x


@pytest.mark.parametrize("make", [mesh_of_objects, mesh_of_make_mesh])
@pytest.mark.parametrize("form", [summed, constrained])
@pytest.mark.parametrize(
    "how", [lambda f: f, jax.jit, nx.jit, lambda f: jax.grad(lambda x: f(x).sum())]
)
def test_a_function_may_bring_its_own_mesh(make: Any, form: Any, how: Any) -> None:
    mesh = make()
    placed = jax.ShapeDtypeStruct((64, 64), jnp.float32, sharding=NamedSharding(mesh, DATA))
    for x in (X, placed):
        program = trace(how(form(mesh)), (x,), axes={"data": 8})
        assert program.leaves[0].device_shape == (8, 64)


def test_donation_is_seen_of_a_function_with_its_own_mesh() -> None:
    function = jax.jit(lambda x: (x + 1, summed(mesh_of_make_mesh())(x)), donate_argnums=0)
    assert trace(function, (X,), axes={"data": 8}).donated == (0,)


def test_a_mesh_of_other_axes_is_said_with_both_ways_out() -> None:
    mesh = jax.make_mesh((2, 4), ("data", "tensor"), devices=jax.devices()[:8])
    with pytest.raises(ArgumentError, match=r"data=2, tensor=4, and .*data=8.*leave mesh= out of"):
        trace(summed(mesh), (X,), axes={"data": 8})


def test_a_mesh_of_other_axes_is_taken_where_none_is_asked_for() -> None:
    devices = np.array(jax.devices()[:8]).reshape(2, 4)
    function = summed(Mesh(devices, ("data", "tensor")))
    program = describe(function, (spec((64, 64)),), chips.resolve("v5e-8"))
    assert program.axes == {"data": 2, "tensor": 4}
    with pytest.raises(ArgumentError, match=r"data=2, tensor=4, and .*data=8"):
        describe(function, (spec((64, 64)),), chips.resolve("v5e-8"), mesh={"data": 8})
    with pytest.raises(ArgumentError, match=r"data=2, tensor=4, and .*data=16"):
        describe(function, (spec((64, 64)),), chips.resolve("v5e-16"))


def test_other_errors_inside_of_a_shard_map_stay_what_they_are() -> None:
    def wrong(x: Any) -> Any:
        return jax.shard_map(
            lambda x: x @ x, mesh=mesh_of_objects(), in_specs=DATA, out_specs=DATA
        )(x)

    with pytest.raises(ArgumentError, match=r"contracting.*abstract_placement.py:\d+"):
        trace(wrong, (X,), axes={"data": 8})


def program_of_arrays(on: str, mesh: dict[str, int] | None = None) -> Program:
    own = jax.make_mesh((2, 4), ("dp", "tp"), devices=jax.devices()[:8])
    x, w = (
        jax.ShapeDtypeStruct((64, 64), jnp.float32, sharding=NamedSharding(own, PartitionSpec(*p)))
        for p in (("dp",), (None, "tp"))
    )
    return describe(lambda x, w: jnp.tanh(x @ w), (x, w), chips.resolve(on), mesh=mesh)


def test_the_mesh_of_the_arrays_is_taken_if_it_has_as_many_devices() -> None:
    program = program_of_arrays("v5e-8")
    assert program.axes == {"dp": 2, "tp": 4}
    assert [leaf.device_shape for leaf in program.leaves] == [(32, 64), (64, 16)]
    assert program_of_arrays("v5e-16", {"dp": 4, "tp": 4}).axes == {"dp": 4, "tp": 4}


def test_a_mesh_of_another_size_is_asked_for() -> None:
    with pytest.raises(ShapeError, match=r"axis 'dp'; the mesh has data=16\..*--mesh dp=… on the"):
        program_of_arrays("v5e-16")


def test_one_device_is_no_mesh_that_an_array_brings_along() -> None:
    def on(axes: dict[str, int]) -> Any:
        sharding = NamedSharding(abstract_mesh(axes), PartitionSpec())
        return jax.ShapeDtypeStruct((8,), "float32", sharding=sharding)

    one, eight, other = on({"x": 1}), on({"a": 8}), on({"b": 8})
    assert axes_of_arguments([one]) is None
    assert axes_of_arguments([one, eight]) == {"a": 8}
    assert axes_of_arguments([eight, other]) is None


def test_a_mesh_axis_divides_an_array_once() -> None:
    with pytest.raises(ShapeError, match=r"Argument 0 of shape \(8, 8\) .* 'data' twice"):
        trace(jnp.sin, (spec((8, 8), partition=("data", "data")),), axes={"data": 8})


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: spec(8), r"sequence of sizes, such as \(8,\)"),  # pyright: ignore[reportArgumentType]
        (lambda: spec("ab"), "sequence of sizes"),  # pyright: ignore[reportArgumentType]
        (lambda: spec((8, 128), partition="data"), r"partition=\(\"data\",\); got 'data'"),
        (lambda: spec((8,), partition=3), "names a mesh axis or None"),  # pyright: ignore[reportArgumentType]
    ],
)
def test_what_is_no_sequence_is_said(call: Any, message: str) -> None:
    with pytest.raises(ArgumentTypeError, match=message):
        call()
