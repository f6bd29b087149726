"""Models of ONNX, converted: values, training, graphs inside of graphs, and functions."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import neurenix as nx

onnx = pytest.importorskip("onnx")

from onnx import TensorProto, helper, numpy_helper  # noqa: E402  after the skip

from neurenix.interop.onnx import Verification, from_onnx  # noqa: E402

pytestmark = [pytest.mark.interop, pytest.mark.cpu8]


def array(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def port(name: str, *shape: Any, dtype: int = TensorProto.FLOAT) -> Any:
    return helper.make_tensor_value_info(name, dtype, list(shape))


def model_of(
    nodes: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any], *, opset: int = 17,
    functions: Sequence[Any] = (), opsets: Sequence[Any] = (), **constants: np.ndarray,
) -> Any:  # fmt: skip
    graph = helper.make_graph(
        list(nodes), "graph", list(inputs), list(outputs),
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )  # fmt: skip
    imports = [helper.make_opsetid("", opset), *opsets]
    return helper.make_model(graph, opset_imports=imports, functions=functions, ir_version=9)


def perceptron() -> Any:
    return model_of(
        [
            helper.make_node("Gemm", ["x", "one.weight", "one.bias"], ["h"], transB=1),
            helper.make_node("Relu", ["h"], ["r"]),
            helper.make_node("Gemm", ["r", "two.weight", "two.bias"], ["y"], transB=1),
        ],
        [port("x", "N", 4)],
        [port("y", "N", 3)],
        **{
            "one.weight": array(8, 4, seed=1), "one.bias": array(8, seed=2),
            "two.weight": array(3, 8, seed=3), "two.bias": array(3, seed=4),
        },
    )  # fmt: skip


def by_hand(x: np.ndarray) -> np.ndarray:
    hidden = np.maximum(x @ array(8, 4, seed=1).T + array(8, seed=2), 0)
    return hidden @ array(3, 8, seed=3).T + array(3, seed=4)


def test_values_names_and_the_comparison() -> None:
    model = from_onnx(perceptron())
    x = array(5, 4)
    np.testing.assert_allclose(model(x), by_hand(x), rtol=1e-5)
    np.testing.assert_allclose(nx.jit(lambda model, x: model(x=x))(model, x), by_hand(x), rtol=1e-5)
    assert sorted(model.parameters()) == ["one.bias", "one.weight", "two.bias", "two.weight"]
    assert model.input_names == ["x"] and model.output_names == ["y"]
    pytest.importorskip("onnxruntime")
    assert isinstance(model.verification, Verification) and model.verification.outputs < 1e-5


def test_fit_trains_it_and_files_keep_its_names(tmp_path: Path) -> None:
    model = from_onnx(perceptron(), check=False)
    x, y = array(64, 4), np.random.default_rng(1).integers(0, 3, 64)
    model.compile(
        optimizer=nx.optim.SGD(0.1), loss=nx.losses.SparseCategoricalCrossentropy(from_logits=True)
    )
    history = model.fit(x, y, batch_size=16, epochs=3, verbose=0)
    assert history.history["loss"][-1] < history.history["loss"][0]
    model.save(tmp_path / "model.safetensors")
    other = from_onnx(perceptron(), check=False)
    other.load(tmp_path / "model.safetensors")
    np.testing.assert_array_equal(other(x), model(x))


def test_gradients_are_those_of_the_formula() -> None:
    model = from_onnx(perceptron(), check=False)
    x = array(5, 4)

    def loss(model: Any) -> Any:
        return (model(x) ** 2).sum()

    found = nx.grad(loss)(model)
    hidden = np.maximum(x @ array(8, 4, seed=1).T + array(8, seed=2), 0)
    wanted = (2 * by_hand(x)).T @ hidden
    values = {"/".join(map(str, path)): leaf for path, leaf in jax.tree.flatten_with_path(found)[0]}
    (weight,) = [v for k, v in values.items() if "two" in k and "weight" in k]
    np.testing.assert_allclose(weight, wanted, rtol=1e-4)


def test_batch_norm_statistics_are_not_trained() -> None:
    proto = model_of(
        [helper.make_node("BatchNormalization", ["x", "s", "b", "m", "v"], ["y"])],
        [port("x", "N", 3)], [port("y", "N", 3)],
        s=array(3), b=array(3), m=array(3), v=np.abs(array(3)) + 1,
    )  # fmt: skip
    model = from_onnx(proto, check=False)
    assert sorted(model.parameters()) == ["b", "s"]


def test_known_values_stay_known_through_shapes() -> None:
    """Shape → Slice → Concat → Reshape under jit, with sizes that the file does not know."""
    proto = model_of(
        [
            helper.make_node("Shape", ["x"], ["all"]),
            helper.make_node("Slice", ["all", "zero", "one"], ["batch"]),
            helper.make_node("Concat", ["batch", "rest"], ["sizes"], axis=0),
            helper.make_node("Reshape", ["x", "sizes"], ["y"]),
        ],
        [port("x", "N", "C", "L")], [port("y", "N", "M")],
        zero=np.array([0]), one=np.array([1]), rest=np.array([-1]),
    )  # fmt: skip
    model = from_onnx(proto)
    x = array(2, 3, 4)
    np.testing.assert_array_equal(jax.jit(lambda x: model(x))(x), x.reshape(2, 12))


def test_inputs_that_decide_shapes_are_known_or_refused_by_name() -> None:
    proto = model_of(
        [helper.make_node("Reshape", ["x", "sizes"], ["y"])],
        [port("x", "N"), port("sizes", 2, dtype=TensorProto.INT64)], [port("y", "a", "b")],
    )  # fmt: skip
    model = from_onnx(proto)
    assert model.known_inputs == ["sizes"]
    assert model(array(6), np.array([2, 3])).shape == (2, 3)
    with pytest.raises(nx.ConversionError, match="'sizes' decides shapes"):
        jax.jit(lambda s: model(jnp.ones(6), s))(np.array([2, 3]))


@pytest.mark.parametrize("known", [True, False])
def test_if_chooses_a_branch(known: bool) -> None:
    def branch(name: str, op: str) -> Any:
        node = helper.make_node(op, ["x"], [f"{name}_out"])
        return helper.make_graph([node], name, [], [port(f"{name}_out", 3)])

    proto = model_of(
        [
            helper.make_node(
                "If", ["c"], ["y"], then_branch=branch("a", "Neg"), else_branch=branch("b", "Exp")
            )
        ],
        [port("x", 3), port("c", dtype=TensorProto.BOOL)],
        [port("y", 3)],
    )
    model, x = from_onnx(proto), array(3)
    for condition, wanted in ((True, -x), (False, np.exp(x))):
        call = model if known else jax.jit(lambda x, c: model(x, c))
        np.testing.assert_allclose(call(x, np.asarray(condition)), wanted, rtol=1e-6)


def loop(condition: str) -> Any:
    """Doubles ``x`` and collects it, up to ``limit`` times while ``condition`` holds."""
    body = helper.make_graph(
        [
            helper.make_node("Add", ["x_in", "x_in"], ["x_out"]),
            helper.make_node("Identity", ["x_out"], ["seen"]),
            helper.make_node("ReduceMax", ["x_out"], ["most"], keepdims=0),
            helper.make_node("Less", ["most", "bound"], ["small"]),
            helper.make_node("Identity", ["go_in" if condition == "always" else "small"], ["go"]),
        ],
        "body",
        [
            port("i", dtype=TensorProto.INT64),
            port("go_in", dtype=TensorProto.BOOL),
            port("x_in", 2),
        ],
        [port("go", dtype=TensorProto.BOOL), port("x_out", 2)]
        + ([port("seen", 2)] if condition == "always" else []),
        [numpy_helper.from_array(np.float32(100.0), "bound")],
    )
    outputs = ["y", "all"] if condition == "always" else ["y"]
    return model_of(
        [helper.make_node("Loop", ["limit", "", "x"], outputs, body=body)],
        [port("x", 2)],
        [port("y", 2), port("all", "T", 2)][: len(outputs)],
        limit=np.asarray(20),
    )


def test_loop_of_a_known_number_of_runs_is_scanned_and_has_gradients() -> None:
    model = from_onnx(loop("always"), check=False)
    x = np.array([1.0, 3.0], np.float32)
    y, collected = jax.jit(lambda x: model(x))(x)
    np.testing.assert_allclose(y, x * 2**20)
    np.testing.assert_allclose(collected, x * 2.0 ** np.arange(1, 21)[:, None])
    slope = jax.grad(lambda x: model(x)[0].sum())(jnp.asarray(x))
    np.testing.assert_allclose(slope, [2.0**20] * 2)


def test_loop_ends_where_the_data_says() -> None:
    model = from_onnx(loop("while"))
    y = jax.jit(lambda x: model(x))(np.array([1.0, 3.0], np.float32))
    np.testing.assert_allclose(y, [64.0, 192.0])  # 3 · 2^6 is the first that is not below 100


def test_scan_sums_rows() -> None:
    body = helper.make_graph(
        [
            helper.make_node("Add", ["s_in", "row"], ["s_out"]),
            helper.make_node("Identity", ["s_out"], ["seen"]),
        ],
        "body",
        [port("s_in", 2), port("row", 2)],
        [port("s_out", 2), port("seen", 2)],
    )
    node = helper.make_node(
        "Scan", ["zero", "x"], ["y", "all"], body=body, num_scan_inputs=1,
        scan_input_directions=[1],
    )  # fmt: skip
    proto = model_of(
        [node], [port("x", "T", 2)], [port("y", 2), port("all", "T", 2)],
        zero=np.zeros(2, np.float32),
    )  # fmt: skip
    x = array(5, 2)
    y, collected = from_onnx(proto)(x)
    np.testing.assert_allclose(y, x.sum(0), rtol=1e-5)
    np.testing.assert_allclose(collected, np.cumsum(x[::-1], 0), rtol=1e-5)


def test_functions_of_the_model_take_attributes() -> None:
    scale = helper.make_node("Constant", [], ["factor"])
    scale.attribute.append(onnx.AttributeProto(
        name="value_float", ref_attr_name="by", type=onnx.AttributeProto.FLOAT
    ))  # fmt: skip
    function = helper.make_function(
        "mine", "Scaled", ["a"], ["b"], [scale, helper.make_node("Mul", ["a", "factor"], ["b"])],
        [helper.make_opsetid("", 17)], ["by"],
    )  # fmt: skip
    proto = model_of(
        [helper.make_node("Scaled", ["x"], ["y"], domain="mine", by=3.0)],
        [port("x", 2)], [port("y", 2)],
        functions=[function], opsets=[helper.make_opsetid("mine", 1)],
    )  # fmt: skip
    np.testing.assert_allclose(from_onnx(proto)(np.array([1.0, 2.0], np.float32)), [3.0, 6.0])


def test_operators_of_ones_own() -> None:
    proto = model_of(
        [helper.make_node("Triple", ["x"], ["y"], domain="mine", more=1.0)],
        [port("x", 2)], [port("y", 2)], opsets=[helper.make_opsetid("mine", 1)],
    )  # fmt: skip
    with pytest.raises(nx.ConversionError, match=r"(?s)mine::Triple.*register_onnx_op"):
        from_onnx(proto)
    nx.register_onnx_op("mine::Triple", lambda x, *, more: 3 * x + more)
    np.testing.assert_allclose(from_onnx(proto)(np.ones(2, np.float32)), [4.0, 4.0])


def test_random_numbers_are_new_at_each_call_and_reproducible() -> None:
    proto = model_of(
        [
            helper.make_node("RandomNormalLike", ["x"], ["noise"]),
            helper.make_node("Add", ["x", "noise"], ["y"]),
        ],
        [port("x", 100)], [port("y", 100)],
    )  # fmt: skip
    x = np.zeros(100, np.float32)

    def drawn() -> tuple[Any, Any]:
        nx.seed(3)
        model = from_onnx(proto)
        return model(x), model(x)

    (first, second), (again, _) = drawn(), drawn()
    assert not np.array_equal(first, second)
    np.testing.assert_array_equal(first, again)


def test_a_mesh_shards_it_by_the_paths_of_its_parameters() -> None:
    x, y = array(64, 4), np.random.default_rng(1).integers(0, 3, 64)
    losses = []
    for devices in (["tpu:0"], [f"tpu:{i}" for i in range(8)]):
        with nx.distribute.Strategy(devices).scope():
            model = from_onnx(perceptron(), check=False)
        model.compile(
            optimizer=nx.optim.SGD(0.1),
            loss=nx.losses.SparseCategoricalCrossentropy(from_logits=True),
        )
        losses.append(model.fit(x, y, batch_size=16, epochs=2, verbose=0).history["loss"])
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-5)


@pytest.mark.tpu_compile
def test_preflight_takes_it() -> None:
    model = from_onnx(perceptron(), check=False)
    model.compile(
        optimizer=nx.optim.SGD(0.1), loss=nx.losses.SparseCategoricalCrossentropy(from_logits=True)
    )
    report = nx.preflight(model, on="v5e-1", input_shape=(64, 4))
    assert report.fits
