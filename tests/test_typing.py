"""What an editor knows of the public names, by pyright: the types that users read and rely on."""

from __future__ import annotations

import inspect
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import get_overloads

import pytest

pytest.importorskip("pyright", reason="the type checker is of the development tools")

pytestmark = pytest.mark.pure

PROGRAM = """
import jax
import numpy as np
import neurenix as nx
from neurenix import nn
from neurenix.preflight import Report

x, y = np.ones((4, 2), "float32"), np.ones(4, "int32")
model = nn.Sequential(nn.Linear(2, 1))
layer = nn.Linear(2, 1)


@nx.jit
def step(layer: nn.Linear, x: jax.Array, *, scale: float = 1.0) -> jax.Array:
    return layer(x) * scale


@nx.jit(donate=False)
def kept(layer: nn.Linear) -> int:
    return 1


def double(x: nx.Tensor) -> nx.Tensor:
    return x * 2


report = nx.preflight(model, x, y, on="v5e-8")


class Loop:
    @nx.jit
    def step(self, count: int) -> str:
        return ""
"""

TYPES = {
    "step": "JitFunction[(layer: Linear, x: Array, *, scale: float = 1), Array]",
    "step.compilations": "int",
    "kept(layer)": "int",
    "Loop().step": "JitFunction[(count: int), str]",
    "nx.jit(layer)": "JitFunction[(x: Array), Array]",
    "nx.multi_step(step, steps=2)": "JitFunction[..., Any]",
    "model.compile(optimizer='adam', loss='mse')": "Sequential",
    "model.fit(x, y)": "History",
    "nx.preflight(model, x, y, on='v5e-8')": "Report",
    "nx.preflight(model, x, y, on=['v5e-8', 'v6e-8'])": "list[Report]",
    "nx.preflight.search(model, x, y, on=['v5e-8'])": "Plan",
    "nx.preflight.largest_batch(model, x, y, on='v5e-8')": "LargestBatch",
    "nx.preflight.CompileOptions(timeout_seconds=60.0)": "CompileOptions",
    "model.trainer": "Trainer | Any",
    "report.step_time": "StepTime | Any",
    "report.step_time.seconds": "float | Any",
    "double(nx.zeros((2, 3)))": "Array",
    "double(nx.Tensor([1, 2], dtype='int8'))": "Array",
    "nx.tensor([1, 2], dtype='int8', device='cpu')": "Array",
    "nx.array([1.0])": "Array",
    "nx.matmul(x, x)": "Array",
    "nx.fft.fft(x)": "Array",
    "nx.devices()": "list[Device]",
    "nx.simulate('v5e-8')": "SimulatedSlice",
    "nx.data.Dataset.from_arrays(x, y).batch(2)": "Dataset",
}
MISTAKES = (
    "step(3)",
    "Loop().step('x')",
    "nx.preflight(model)",
    "nx.preflight.serach",
    "nx.zeroes((2, 3))",
)


def checked(tmp_path: Path, lines: list[str]) -> list[tuple[str, str]]:
    """Return ``(severity, message)`` of each line below the program that has a message."""
    (tmp_path / "user.py").write_text(PROGRAM + "".join(f"{line}\n" for line in lines))
    root = str(Path(__file__).parents[1] / "src")
    (tmp_path / "pyrightconfig.json").write_text(json.dumps({"extraPaths": [root]}))
    done = subprocess.run(
        [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable, "."],
        cwd=tmp_path,
        env={**os.environ, "PYRIGHT_PYTHON_IGNORE_WARNINGS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    found = json.loads(done.stdout)["generalDiagnostics"]
    told = {entry["range"]["start"]["line"]: entry for entry in found}
    first = PROGRAM.count("\n")
    assert not [line for line in told if line < first], found
    return [
        (told[line]["severity"], told[line]["message"]) if line in told else ("", "")
        for line in range(first, first + len(lines))
    ]


def test_an_editor_knows_types_and_marks_mistakes(tmp_path: Path) -> None:
    asked = [f"reveal_type({expression})" for expression in TYPES]
    answers = checked(tmp_path, [*asked, *MISTAKES])
    told, wrong = answers[: len(TYPES)], answers[len(TYPES) :]
    pairs = zip(TYPES, told, strict=True)
    shown = {e: message.rpartition(' is "')[2][:-1] for e, (_, message) in pairs}
    assert shown == TYPES
    assert [severity for severity, _ in wrong] == ["error"] * len(MISTAKES), wrong


def test_the_names_of_preflight_are_those_of_its_module() -> None:
    from neurenix import preflight
    from neurenix.preflight.namespace import PreflightNamespace

    own = {name for name in vars(PreflightNamespace) if not name.startswith("_")}
    assert own == set(preflight.__all__) - {"preflight"}
    for name in own:
        assert getattr(PreflightNamespace, name) is getattr(preflight, name), name


def test_preflight_is_called_alike_by_either_name() -> None:
    from neurenix.preflight import api
    from neurenix.preflight.namespace import PreflightNamespace

    def called(function: object) -> list[list[tuple[str, object, object]]]:
        return [
            [(p.name, p.kind, p.default) for p in inspect.signature(one).parameters.values()]
            for one in get_overloads(function)  # pyright: ignore
        ]

    expected = called(api.preflight)
    found = called(PreflightNamespace.__call__)
    assert [parameters[1:] for parameters in found] == expected
    assert len(expected) == 2
