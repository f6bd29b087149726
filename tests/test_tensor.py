"""A tensor is a jax.Array: how one is built, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import neurenix as nx
import neurenix.tensor as nt
from neurenix import random
from neurenix._core.errors import (
    ArgumentError,
    ArgumentTypeError,
    DataError,
    DeviceNotFoundError,
    ShapeError,
    UnknownNameError,
)
from neurenix.device import Device, device_of

pytestmark = pytest.mark.cpu8


@pytest.mark.parametrize(
    ("data", "dtype"),
    [
        ([1, 2], "int32"),
        ([1.5, 2], "float32"),
        (3, "int32"),
        (True, "bool"),
        (1j, "complex64"),
        (np.ones(2), "float32"),
        (np.ones(2, np.float16), "float16"),
        (np.arange(3), "int32"),
        (np.arange(3, dtype=np.int8), "int8"),
        (np.arange(3, dtype=np.uint64), "uint32"),
        ([], "float32"),
    ],
)
def test_default_dtypes(data: object, dtype: str) -> None:
    made = nt.Tensor(data)
    assert made.dtype == dtype
    assert isinstance(made, jax.Array)
    assert isinstance(made, nt.Tensor)
    np.testing.assert_array_equal(np.asarray(made), np.asarray(data).astype(made.dtype))


def test_data_that_is_jax_already() -> None:
    assert nt.Tensor(jnp.ones(2, jnp.bfloat16)).dtype == jnp.bfloat16
    assert nt.Tensor([jnp.ones(2), jnp.zeros(2)]).shape == (2, 2)


def test_isinstance_is_true_of_every_array_and_of_nothing_else() -> None:
    assert isinstance(jnp.ones(3), nt.Tensor)
    assert not isinstance(np.ones(3), nt.Tensor)
    seen = []
    jax.jit(lambda x: seen.append(isinstance(x, nt.Tensor)) or x)(jnp.ones(3))
    assert seen == [True]


@pytest.mark.parametrize(
    ("data", "says"),
    [
        ([[1, 2], [3]], r"data\[0\] has length 2, data\[1\] has length 1"),
        ([[[1], [2, 3]]], r"data\[0\]\[0\] has length 1, data\[0\]\[1\] has length 2"),
        ([1, [2]], r"data\[0\] has no length \(a number\), data\[1\] has length 1"),
        ([None], "NoneType None"),
        (["a"], "dtype <U1"),
        (np.array([{}], dtype=object), "dtype object"),
        ([2**31], "contains 2147483648, and int32 holds -2147483648 to 2147483647"),
        (2**70, "dtype object"),
    ],
)
def test_data_that_is_no_array(data: object, says: str) -> None:
    with pytest.raises(DataError, match=says):
        nt.Tensor(data)


def test_integers_that_the_dtype_cannot_hold() -> None:
    with pytest.raises(DataError, match="contains 300, and uint8 holds 0 to 255"):
        nt.Tensor([1, 300], dtype="uint8")
    with pytest.raises(DataError, match="contains -1"):
        nt.Tensor([1, -1], dtype="uint8")
    assert int(nt.Tensor([2**31], dtype="uint32")[0]) == 2**31
    assert float(nt.Tensor([2**31], dtype="float32")[0]) == 2.0**31


@pytest.mark.parametrize("given", [
    lambda: nt.Tensor([300.0], dtype="int8"), lambda: nt.Tensor([np.nan], dtype="int8"),
    lambda: nt.Tensor(2.0**31, dtype="int32"), lambda: nt.Tensor(jnp.array([300]), dtype="int8"),
    lambda: nt.Tensor(jnp.array([-1e9], "bfloat16"), dtype="int8"),
    lambda: nt.Tensor(np.array([9], jnp.bfloat16), dtype="int4"),
    lambda: nt.Tensor(jnp.array([7], jnp.int4) * 2, dtype="uint4"),
    lambda: nt.full_like(nt.ones(2, "int8"), 300), lambda: nt.full_like([1, 2], 2.0**31),
    lambda: nt.arange(2**31, 2**31 + 3), lambda: nt.arange(np.int64(2**31) + 1),
    lambda: nt.arange(-(2**31), -(2**31) - 2, -1), lambda: nt.arange(0.0, 300.0, dtype="uint8"),
    lambda: nt.arange(2**40), lambda: nt.randint(0, 300, (3,), "uint8"),
    lambda: nt.randint(0, 2**40, (3,)), lambda: nt.randint(-1, 5, (3,), "uint32"),
])  # fmt: skip
def test_no_integer_wraps(given: Any) -> None:
    with pytest.raises(DataError, match="contains .*, and u?int.* holds .* Pass another dtype"):
        given()


def test_the_ends_of_a_dtype_are_held() -> None:
    assert nt.arange(2**31 - 2, 2**31).tolist() == [2**31 - 2, 2**31 - 1]
    assert nt.arange(120, 134, 7, "int8").tolist() == [120, 127]
    assert nt.arange(5, 0, -2).tolist() == [5, 3, 1] and nt.arange(3, 1).size == 0
    assert nt.arange(0.0, 2**40, 2.0**39).tolist() == [0.0, 2.0**39]
    assert nt.Tensor([127.9, -128.9], dtype="int8").tolist() == [127, -128]
    assert nt.Tensor(jnp.array([True, False]), dtype="int8").tolist() == [1, 0]
    assert jax.jit(lambda x: nt.Tensor(x, dtype="int8"))(jnp.array([3])).dtype == jnp.int8
    pixels = nt.randint(0, 256, (4000,), "uint8")
    assert (int(pixels.min()), int(pixels.max())) == (0, 255)
    assert int(nt.randint(2**32 - 2, 2**32 - 1, (), "uint32")) == 2**32 - 2


def test_a_size_in_the_place_of_the_dtype_is_told() -> None:
    for make in (nt.zeros, nt.ones, lambda *shape: nt.full(2, 1, shape[1])):
        for size in (3, 0, np.int64(3)):
            with pytest.raises(ArgumentTypeError, match=r"one tuple: zeros\(\(2, 3\)\)"):
                make(2, size)
    with pytest.raises(ArgumentTypeError, match="one tuple"):
        nt.randint(0, 9, 2, 3)


def test_a_pytorch_tensor_with_gradients_gives_its_numbers() -> None:
    class Torch:
        def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
            raise RuntimeError("Can't call numpy() on Tensor that requires grad.")

        def detach(self) -> np.ndarray:
            return np.ones(2)

    assert nt.Tensor(Torch()).tolist() == [1.0, 1.0]


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("bf16", jnp.bfloat16),
        ("bfloat16", jnp.bfloat16),
        ("half", np.float16),
        ("float", np.float32),
        (float, np.float32),
        (bool, np.bool_),
        (np.int8, np.int8),
        (jnp.float8_e4m3fn, jnp.float8_e4m3fn),
        ("FP32", np.float32),
        ("int4", jnp.int4),
    ],
)
def test_dtype_names(name: object, dtype: object) -> None:
    assert nt.dtype(name) == np.dtype(dtype)
    assert nt.zeros(2, name).dtype == np.dtype(dtype)


def test_dtypes_that_are_none() -> None:
    with pytest.raises(UnknownNameError, match="Did you mean 'float', 'bfloat16'"):
        nt.dtype("bfloat")
    with pytest.raises(ArgumentError, match="64-bit"):
        nt.Tensor([1.0], dtype="float64")


def test_on_a_device() -> None:
    tpu = Device("tpu:3")
    assert device_of(nt.Tensor([1, 2], device=tpu)) == tpu
    assert device_of(nt.Tensor([1, 2], device="cpu")) == Device("cpu")
    assert device_of(nt.Tensor([1, 2])) == Device("tpu:0")
    with pytest.raises(DeviceNotFoundError, match="tpu:0 to tpu:7"):
        nt.Tensor([1, 2], device="tpu:8")


def test_a_tensor_is_not_copied_without_need() -> None:
    array = jnp.ones(3)
    assert nt.Tensor(array) is array


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (lambda: nt.zeros((2, 3), device="tpu:1"), np.zeros((2, 3), "f")),
        (lambda: nt.ones(2, "bf16", device="tpu:1"), np.ones(2)),
        (lambda: nt.full((2,), 7, device="tpu:1"), np.full(2, 7)),
        (lambda: nt.arange(1, 7, 2, device="tpu:1"), np.arange(1, 7, 2)),
        (lambda: nt.linspace(0, 1, 5, device="tpu:1"), np.linspace(0, 1, 5)),
        (lambda: nt.eye(2, 3, device="tpu:1"), np.eye(2, 3)),
        (lambda: nt.zeros_like([1.0, 2.0], device="tpu:1"), np.zeros(2)),
        (lambda: nt.ones_like(np.ones(2, "i"), device="tpu:1"), np.ones(2)),
        (lambda: nt.full_like([1, 2], 5, device="tpu:1"), np.full(2, 5)),
        (lambda: nt.full((2,), fill_value=7, device="tpu:1"), np.full(2, 7)),
        (lambda: nt.linspace(0, 1, 4, endpoint=False, device="tpu:1"), np.arange(4) / 4),
        (lambda: nt.eye(3, k=1, device="tpu:1"), np.eye(3, k=1)),
        (lambda: nt.zeros_like([1, 2], shape=(3,), device="tpu:1"), np.zeros(3)),
        (lambda: nt.ones_like([1, 2], shape=3, device="tpu:1"), np.ones(3)),
        (lambda: nt.full_like([1, 2], 5, shape=(1, 2), device="tpu:1"), np.full((1, 2), 5)),
        (lambda: nt.array([1, 2], ndmin=2, device="tpu:1"), np.array([[1, 2]])),
    ],
)
def test_creation(made, expected: np.ndarray) -> None:
    array = made()
    np.testing.assert_array_equal(np.asarray(array, np.float64), expected)
    assert device_of(array) == Device("tpu:1")


def test_a_copy_is_made_where_one_is_asked_for() -> None:
    array = nt.ones(2)
    assert nt.asarray(array) is array
    copied = nt.array(array, copy=True)
    array.delete()
    assert copied.tolist() == [1, 1]


def test_a_dtype_may_stand_after_what_is_made() -> None:
    for made in (
        nt.zeros_like([1, 2], "bf16"),
        nt.ones_like([1, 2], "bf16"),
        nt.full_like([1, 2], 2, "bf16"),
        nt.linspace(0, 1, 3, "bf16"),
        nt.eye(2, dtype="bf16"),
        nt.rand(2, dtype="bf16"),
    ):
        assert made.dtype == jnp.bfloat16


@pytest.mark.parametrize("name", ["rand", "randn", "randint"])
def test_random_numbers_are_put_on_their_device(name: str) -> None:
    assert device_of(DRAWS[name](device="tpu:1")) == Device("tpu:1")


def test_random_numbers_follow_the_seed() -> None:
    random.seed(5)
    first = nt.randn(1000), nt.rand(1000), nt.randint(0, 10, 1000)
    random.seed(5)
    again = nt.randn(1000), nt.rand(1000), nt.randint(0, 10, 1000)
    for one, other in zip(first, again, strict=True):
        np.testing.assert_array_equal(one, other)
    normal, even, integers = (np.asarray(array) for array in first)
    assert abs(normal.mean()) < 0.15
    assert abs(normal.std() - 1) < 0.1
    assert (even.min() >= 0, even.max() < 1, abs(even.mean() - 0.5) < 0.05) == (True,) * 3
    assert set(integers.tolist()) == set(range(10))
    assert nt.randn(2, 3, dtype="bf16", device="cpu").dtype == jnp.bfloat16


DRAWS = {
    "randn": lambda **options: nt.randn(4, **options),
    "rand": lambda **options: nt.rand(4, **options),
    "randint": lambda **options: nt.randint(0, 2**30, (4,), **options),
}


@pytest.mark.parametrize("name", DRAWS)
def test_a_draw_that_is_frozen_by_compilation_is_told_with_its_line(name: str) -> None:
    draw = DRAWS[name]
    for compiled in (jax.jit(lambda: draw()), lambda: jax.eval_shape(lambda: draw())):
        with pytest.warns(random.FrozenDrawWarning, match=rf"{name}\(\) .*self.rngs\(\)") as told:
            compiled()
        assert [Path(warning.filename).name for warning in told] == ["test_tensor.py"]
    for drawn_anew in (draw, jax.grad(lambda x: x + 0 * draw().sum())):
        drawn_anew(*[1.0] * (drawn_anew is not draw))


@pytest.mark.parametrize("name", DRAWS)
def test_a_key_draws_anew_in_a_compiled_function(name: str) -> None:
    draw = jax.jit(lambda key: DRAWS[name](key=key))
    one, other = jax.random.split(jax.random.key(0))
    np.testing.assert_array_equal(draw(one), DRAWS[name](key=one))
    assert not np.array_equal(draw(one), draw(other))
    assert draw(jax.random.key_data(one)).shape == (4,)
    once = jax.jit(lambda: DRAWS[name](key=random.next_key()))
    np.testing.assert_array_equal(once(), once())
    for wrong in (0, nnx.Rngs(0), jax.random.split(one), jnp.ones(2)):
        with pytest.raises(ArgumentTypeError, match=rf"{name}\(key=…\) takes one key"):
            DRAWS[name](key=wrong)
    with pytest.raises(ArgumentTypeError, match=r"Call it: key=rngs\(\)"):
        DRAWS[name](key=nnx.Rngs(0))


def test_randint_without_a_range() -> None:
    with pytest.raises(ArgumentError, match="low < high"):
        nt.randint(3, 3, (2,))
    with pytest.raises(ArgumentTypeError, match="whole numbers, got 0 and 2.5"):
        nt.randint(0, 2.5, (2,))  # pyright: ignore[reportArgumentType]
    with pytest.raises(ArgumentError, match="an integer dtype, got float32"):
        nt.randint(0, 2, (2,), "float32")


def test_the_names_under_which_others_make_arrays() -> None:
    for make in (nx.array, nx.asarray, nx.tensor):
        made = make([[1.5, 2.0]], "bf16", device="tpu:1")
        assert made.tolist() == [[1.5, 2.0]] and made.dtype == jnp.bfloat16
        assert str(nx.device_of(made)) == "tpu:1"
        with pytest.raises(DataError):
            make([[1], [2, 3]])
    assert nx.tensor is nt  # the module, which can be called
    assert nx.empty((2, 3), "int8", device="tpu:1").dtype == jnp.int8
    assert nx.empty_like(nx.ones((2, 3), "bf16")).dtype == jnp.bfloat16
    assert nx.identity(2).tolist() == [[1.0, 0.0], [0.0, 1.0]]


def test_modules_constants_and_limits_of_jax_numpy() -> None:
    for name in (*nt.constants.__all__, "linalg", "fft", "finfo", "iinfo", "result_type"):
        assert getattr(nx, name) is getattr(jnp, name)
    assert nx.linalg.norm(nx.tensor([3.0, 4.0])) == 5.0


def test_functions_are_those_of_jax() -> None:
    functions = [*nt.arrays.__all__, *nt.elementwise.__all__]
    assert len(functions) > 250
    for name in functions:
        assert getattr(nt, name) is getattr(jnp, name)


def test_what_is_public_is_there_once() -> None:
    assert len(nt.__all__) == len(set(nt.__all__))
    for name in nt.__all__:
        assert hasattr(nt, name)


@pytest.mark.parametrize("make", [
    lambda shape: nt.zeros(shape), lambda shape: nt.randn(shape), lambda shape: nt.rand(shape),
    lambda shape: nt.full(shape, 1), lambda shape: nt.randint(0, 2, shape),
])  # fmt: skip
@pytest.mark.parametrize("shape", [(2, "a"), (2, -1), 1.5, (2, True), None])
def test_a_shape_that_is_none_is_told(make: Any, shape: Any) -> None:
    with pytest.raises(ShapeError, match="integers of at least 0"):
        make(shape)
    assert make((0, 2)).shape == (0, 2)
    assert make(np.int32(3)).shape == make(np.array(3)).shape == (3,)


WRONG = {
    "randn": (
        lambda: nt.randn(2, dtype="int32"),
        ArgumentError,
        "must be a floating dtype, got int32",
    ),
    "rand": (
        lambda: nt.rand(2, dtype="int32"),
        ArgumentError,
        "must be a floating dtype, got int32",
    ),
    "eye": (lambda: nt.eye(2.5), ShapeError, "integers"),  # pyright: ignore
    "linspace": (lambda: nt.linspace(0, 1, 2.5), ArgumentError, "num"),  # pyright: ignore
    "axis": (lambda: nt.linspace(0, 1, 3, axis=1), ArgumentError, "not an axis of a result with 1"),
    "diagonal": (lambda: nt.eye(3, k="a"), ArgumentTypeError, "integer"),  # pyright: ignore
    "ndmin": (lambda: nt.array(1, ndmin="a"), ArgumentTypeError, "integer"),  # pyright: ignore
    "arange": (lambda: nt.arange(0, 5, 0), ArgumentError, "must not be 0"),
    "arange of a list": (lambda: nt.arange([1, 2]), ArgumentTypeError, "takes numbers"),
    "objects": (lambda: nt.zeros(2, dtype=object), UnknownNameError, "object"),
    "no dtype": (lambda: nt.dtype(None), UnknownNameError, "None"),
    "dtype of objects": (lambda: nt.dtype(np.dtype("O")), UnknownNameError, "no dtype"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_argument_of_what_makes_tensors_is_told(name: str) -> None:
    make, error, told = WRONG[name]
    with pytest.raises(error, match=told):
        make()
