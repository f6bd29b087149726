"""Jaxprs: what an equation runs, how often, at which line, and the same program without calls."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import jaxpr_as_fun
from jax.sharding import PartitionSpec

from neurenix._jaxpr import (
    CALLS,
    CHECKPOINTS,
    called_jaxpr,
    frames,
    inline_calls,
    is_jaxpr,
    map_subjaxprs,
    open_jaxpr,
    repetitions,
    source_line,
    subjaxprs,
    walk,
)

pytestmark = pytest.mark.cpu8

X = np.linspace(0.1, 1, 8, dtype=np.float32)
TABLE = np.arange(8.0, dtype=np.float32)


@jax.jit
def shifted(x: jax.Array) -> jax.Array:
    return x + jnp.asarray(TABLE)


def names(jaxpr: Any) -> list[str]:
    return [site.equation.primitive.name for site in walk(jaxpr)]


def the_only(jaxpr: Any, name: str) -> Any:
    (found,) = (site for site in walk(jaxpr) if site.equation.primitive.name == name)
    return found


def test_an_open_jaxpr_is_that_inside_of_a_closed_one() -> None:
    closed = jax.make_jaxpr(shifted)(X)
    assert open_jaxpr(closed) is closed.jaxpr
    assert open_jaxpr(closed.jaxpr) is closed.jaxpr
    assert is_jaxpr(closed) and is_jaxpr(closed.jaxpr) and not is_jaxpr(closed.jaxpr.eqns[0])


@pytest.mark.parametrize(
    ("function", "primitives", "count"),
    [
        (shifted, {"jit", "pjit"}, 1),
        (lambda x: jax.lax.cond(x[0] > 0, jnp.sin, jnp.cos, x), {"cond"}, 2),
        (lambda x: jax.lax.scan(lambda c, _: (c + 1, None), x, length=2)[0], {"scan"}, 1),
        (lambda x: jax.lax.while_loop(lambda x: x[0] > 0, lambda x: x - 1, x), {"while"}, 2),
        (lambda x: jax.lax.sort(x), {"sort"}, 0),
        (lambda x: jax.nn.relu(x), {"custom_jvp_call"}, 1),
        (jax.checkpoint(jnp.sin), CHECKPOINTS, 1),
    ],
)
def test_subjaxprs(function: Any, primitives: set[str], count: int) -> None:
    equations = jax.make_jaxpr(function)(X).eqns
    (equation,) = (e for e in equations if e.primitive.name in primitives)
    assert len(subjaxprs(equation)) == count
    assert all(map(is_jaxpr, subjaxprs(equation)))


def test_a_linear_solver_runs_one_of_the_jaxprs_that_it_holds() -> None:
    def solve(x: jax.Array) -> Any:
        return jax.lax.custom_linear_solve(
            lambda y: 2 * y, x, lambda _, y: jnp.sin(y), lambda _, y: jnp.cos(y), symmetric=True
        )

    closed = jax.make_jaxpr(solve)(X)
    assert "sin" in names(closed) and "cos" not in names(closed)
    solver = the_only(closed, "custom_linear_solve").equation
    seen: list[Any] = []
    params = map_subjaxprs(solver, lambda jaxpr: seen.append(jaxpr) or jaxpr)
    assert params["jaxprs"] == solver.params["jaxprs"]
    assert len(seen) > 1 and params["jaxprs"].solve is solver.params["jaxprs"].solve


@pytest.mark.parametrize(
    ("function", "same"),
    [
        (lambda x: shifted(x), True),
        (lambda x: jax.nn.relu(x), True),
        (jax.checkpoint(jnp.sin), True),
        (lambda x: jax.lax.scan(lambda c, _: (c + 1, None), x, length=2)[0], False),
        (lambda x: jnp.negative(x), False),
    ],
)
def test_called_jaxpr(function: Any, same: bool) -> None:
    equation = jax.make_jaxpr(function)(X).eqns[0]
    called = called_jaxpr(equation)
    assert (called is not None) is same
    assert not same or called is subjaxprs(equation)[0]


@pytest.mark.parametrize(
    ("condition", "step", "start", "count"),
    [
        (lambda i: i < 10, lambda i: i + 3, 0, 4),
        (lambda i: 10 > i, lambda i: 3 + i, 0, 4),
        (lambda i: i >= 1, lambda i: i - 2, 9, 5),
        (lambda i: i <= 64, lambda i: 2 * i, 1, 7),
        (lambda i: i != 6, lambda i: i + 2, 0, 3),
        (lambda i: i < 0, lambda i: i + 1, 0, 0),
        (lambda i: i < 10, lambda i: i + jnp.int32(jnp.sin(i)), 0, 1),
        (lambda i: (i < 10) & (i > -1), lambda i: i + 1, 0, 1),
    ],
)
def test_repetitions_of_a_while(condition: Any, step: Any, start: int, count: int) -> None:
    loop = the_only(
        jax.make_jaxpr(lambda: jax.lax.while_loop(condition, step, start))(), "while"
    ).equation
    assert repetitions(loop) == count
    runs, value = 0, start
    while count != 1 and condition(value):
        runs, value = runs + 1, step(value)
    assert runs == count or count == 1


def test_walk_multiplies_loops_and_devices_and_knows_what_is_around() -> None:
    mesh = jax.make_mesh((8,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))

    def f(x: jax.Array) -> jax.Array:
        def turn(carry: jax.Array, _: None) -> tuple[jax.Array, None]:
            return jax.lax.fori_loop(0, 3, lambda _, y: jnp.sin(y), carry), None

        return jax.lax.scan(turn, x, length=5)[0]

    spec = PartitionSpec("data")
    sharded = jax.shard_map(f, mesh=mesh, in_specs=spec, out_specs=spec)
    site = the_only(jax.make_jaxpr(sharded)(X), "sin")
    assert site.count == 8 * 5 * 3
    around = [equation.primitive.name for equation in site.callers]
    assert [name for name in around if name != "jit"] == ["shard_map", "scan", "scan"]


def test_walk_goes_where_it_is_told() -> None:
    jaxpr = jax.make_jaxpr(lambda x: jax.lax.cond(x[0] > 0, jnp.sin, jnp.cos, x))(X)
    assert {"sin", "cos"} <= {*names(jaxpr)}
    seen = [site.equation.primitive.name for site in walk(jaxpr, into=lambda e: subjaxprs(e)[:1])]
    assert len({"sin", "cos"} & {*seen}) == 1


def test_source_lines_are_the_users() -> None:
    jaxpr = jax.make_jaxpr(lambda x: jnp.sin(x))(X)
    (equation,) = jaxpr.eqns
    line = source_line(equation)
    assert line is not None and line.file == __file__
    assert line.line == test_source_lines_are_the_users.__code__.co_firstlineno + 1
    assert all("/jax/" not in frame.file for frame in frames(equation))


def test_an_equation_without_a_line_has_that_of_its_caller() -> None:
    closed = jax.make_jaxpr(shifted)(X)
    call, add = closed.eqns[0], the_only(closed, "add").equation
    lost = add.replace(source_info=type(call.source_info)(None, call.source_info.name_stack))
    assert source_line(lost) is None
    assert source_line(lost, (call,)) == source_line(call)
    assert source_line(add, (call,)) == source_line(add) != source_line(call)


def twice(x: jax.Array) -> jax.Array:
    return shifted(shifted(x)) * jax.nn.relu(x)


def looped(x: jax.Array) -> jax.Array:
    def turn(carry: jax.Array, row: jax.Array) -> tuple[jax.Array, jax.Array]:
        return shifted(carry), jax.nn.silu(carry).sum() + row

    carry, rows = jax.lax.scan(turn, x, x)
    return jax.lax.cond(rows[0] > 0, twice, shifted, carry)


def unused(x: jax.Array) -> jax.Array:
    jnp.linalg.qr(jnp.outer(x, x))
    return x


@pytest.mark.parametrize(
    "function",
    [
        twice,
        looped,
        unused,
        shifted,
        jax.jit(lambda x: x),
        jax.jit(lambda x: (1.0, x, x)),
        jax.checkpoint(lambda x: jnp.sin(shifted(x))),
        jax.grad(lambda x: twice(x).sum()),
        jax.grad(lambda x: jax.checkpoint(looped)(x).sum()),
        lambda x: jax.random.normal(jax.random.key(0), x.shape) + x,
    ],
)
def test_a_program_without_calls_computes_the_same(function: Any) -> None:
    closed = jax.make_jaxpr(function)(X)
    flat = inline_calls(closed)
    assert not CALLS & {*names(flat)}
    jax.extend.core.check_jaxpr(flat.jaxpr)
    for one, other in zip(jaxpr_as_fun(closed)(X), jaxpr_as_fun(flat)(X), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6)
    assert [str(v.aval) for v in flat.jaxpr.outvars] == [str(v.aval) for v in closed.jaxpr.outvars]


def test_inlined_equations_keep_their_lines_and_scopes() -> None:
    def f(x: jax.Array) -> jax.Array:
        with jax.named_scope("outer"):
            return shifted(x)

    closed = jax.make_jaxpr(f)(X)
    before, after = the_only(closed, "add"), the_only(inline_calls(closed), "add")
    assert source_line(after.equation) == source_line(before.equation)
    assert "outer" in str(after.equation.source_info.name_stack)
    assert not after.callers and len(before.callers) == 1


def test_equations_of_a_function_of_jax_have_the_line_that_calls_it() -> None:
    def places(x: Any) -> Any:
        return jnp.searchsorted(jnp.arange(9.0), x)

    flat = inline_calls(jax.make_jaxpr(places)(jnp.ones(3)))
    (site,) = (site for site in walk(flat) if site.equation.primitive.name == "le_to")
    line = source_line(site.equation, site.callers)
    assert line is not None and line.function.endswith("places")
