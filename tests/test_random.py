"""One stream for the process: repeatable, never the same key twice, safe inside a trace."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from neurenix import random
from neurenix._core.errors import ArgumentError, ArgumentTypeError

pytestmark = [pytest.mark.cpu8, pytest.mark.newest]


def test_a_seed_repeats_the_stream() -> None:
    random.seed(3)
    first = [jax.random.key_data(random.next_key()) for _ in range(5)]
    random.seed(3)
    again = [jax.random.key_data(random.next_key()) for _ in range(5)]
    np.testing.assert_array_equal(first, again)
    assert len({tuple(np.asarray(key).tolist()) for key in first}) == 5


def test_other_seeds_are_other_streams() -> None:
    random.seed(1)
    one = random.next_key()
    random.seed(2)
    assert not bool(one == random.next_key())


def test_asking_inside_a_trace_leaks_nothing() -> None:
    @jax.jit
    def draw() -> jax.Array:
        return jax.random.normal(random.next_key(), (3,))

    draw()
    assert jax.random.normal(random.next_key(), (3,)).shape == (3,)
    random.seed(0)
    inside = draw()
    assert np.isfinite(inside).all()


def test_the_first_seed_is_the_same_in_every_process(run_python) -> None:
    code = "import jax, neurenix.random as r; print(jax.random.key_data(r.next_key()))"
    env = {"JAX_PLATFORMS": "cpu"}
    assert run_python(code=code, env=env).stdout == run_python(code=code, env=env).stdout != ""


@pytest.mark.parametrize("value", ["3", 1.5, None])
def test_a_seed_is_an_integer(value: object) -> None:
    with pytest.raises(ArgumentTypeError, match="integer"):
        random.seed(value)


@pytest.mark.parametrize("value", [-1, 2**32])
def test_a_seed_has_a_range(value: int) -> None:
    with pytest.raises(ArgumentError, match=str(value)):
        random.seed(value)
