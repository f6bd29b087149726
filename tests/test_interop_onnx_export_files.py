"""What ``nx.to_onnx`` writes, says and refuses."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import neurenix as nx
from neurenix import nn
from neurenix.interop.onnx import writer
from neurenix.interop.onnx.lowering import registry
from onnx_export import agree, array, compare, run

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

pytestmark = [pytest.mark.interop, pytest.mark.cpu8]


class Function(nn.Module):
    """A function as a module."""

    def __init__(self, function: Any) -> None:
        self.function = function

    def __call__(self, *inputs: Any, **named: Any) -> Any:
        return self.function(*inputs, **named)


def network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm(8), nn.Dropout(0.5), nn.Linear(8, 2))


def names(values: Any) -> list[str]:
    return [one.name for one in values]


def sizes(value: Any) -> list[Any]:
    shape = value.type.tensor_type.shape
    return [size.dim_param or size.dim_value for size in shape.dim]


def test_the_file_has_named_weights_a_symbolic_batch_and_a_stated_version(tmp_path: Path) -> None:
    model = network()
    path = tmp_path / "folder" / "model.onnx"
    nx.to_onnx(model, path, example_inputs=nx.zeros((3, 4)))
    graph = onnx.load(path).graph
    stored = {one.name: onnx.numpy_helper.to_array(one) for one in graph.initializer}
    for name, weight in model.parameters().items():
        np.testing.assert_array_equal(stored[name], weight)
    assert {"layers.1.mean", "layers.1.var"} <= {*stored}
    assert sizes(graph.input[0]) == ["batch", 4] and sizes(graph.output[0]) == ["batch", 2]
    loaded = onnx.load(path)
    assert (loaded.ir_version, loaded.opset_import[0].version) == (10, 21)
    assert loaded.producer_name == "neurenix" and list(path.parent.iterdir()) == [path]


def test_a_model_in_training_mode_is_exported_in_evaluation_and_stays_as_it_was(
    tmp_path: Path,
) -> None:
    model, x = network().train(), array(5, 4)
    before = jax.tree.map(np.asarray, nnx.to_pure_dict(nnx.state(model, nnx.BatchStat)))
    nx.to_onnx(model, tmp_path / "model.onnx", example_inputs=x)
    assert model.layers[2].deterministic is False
    after = nnx.to_pure_dict(nnx.state(model, nnx.BatchStat))
    jax.tree.map(np.testing.assert_array_equal, after, before)
    compare(run(tmp_path / "model.onnx", x), model.eval()(jnp.asarray(x)))


def test_the_largest_difference_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    nx.to_onnx(network(), tmp_path / "model.onnx", example_inputs=nx.zeros((1, 4)))
    said = capsys.readouterr().err
    assert "Sequential exported to" in said and "largest difference from onnxruntime" in said
    nx.to_onnx(network(), tmp_path / "m.onnx", example_inputs=nx.zeros((1, 4)), check=False)
    assert "not compared" in capsys.readouterr().err


def test_a_difference_is_an_error_and_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = registry._LOWERINGS["cos"]

    def sine_as_cosine(b: Any, equation: Any, x: Any) -> Any:
        return b.elementwise("Cos", [x], equation.outvars[0].aval)

    monkeypatch.setitem(registry._LOWERINGS, "sin", sine_as_cosine)
    assert wrong is registry._LOWERINGS["cos"]
    path = tmp_path / "model.onnx"
    path.write_text("before")
    with pytest.raises(nx.ConversionError, match="computes something else"):
        nx.to_onnx(Function(jnp.sin), path, example_inputs=array(2, 3))
    assert path.read_text() == "before" and list(tmp_path.iterdir()) == [path]


def test_inputs_and_outputs_have_names(tmp_path: Path) -> None:
    class Net(nn.Module):
        def __call__(self, tokens: Any, mask: Any = None, *, scale: float = 1.0) -> Any:
            total = tokens.sum(1) * scale if mask is None else (tokens * mask).sum(1) * scale
            return {"total": total, "parts": (tokens + 1, {"double": tokens * 2})}

    path, x = tmp_path / "model.onnx", array(3, 4)
    nx.to_onnx(Net(), path, example_inputs=(x, x))
    graph = onnx.load(path).graph
    assert names(graph.input) == ["tokens", "mask"]
    assert names(graph.output) == ["parts.0", "parts.1.double", "total"]
    nx.to_onnx(Net(), path, example_inputs={"mask": x, "tokens": x, "scale": 2.0})
    assert names(onnx.load(path).graph.input) == ["mask", "tokens"]
    compare(run(path, 2 * x, x), Net()(jnp.asarray(x), jnp.asarray(2 * x), scale=2.0))
    nx.to_onnx(Net(), path, example_inputs=x, input_names=["ids"], output_names=["a", "b", "c"])
    graph = onnx.load(path).graph
    assert names(graph.input) == ["ids"] and names(graph.output) == ["a", "b", "c"]
    with pytest.raises(nx.ArgumentError, match="output_names needs one name for each of"):
        nx.to_onnx(Net(), path, example_inputs=x, output_names=["a"])
    with pytest.raises(nx.ArgumentError, match="'ids', which is the name of an input"):
        nx.to_onnx(
            Net(), path, example_inputs=x, input_names=["ids"], output_names=["ids", "b", "c"]
        )
    double = Function(lambda x: {"x": x.T @ x, "matmul": x @ x.T})  # names that are taken or made
    nx.to_onnx(double, path, example_inputs=x)
    assert names(onnx.load(path).graph.output) == ["matmul", "x"]
    nx.to_onnx(
        Function(lambda pair: pair["a"] - pair["b"]), path, example_inputs=({"a": x, "b": x},)
    )
    assert names(onnx.load(path).graph.input) == ["input_0.a", "input_0.b"]
    nx.to_onnx(Function(lambda x: (x, x * 2)), path, example_inputs=x)
    assert names(onnx.load(path).graph.output) == ["output.0", "output.1"]


def test_results_under_names_of_inputs_are_numbered(tmp_path: Path) -> None:
    class Net(nn.Module):
        def __call__(self, x: Any) -> Any:
            return {"x": jnp.sin(x), "cos": jnp.cos(x), "same": x}

    path, x = tmp_path / "model.onnx", array(3, 4)
    nx.to_onnx(Net(), path, example_inputs=x)
    assert names(onnx.load(path).graph.output) == ["cos", "same", "x_1"]
    compare(run(path, x), Net()(jnp.asarray(x)))


def test_an_input_that_is_not_used_stays(tmp_path: Path) -> None:
    path, x = tmp_path / "model.onnx", array(3, 4)
    nx.to_onnx(Function(lambda x, y: x + 1), path, example_inputs=(x, x))
    assert len(onnx.load(path).graph.input) == 2
    compare(run(path, x, x), [x + 1])


def test_a_batch_can_be_fixed(tmp_path: Path) -> None:
    path, x = tmp_path / "model.onnx", array(3, 4)
    nx.to_onnx(network(), path, example_inputs=x, dynamic_batch=False)
    assert sizes(onnx.load(path).graph.input[0]) == [3, 4]
    first = Function(lambda x: x[0] if x.shape[0] == 3 else x.reshape(3, -1)[0])
    nx.to_onnx(first, path, example_inputs=x, dynamic_batch=False)
    compare(run(path, x), [x[0]])


def test_a_function_of_the_batch_size_says_so(tmp_path: Path) -> None:
    needs = Function(lambda x: x.reshape(2, -1))
    with pytest.raises(nx.ConversionError, match="dynamic_batch=False"):
        nx.to_onnx(needs, tmp_path / "model.onnx", example_inputs=array(4, 3))
    nx.to_onnx(needs, tmp_path / "model.onnx", example_inputs=array(4, 3), dynamic_batch=False)


def test_an_input_of_another_length_is_fixed(tmp_path: Path) -> None:
    path, x, table = tmp_path / "model.onnx", array(3, 4), array(7, 4)
    nx.to_onnx(Function(lambda x, t: x @ t.T), path, example_inputs=(x, table))
    graph = onnx.load(path).graph
    assert [sizes(one) for one in graph.input] == [["batch", 4], [7, 4]]
    compare(run(path, array(9, 4), table), [array(9, 4) @ table.T])


def test_shapes_stand_for_inputs(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    nx.to_onnx(network(), path, example_inputs=nx.spec((3, 4)))
    nx.to_onnx(nn.Embedding(5, 2), path, example_inputs=nx.spec((3, 4), "int32"))
    assert run(path, np.full((2, 4), 4, np.int32))[0].shape == (2, 4, 2)


def test_a_module_of_flax_is_exported(tmp_path: Path) -> None:
    class Net(nnx.Module):
        def __init__(self) -> None:
            self.linear = nnx.Linear(4, 3, rngs=nnx.Rngs(0))
            self.norm = nnx.BatchNorm(3, rngs=nnx.Rngs(0))
            self.dropout = nnx.Dropout(0.5, rngs=nnx.Rngs(0))
            # It draws a key for its first state, which is zero.
            self.layers = nnx.RNN(nnx.LSTMCell(3, 5, rngs=nnx.Rngs(0)), rngs=nnx.Rngs(0))

        def __call__(self, x: Any) -> Any:
            return self.layers(self.dropout(self.norm(self.linear(x))))

    path, x = tmp_path / "model.onnx", array(3, 6, 4)
    net = Net()
    nx.to_onnx(net, path, example_inputs=x)
    net.eval()
    compare(run(path, x), net(jnp.asarray(x)))


def test_weights_that_are_shared_or_no_variables_are_written(tmp_path: Path) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            self.first = nn.Linear(4, 4)
            self.second = self.first
            self.third = nn.Linear(4, 4)
            self.third.kernel = self.first.kernel
            self.table = nnx.data(jnp.arange(4.0))

        def __call__(self, x: Any) -> Any:
            return self.third(self.second(self.first(x))) + self.table

    agree(Net(), tmp_path / "model.onnx", array(3, 4))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_is_stored_as_such(dtype: str, tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)).to(dtype=dtype)
    path, x = tmp_path / "model.onnx", array(3, 4)
    nx.to_onnx(model, path, example_inputs=x)
    stored = {one.name: one.data_type for one in onnx.load(path).graph.initializer}
    wanted = getattr(onnx.TensorProto, dtype.upper())
    assert {stored[name] for name in model.parameters()} == {wanted}
    compare(run(path, x), model(jnp.asarray(x)), 2e-2)
    nx.to_onnx(model, path, example_inputs=jnp.asarray(x, dtype))  # its results are of that dtype


def test_a_model_that_computes_in_bfloat16_is_exported(tmp_path: Path) -> None:
    model = nx.models.build("tiny", num_layers=2, dtype="bfloat16")
    nx.to_onnx(model, tmp_path / "model.onnx", example_inputs=nx.zeros((2, 8), nx.int32))


def test_large_weights_are_beside_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "_LARGEST_BYTES", 1000)
    model, path, x = nn.Linear(40, 30), tmp_path / "model.onnx", array(3, 40)
    nx.to_onnx(model, path, example_inputs=x)
    assert sorted(one.name for one in tmp_path.iterdir()) == ["model.onnx", "model.onnx.data"]
    assert path.stat().st_size < 1000
    compare(run(path, x), model(jnp.asarray(x)))
    moved = tmp_path / "elsewhere"
    moved.mkdir()
    for one in (path, tmp_path / "model.onnx.data"):
        one.rename(moved / one.name)
    compare(run(moved / "model.onnx", x), model(jnp.asarray(x)))


# What cannot be exported


def test_all_primitives_without_onnx_are_named_with_their_lines(tmp_path: Path) -> None:
    def bits(x: Any) -> Any:
        z = jax.lax.population_count(x)
        return jax.lax.scan(lambda c, v: (c + jax.lax.clz(v), None), z[0], z)[0]

    with pytest.raises(nx.ConversionError) as caught:
        nx.to_onnx(Function(bits), tmp_path / "m.onnx", example_inputs=np.ones((2, 3), np.int32))
    said = str(caught.value)
    assert "population_count: there is no ONNX for it here" in said and "clz: " in said
    assert said.count(f"{Path(__file__).name}:") == 2
    assert not list(tmp_path.iterdir())


def test_random_numbers_are_refused(tmp_path: Path) -> None:
    class Noisy(nn.Module):
        def __init__(self) -> None:
            self.rngs = nnx.Rngs(0)

        def __call__(self, x: Any) -> Any:
            return x + jax.random.normal(self.rngs.noise(), x.shape)

    with pytest.raises(nx.ConversionError, match="draws random numbers, in evaluation too"):
        nx.to_onnx(Noisy(), tmp_path / "m.onnx", example_inputs=array(2, 3), dynamic_batch=False)
    fixed = Function(lambda x: x + jax.random.normal(jax.random.key(0), (3,)))
    with pytest.raises(nx.ConversionError, match="draws random numbers"):
        nx.to_onnx(fixed, tmp_path / "m.onnx", example_inputs=array(2, 3))


def test_what_is_no_module_or_has_no_inputs_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    with pytest.raises(nx.ArgumentTypeError, match="takes an NNX module; got function"):
        nx.to_onnx(lambda x: x, path, example_inputs=array(2, 3))
    with pytest.raises(nx.ArgumentError, match="needs example inputs"):
        nx.to_onnx(network(), path, example_inputs=None)
    with pytest.raises(nx.ArgumentTypeError, match="takes 1 positional input"):
        nx.to_onnx(network(), path, example_inputs=(array(2, 4), array(2, 4)))
    with pytest.raises(nx.ArgumentError, match="abstract"):
        nx.to_onnx(nx.models.abstract("tiny"), path, example_inputs=nx.zeros((1, 2), nx.int32))
    with pytest.raises(nx.ShapeError, match="Linear"):
        nx.to_onnx(network(), path, example_inputs=array(2, 5))
    with pytest.raises(nx.ConversionError, match="value of an array"):
        nx.to_onnx(Function(lambda x: x if x.sum() > 0 else -x), path, example_inputs=array(2, 5))
    assert not list(tmp_path.iterdir())


def test_a_place_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(nx.ConversionError, match="m.onnx cannot be written"):
        nx.to_onnx(network(), tmp_path / "file" / "m.onnx", example_inputs=array(2, 4))


def test_without_the_extra_the_error_says_how_to_install_it() -> None:
    code = (
        "import sys; sys.modules['onnx'] = None\n"
        "import neurenix as nx\n"
        "try: nx.to_onnx(nx.nn.Linear(2, 2), 'm.onnx', example_inputs=nx.zeros((1, 2)))\n"
        "except nx.MissingExtraError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert 'pip install "neurenix[onnx]"' in done.stdout, done.stderr


def test_without_onnxruntime_it_says_that_it_did_not_compare(tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules['onnxruntime'] = None\n"
        "import neurenix as nx\n"
        f"nx.to_onnx(nx.nn.Linear(2, 2), {str(tmp_path / 'm.onnx')!r}, "
        "example_inputs=nx.zeros((1, 2)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "not compared: onnxruntime is not installed" in done.stderr
    assert (tmp_path / "m.onnx").exists()


def test_importing_the_exporter_does_not_import_onnx() -> None:
    code = (
        "import sys, neurenix.interop.onnx\n"
        "print([name for name in sys.modules if name.startswith('onnx')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stderr
