"""How many tests of ONNX's own node suite pass here, compiled by XLA.

The suite is that of the installed ``onnx`` (``onnx.backend.test``), without its tests of training,
sequences, optional values and text. Each model is converted by ``nx.from_onnx`` and computed under
``jax.jit``; inputs that decide shapes are constants. Outputs are compared with the suite's, at the
suite's own tolerance. 64-bit values are 32-bit ones here, and compared as such.

    python benchmarks/onnx_suite.py [part of a name] [--write docs/onnx_operators.md]
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import sys
import warnings
from pathlib import Path
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")
# Each program runs once: XLA compiles it, and does not optimise it for long.
os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0")
import jax
import numpy as np
import onnx

import neurenix as nx
from neurenix.interop.onnx import from_onnx, operators, registry

LEFT_OUT = {
    "Sequence", "Optional", "String", "RegexFullMatch", "TfIdfVectorizer",
    "ai.onnx.preview.training", "SplitToSequence", "ConcatFromSequence",
}  # fmt: skip


def cases() -> list[Any]:
    """Return the tests that count."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from onnx.backend.test.case.node import collect_testcases

        return [case for case in collect_testcases(None) if not left_out(case.model)]


def left_out(model: Any) -> bool:
    """Tell whether a test is of training, sequences, optional values or text."""

    def named(node: Any) -> bool:
        full = f"{node.domain}.{node.op_type}"
        return any(full.startswith((f"{part}", f".{part}")) for part in LEFT_OUT)

    values = [*model.graph.input, *model.graph.output]
    other = any(value.type.WhichOneof("value") != "tensor_type" for value in values)
    text = any(value.type.tensor_type.elem_type == onnx.TensorProto.STRING for value in values)
    return other or text or any(map(named, model.graph.node))


def as_array(value: Any) -> np.ndarray:
    """Return an input or output of a test, which may be a ``TensorProto``."""
    is_tensor = isinstance(value, onnx.TensorProto)
    return onnx.numpy_helper.to_array(value) if is_tensor else np.asarray(value)


def narrowed(array: np.ndarray) -> np.ndarray:
    """Return an array in the dtype that JAX has for its own."""
    return array.astype(jax.dtypes.canonicalize_dtype(array.dtype))


def run(case: Any) -> str:
    """Return why a test fails, or an empty string."""
    try:
        model = from_onnx(case.model, check=False)
        for inputs, outputs in case.data_sets:
            inputs, outputs = list(map(as_array, inputs)), list(map(as_array, outputs))
            given = dict(zip(model.input_names, inputs, strict=False))
            known = {name: given.pop(name) for name in model.known_inputs}
            compiled = nx.jit(lambda model, given, known=known: model(**given, **known))
            arrays = {name: jax.numpy.asarray(narrowed(v)) for name, v in given.items()}
            found = compiled(model, arrays)
            found = found if isinstance(found, tuple) else (found,)
            for ours, wanted in zip(found, outputs, strict=True):
                compare(np.asarray(ours), narrowed(wanted), case.rtol, case.atol)
    except Exception as error:  # noqa: BLE001  every failure is a row of the table
        return f"{type(error).__name__}: {str(error)[:300]}"
    return ""


def compare(ours: np.ndarray, wanted: np.ndarray, rtol: float, atol: float) -> None:
    """Compare as the suite's own runner does."""
    np.testing.assert_array_equal(ours.shape, wanted.shape)
    np.testing.assert_equal(ours.dtype, wanted.dtype)
    if ours.dtype.name == "bfloat16":
        rtol = max(rtol, 2**-6)  # two steps of bfloat16
    if not ours.dtype.isbuiltin:  # NumPy cannot promote the types of ml_dtypes
        ours, wanted = ours.astype(np.float32), wanted.astype(np.float32)
    np.testing.assert_allclose(ours, wanted, rtol=rtol, atol=atol)


def main() -> None:
    """Run the suite and print what fails."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("part", nargs="?", default="")
    parser.add_argument("--write", metavar="FILE")
    options = parser.parse_args()
    found = {}
    for case in cases():
        if options.part in case.name:
            found[case.name] = run(case)
            if found[case.name]:
                print(case.name, "|", found[case.name].replace("\n", " ")[:240], flush=True)
    failed = {name: reason for name, reason in found.items() if reason}
    share = 1 - len(failed) / max(len(found), 1)
    print(json.dumps({
        "onnx": onnx.__version__, "jax": jax.__version__, "tests": len(found),
        "passed": len(found) - len(failed), "share": round(share, 4),
    }))  # fmt: skip
    kinds = collections.Counter(reason.split(":")[0] for reason in failed.values())
    print(dict(kinds), file=sys.stderr)
    if options.write:
        write(options.write, found, failed)


def write(path: str, found: dict[str, str], failed: dict[str, str]) -> None:
    """Write the page of the docs that says what does not pass."""
    passed = len(found) - len(failed)
    lines = [
        "# Operators of ONNX",
        "",
        f"Made by `benchmarks/onnx_suite.py` with onnx {onnx.__version__} and jax "
        f"{jax.__version__}, on a CPU.",
        "",
        f"**{passed} of {len(found)} tests** ({passed / len(found):.1%}) of ONNX's own node suite "
        "pass, compiled by XLA. The suite's tests of training, sequences, optional values and text "
        "are left out. 64-bit numbers are 32-bit ones here, and compared as such.",
        "",
        "## Tests that do not pass",
        "",
        "| test | why |",
        "|---|---|",
    ]
    for name, reason in sorted(failed.items()):
        said = " ".join(reason.split()).replace("|", "\\|")
        lines.append(f"| `{name}` | {said[:160]} |")
    operators.load()
    lines += [
        "",
        "## Operators that have a function here",
        "",
        "Others are computed where ONNX itself defines them by simpler ones.",
        "",
        ", ".join(f"`{name}`" for name in registry.names()) + ".",
        "",
    ]
    Path(path).write_text("\n".join(lines))


if __name__ == "__main__":
    main()
