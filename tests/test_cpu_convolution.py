"""Convolutions lowered for the CPU: the same numbers in every layout, and no plain loops."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from scipy.signal import correlate

from neurenix._cpu.convolution import LOWERING, channels_last
from neurenix._jax import cpu_lowering, replace_cpu_lowering

pytestmark = [pytest.mark.cpu8, pytest.mark.newest]

LAYOUTS = [
    ("NHWC", "HWIO", "NHWC"),
    ("NCHW", "OIHW", "NCHW"),
    ("HWCN", "IHWO", "NHWC"),
    ("CHWN", "IHWO", "HWNC"),
]


def arranged(array: np.ndarray, source: str, target: str) -> np.ndarray:
    return array.transpose([source.index(letter) for letter in target])


@pytest.mark.parametrize("layout", LAYOUTS, ids="-".join)
def test_every_layout_gives_what_scipy_gives(layout: tuple[str, str, str]) -> None:
    replace_cpu_lowering(*LOWERING)
    assert cpu_lowering(lax.conv_general_dilated_p) is channels_last
    generator = np.random.default_rng(0)
    x = generator.normal(size=(2, 7, 6, 3)).astype(np.float32)
    w = generator.normal(size=(3, 2, 3, 4)).astype(np.float32)
    expected = np.stack(
        [[correlate(image, w[..., o], "valid")[..., 0] for o in range(4)] for image in x]
    ).transpose(0, 2, 3, 1)
    # A function of its own: what JAX has compiled before stays as it was.
    out = jax.jit(lambda x, w: lax.conv_general_dilated(x, w, (1, 1), "VALID", None, None, layout))(
        arranged(x, "NHWC", layout[0]), arranged(w, "HWIO", layout[1])
    )
    found = arranged(np.asarray(out), layout[2], "NHWC")
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("groups", [1, 2])
def test_gradients_in_a_loop_are_those_outside(stride: int, groups: int) -> None:
    replace_cpu_lowering(*LOWERING)
    generator = np.random.default_rng(0)
    x = generator.normal(size=(3, 2, 9, 8, 4)).astype(np.float32)
    w = generator.normal(size=(3, 3, 4 // groups, 6)).astype(np.float32)

    def loss(w: Any, x: Any) -> Any:
        out = lax.conv_general_dilated(
            x, w, (stride, stride), "SAME", None, None, LAYOUTS[0], feature_group_count=groups
        )
        return jnp.sin(out).sum()

    looped = jax.jit(
        lambda w, x: lax.scan(lambda carry, xi: (carry, jax.grad(loss, (0, 1))(w, xi)), 0, x)[1]
    )(w, x)
    for step in range(3):
        weights, inputs = jax.grad(loss, (0, 1))(w, x[step])
        np.testing.assert_allclose(looped[0][step], weights, rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(looped[1][step], inputs, rtol=1e-4, atol=1e-4)


def test_convolutions_in_a_loop_have_the_form_of_the_fast_kernel() -> None:
    replace_cpu_lowering(*LOWERING)
    x, w = jnp.ones((4, 8, 8, 8, 2)), jnp.ones((3, 3, 2, 4))

    def body(w: Any, x: Any) -> Any:
        def loss(w: Any) -> Any:
            out = lax.conv_general_dilated(x, w, (1, 1), "VALID", None, None, LAYOUTS[0])
            return (out**2).sum()

        return w - jax.grad(loss)(w), None

    text = jax.jit(lambda w, x: lax.scan(body, w, x)[0]).lower(w, x).as_text()
    convolutions = [line for line in text.splitlines() if "stablehlo.convolution" in line]
    assert len(convolutions) == 2
    assert all("[b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f]" in line for line in convolutions)
