"""What a value of a replica's program depends on: one small program for each way to make one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import io_callback

from neurenix.distribute.replication_check import Flow, flows_of

pytestmark = [pytest.mark.pure, pytest.mark.newest]

HALVES = [[0, 1, 2, 3], [4, 5, 6, 7]]
ALIKE, APART = Flow(), Flow(differs=True)
GROWN, GROWN_APART = Flow(grown=0), Flow(differs=True, grown=0)
GROWN_BY_ITSELF = Flow(grown=0, reads=True)
READ, READ_APART = Flow(reads=True), Flow(differs=True, reads=True)


def number() -> Any:
    return jax.lax.axis_index("data")


def effect() -> Any:
    return io_callback(lambda: np.float32(0), jax.ShapeDtypeStruct((), "float32"))


# Of a state, the replica's share of a batch, and a value that is the same on all replicas, (3,).
PROGRAMS: dict[str, tuple[Callable[[Any, Any, Any], Any], Flow]] = {
    "sum": (lambda state, x, same: state + x, GROWN_APART),
    "sum, the state last": (lambda state, x, same: x + state, GROWN_APART),
    "difference": (lambda state, x, same: state - same, GROWN),
    "difference from something": (lambda state, x, same: x - state, READ_APART),
    "opposite": (lambda state, x, same: -state, READ),
    "another dtype": (lambda state, x, same: state.astype("bfloat16"), GROWN),
    "sum with a part of itself": (lambda state, x, same: state + 2 * state, GROWN_BY_ITSELF),
    "some entries": (lambda state, x, same: state.at[0].add(x[0]), GROWN_APART),
    "into some entries": (lambda state, x, same: x.at[0].add(state[0]), READ_APART),
    "chosen alike": (lambda state, x, same: jnp.where(same > 0, state, state + 1), GROWN),
    "chosen apart": (lambda state, x, same: jnp.where(x > 0, state, state + 1), GROWN_APART),
    "chosen by itself": (
        lambda state, x, same: jnp.where(state > 0, state, state + 1),
        GROWN_BY_ITSELF,
    ),
    "chosen or not": (lambda state, x, same: jnp.where(same > 0, state, same), READ),
    "branch apart": (
        lambda state, x, same: jax.lax.cond(x[0] > 0, lambda: state, lambda: state + 1),
        GROWN_APART,
    ),
    "branch by itself": (
        lambda state, x, same: jax.lax.cond(state[0] > 0, lambda: state, lambda: state + 1),
        GROWN_BY_ITSELF,
    ),
    "loop": (
        lambda state, x, same: jax.lax.scan(lambda s, row: (s + row, None), state, x[:, None])[0],
        GROWN_APART,
    ),
    "last row": (
        lambda state, x, same: jax.lax.scan(lambda s, row: (row, None), 0.0, state)[0],
        READ,
    ),
    "rows of itself": (
        lambda state, x, same: jax.lax.scan(lambda s, row: (s, state), 0.0, same)[1],
        READ,
    ),
    "loop that ends apart": (
        lambda state, x, same: jax.lax.while_loop(lambda s: s[0] < x[0], lambda s: s + 1, same),
        APART,
    ),
    "handed on by a loop": (
        lambda state, x, same: jax.lax.scan(lambda s, _: ((s[1], x), 0), (same, same), same)[0][0],
        APART,
    ),
    "handed on by a loop with an end": (
        lambda state, x, same: jax.lax.while_loop(
            lambda s: s[2] < 3, lambda s: (s[1], x, s[2] + 1), (same, same, 0)
        )[0],
        APART,
    ),
    "call": (lambda state, x, same: jax.jit(jnp.add)(state, x), GROWN_APART),
    "sum of all replicas": (lambda state, x, same: jax.lax.psum(x, "data"), ALIKE),
    "largest of all replicas": (lambda state, x, same: jax.lax.pmax(x, "data"), ALIKE),
    "values of all replicas": (lambda state, x, same: jax.lax.all_gather(x, "data"), ALIKE),
    "sum of half of the replicas": (
        lambda state, x, same: jax.lax.psum(x, "data", axis_index_groups=HALVES),
        APART,
    ),
    "sum over another axis": (lambda state, x, same: jax.lax.psum(x, "model"), APART),
    "value of the next replica": (
        lambda state, x, same: jax.lax.ppermute(same, "data", [(0, 1), (1, 0)]),
        APART,
    ),
    "number of the replica": (lambda state, x, same: number(), APART),
    "what Python says": (lambda state, x, same: effect(), APART),
    "what Python says, computed again": (jax.checkpoint(lambda *_: effect()), APART),
    "number of the replica, inside a solver": (
        lambda state, x, same: jax.lax.custom_linear_solve(
            lambda v: 2 * v, same, lambda matvec, b: b / (1 + number())
        ),
        APART,
    ),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_what_a_value_depends_on(name: str) -> None:
    function, wanted = PROGRAMS[name]
    jaxpr = jax.make_jaxpr(function, axis_env=[("data", 8), ("model", 2)])(*[np.zeros(3, "f")] * 3)
    assert flows_of(jaxpr, [Flow(grown=0), Flow(differs=True), Flow()]) == [wanted]
