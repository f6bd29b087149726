"""Damaged, foreign and malicious ONNX files: one clear error each, and never a crash."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import neurenix as nx

onnx = pytest.importorskip("onnx")

from onnx import TensorProto, helper, numpy_helper  # noqa: E402  after the skip

from neurenix.interop.onnx import from_onnx  # noqa: E402

pytestmark = [pytest.mark.interop, pytest.mark.cpu8]


def port(name: str, *shape: Any, dtype: int = TensorProto.FLOAT) -> Any:
    return helper.make_tensor_value_info(name, dtype, list(shape))


def model_of(nodes: Any, constants: Any = (), *, opset: int = 17, output: str = "y") -> Any:
    graph = helper.make_graph(nodes, "graph", [port("x", "N", 4)], [port(output)], list(constants))
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)


def product() -> Any:
    weight = numpy_helper.from_array(np.ones((4, 2), np.float32), "w")
    return model_of([helper.make_node("MatMul", ["x", "w"], ["y"])], [weight])


def external(location: str, **entries: int) -> Any:
    proto = product()
    (tensor,) = proto.graph.initializer
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in {"location": location, **entries}.items():
        tensor.external_data.add(key=key, value=str(value))
    return proto


def relu(inputs: list[str], outputs: list[str]) -> Any:
    return helper.make_node("Relu", inputs, outputs)


def claims(*dims: int) -> Any:
    proto = product()
    proto.graph.initializer[0].dims[:] = dims
    return proto


def unknown_type() -> Any:
    proto = product()
    proto.graph.initializer[0].data_type = 99
    return proto


def twice() -> Any:
    proto = product()
    proto.graph.initializer.append(proto.graph.initializer[0])
    return proto


def recursive() -> Any:
    function = helper.make_function(
        "mine", "F", ["a"], ["b"], [helper.make_node("F", ["a"], ["b"], domain="mine")],
        [helper.make_opsetid("mine", 1)],
    )  # fmt: skip
    proto = model_of([helper.make_node("F", ["x"], ["y"], domain="mine")])
    proto.functions.append(function)
    proto.opset_import.append(helper.make_opsetid("mine", 1))
    return proto


def gigantic() -> Any:
    sizes = numpy_helper.from_array(np.array([2**30, 2**30]), "sizes")
    return model_of(
        [helper.make_node("ConstantOfShape", ["sizes"], ["z"]), relu(["z"], ["y"])], [sizes]
    )


def sequence() -> Any:
    proto = model_of([relu(["x"], ["y"])])
    proto.graph.input[0].CopyFrom(
        helper.make_tensor_sequence_value_info("x", TensorProto.FLOAT, [4])
    )
    return proto


@pytest.mark.parametrize(
    ("proto", "message"),
    [
        (model_of([relu(["b"], ["a"]), relu(["a"], ["b"])], output="a"), "cycle"),
        (model_of([relu(["nowhere"], ["y"])]), "'nowhere' before anything makes it"),
        (model_of([relu(["x"], ["y"]), relu(["x"], ["y"])]), "makes the value 'y' twice"),
        (model_of([relu(["x"], ["z"])]), "returns 'y', which nothing makes"),
        (model_of([relu(["x"], ["y"])], opset=999), "operator set 999"),
        (model_of([helper.make_node("Relu", ["x"], ["y"], domain="com.unknown")]), "com.unknown"),
        (model_of([helper.make_node("NoSuch", ["x"], ["y"])]), "NoSuch"),
        (model_of([helper.make_node("Relu", ["x"], ["y"], slope=0.1)]), "'slope'"),
        (claims(2**31, 2**31), "takes .* bytes, and has 32"),
        (claims(-4, -2), "negative"),
        (claims(4, 3), "takes 48 bytes, and has 32"),
        (unknown_type(), "unknown element type 99"),
        (twice(), "two tensors called 'w'"),
        (recursive(), "calls itself"),
        (sequence(), "not a tensor"),
        (external("weights.bin"), "path of the .onnx file"),
    ],
)
def test_a_model_that_contradicts_itself(proto: Any, message: str) -> None:
    with pytest.raises(nx.ConversionError, match=message):
        from_onnx(proto, check=False)(np.ones((2, 4), np.float32))


def test_a_gigantic_array_is_refused_before_memory_is_taken() -> None:
    model = from_onnx(gigantic(), check=False)
    with pytest.raises(nx.ConversionError, match="asks for an array of shape"):
        model(np.ones((2, 4), np.float32))


@pytest.mark.parametrize(
    ("location", "entries", "message"),
    [
        ("../secret.bin", {}, "outside of the model's folder"),
        ("/etc/passwd", {}, "outside of the model's folder"),
        ("link.bin", {}, "outside of the model's folder"),
        ("", {}, "outside of the model's folder"),
        ("none.bin", {}, "not there"),
        ("short.bin", {}, "has 8"),
        ("whole.bin", {"offset": 8}, "has 32"),
        ("whole.bin", {"offset": -8}, "at bytes -8"),
        ("whole.bin", {"length": 16}, "takes 32 bytes, and has 16"),
    ],
)
def test_external_data_stays_in_the_folder(
    tmp_path: Path, location: str, entries: dict[str, int], message: str
) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (tmp_path / "secret.bin").write_bytes(bytes(32))
    (folder / "link.bin").symlink_to(tmp_path / "secret.bin")
    (folder / "short.bin").write_bytes(bytes(8))
    (folder / "whole.bin").write_bytes(np.arange(8, dtype=np.float32).tobytes())
    path = folder / "model.onnx"
    path.write_bytes(external(location, **entries).SerializeToString())
    with pytest.raises(nx.ConversionError, match=message):
        from_onnx(path)


def test_external_data_is_read(tmp_path: Path) -> None:
    values = np.arange(8, dtype=np.float32).reshape(4, 2)
    (tmp_path / "whole.bin").write_bytes(bytes(16) + values.tobytes())
    path = tmp_path / "model.onnx"
    path.write_bytes(external("whole.bin", offset=16).SerializeToString())
    x = np.ones((3, 4), np.float32)
    np.testing.assert_allclose(from_onnx(path)(x), x @ values)


@pytest.mark.parametrize("content", [b"", b"\x00" * 100, b"PK\x03\x04 no model", b"{}"])
def test_files_of_something_else(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(content)
    with pytest.raises(nx.ConversionError, match="no ONNX model, or cut off"):
        from_onnx(path)


def test_missing_files_and_other_types(tmp_path: Path) -> None:
    with pytest.raises(nx.ConversionError, match="There is no file"):
        from_onnx(tmp_path / "none.onnx")
    with pytest.raises(nx.ConversionError, match="is a folder"):
        from_onnx(tmp_path)
    with pytest.raises(nx.ArgumentTypeError, match="takes the path"):
        from_onnx(3)


def test_wrong_calls() -> None:
    model = from_onnx(product(), check=False)
    x = np.ones((2, 4), np.float32)
    with pytest.raises(nx.ArgumentError, match="'x' is missing"):
        model()
    with pytest.raises(nx.ArgumentError, match="takes 1 inputs"):
        model(x, x)
    with pytest.raises(nx.ArgumentError, match="'z' is none of its inputs"):
        model(x, z=x)
    with pytest.raises(nx.ArgumentError, match="'x' was given twice"):
        model(x, x=x)
    with pytest.raises(nx.ShapeError, match=r"\(N, 4\); got \(2, 3\)"):
        model(np.ones((2, 3), np.float32))
    with pytest.raises(nx.ShapeError, match=r"\(N, 4\); got \(4,\)"):
        model(np.ones(4, np.float32))
    with pytest.raises(nx.ArgumentTypeError, match="float32; got int32"):
        model(np.ones((2, 4), np.int32))


def test_all_operators_without_a_function_are_named_at_once() -> None:
    nodes = [helper.make_node("NoSuch", ["x"], ["a"]), helper.make_node("Nor", ["a"], ["y"])]
    with pytest.raises(nx.ConversionError, match=r"(?s)NoSuch.*Nor"):
        from_onnx(model_of(nodes))


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(nx.MissingExtraError, match=r"neurenix\[onnx\]"):
        from_onnx("model.onnx")


def test_five_hundred_damaged_files() -> None:
    """Bytes changed, cut out or repeated: each file converts, or is one error of ours."""
    data = product().SerializeToString()
    branch = helper.make_graph([relu(["x"], ["b"])], "branch", [], [port("b")])
    node = helper.make_node("If", ["c"], ["y"], then_branch=branch, else_branch=branch)
    constant = helper.make_node(
        "Constant", [], ["c"], value=helper.make_tensor("v", TensorProto.BOOL, [], [1])
    )
    data = [data, model_of([constant, node]).SerializeToString()]
    rng = np.random.default_rng(0)
    refused = 0
    for number in range(500):
        damaged = bytearray(data[number % 2])
        place = int(rng.integers(len(damaged)))
        if number % 5 == 0:
            del damaged[place:]
        elif number % 5 == 1:
            del damaged[place : place + int(rng.integers(1, 9))]
        elif number % 5 == 2:
            damaged[place:place] = damaged[: int(rng.integers(1, 30))]
        else:
            for _ in range(number % 7 + 1):
                damaged[int(rng.integers(len(damaged)))] = int(rng.integers(256))
        try:
            model = from_onnx(bytes(damaged), check=False)
            model(**{name: np.ones((2, 4), np.float32) for name in model.input_names})
        except nx.NeurenixError:
            refused += 1
    assert refused > 200
