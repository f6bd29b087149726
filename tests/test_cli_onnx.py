"""The commands that take a file of ONNX: check, convert, preflight."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cli_helpers import Done, commands, mistakes

onnx = pytest.importorskip("onnx")

from onnx import TensorProto, helper, numpy_helper  # noqa: E402  after the skip

from neurenix.interop.onnx.check import check  # noqa: E402

pytestmark = [pytest.mark.interop, pytest.mark.cpu8]


@pytest.fixture
def files(tmp_path: Path) -> Path:
    def port(name: str, *shape: Any) -> Any:
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)

    for name, op in (("good", "Relu"), ("bad", "NoSuch")):
        nodes = [
            helper.make_node("MatMul", ["x", "w"], ["h"], name="first"),
            helper.make_node(op, ["h"], ["y"], name="second"),
        ]
        weight = numpy_helper.from_array(np.ones((128, 10), np.float32), "w")
        graph = helper.make_graph(
            nodes, name, [port("x", "N", 128)], [port("y", "N", 10)], [weight]
        )
        made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
        (tmp_path / f"{name}.onnx").write_bytes(made.SerializeToString())
    (tmp_path / "cut.onnx").write_bytes(b"\x08")
    return tmp_path


@pytest.fixture
def run(run_python: Callable[..., Any], tmp_path: Path) -> Callable[..., Done]:
    """Run one command in a process of its own."""

    def one(name: str, *words: Any) -> Done:
        (done,) = commands(run_python, tmp_path, name, [("", tuple(map(str, words)))])
        return done

    return one


def test_check(files: Path, run: Callable[..., Done]) -> None:
    done = run("check", "good.onnx")
    assert done.status == "0" and "can be converted" in done.stdout
    assert "MatMul: 1 call" in done.stdout
    done = run("check", "bad.onnx")
    assert done.status == "1" and "Not supported: NoSuch" in done.stdout
    assert "register_onnx_op" in done.stdout


def test_check_is_as_wide_as_the_terminal(files: Path) -> None:
    report = check(files / "bad.onnx")
    for width in (40, 80):
        assert max(map(len, report.text(width).splitlines())) <= width or "/" in report.name


def test_convert(files: Path, run: Callable[..., Done]) -> None:
    done = run("convert", "good.onnx", "-o", "good.safetensors")
    assert done.status == "0" and (files / "good.safetensors").exists()
    assert "parameters: 1,280" in done.stdout and "onnxruntime" in done.stderr


@pytest.mark.tpu_compile
@pytest.mark.parametrize("loss", [None, "CrossEntropyLoss"])
def test_preflight(files: Path, run: Callable[..., Done], loss: str | None) -> None:
    more = () if loss is None else ("--loss", loss)
    done = run(
        "preflight", "--on", "v5e-8", "--batch", 64, "--json", "report.json", *more, "good.onnx"
    )
    assert done.status == "0", done
    assert "1,280 parameters" in done.stdout
    assert ("forward pass" if loss is None else "training step") in done.stdout
    (report,) = json.loads((files / "report.json").read_text())
    assert report["workload"].startswith("good.onnx")


def test_mistakes(files: Path, tmp_path: Path, run_python: Callable[..., Any]) -> None:
    for command, words, message in (
        ("check", ("cut.onnx",), "cut off"),
        ("convert", ("bad.onnx",), "NoSuch"),
        ("preflight", ("--on", "v5e-8", "good.onnx"), "--batch 64"),
        ("preflight", ("--on", "v5e-8", "--sequence", "8", "good.onnx"), "goes with --hf"),
    ):
        (said,) = mistakes(run_python, tmp_path, command, [("", words)])
        assert message in said
