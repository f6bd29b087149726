"""A finding inside a layer of ours names the user's line that calls it, wherever it is shown."""

from __future__ import annotations

import inspect
from html import unescape
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

import neurenix as nx
from neurenix import nn
from neurenix._core.source_files import SourceLine
from neurenix.compiler.callers import called_from, on_the_stack, users_caller
from neurenix.preflight.script.run_script import preflight_script

pytestmark = pytest.mark.tpu_compile

SCRIPT = """
import numpy as np
import neurenix as nx
from neurenix import nn

model = nn.Sequential(nn.Conv2d(3, 24, 3), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(24 * 49, 10))
model.compile(optimizer="adam", loss=nx.losses.SparseCategoricalCrossentropy(from_logits=True))
x, y = np.ones((64, 16, 16, 3), "float32"), np.zeros(64, "int32")
model.fit(
    x, y, batch_size=64)
"""


def inside(report: nx.preflight.Report) -> list:
    """Return the findings whose line is a library's."""
    return [f for f in report.findings if f.source and "/neurenix/" in f.source.file]


def test_a_script_is_called_from_its_line_of_fit(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    (report,) = preflight_script(script, on=["v5e-8"])
    found = inside(report)
    assert found
    assert {(f.called_from.file, f.called_from.line) for f in found} == {(str(script), 9)}
    assert f"called from {script}:9)" in " ".join(report.text(width=400).split())
    listed = report.to_dict()["findings"]
    assert {f["called_from"] for f in listed if "/neurenix/" in (f["source"] or "")} == {
        f"{script}:9"
    }
    report.to_html(tmp_path / "page.html")
    page = unescape((tmp_path / "page.html").read_text(encoding="utf-8"))
    assert f"called from {script}:9" in page
    assert "<mark>›  9  model.fit(</mark>" in page


def test_a_model_is_called_from_the_line_of_preflight() -> None:
    model = nn.Sequential(nn.Conv2d(3, 24, 3), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(1176, 10))
    model.compile("adam", nx.losses.SparseCategoricalCrossentropy(from_logits=True))
    line = inspect.currentframe().f_lineno + 1
    report = nx.preflight(model, on="v5e-8", input_shape=(64, 16, 16, 3))
    found = inside(report)
    assert found
    assert {(f.called_from.file, f.called_from.line) for f in found} == {(__file__, line)}


def test_a_line_of_the_users_own_needs_no_other() -> None:
    def function(x: jax.Array) -> jax.Array:
        return jnp.tanh(x @ x.T) @ x

    report = nx.preflight(function, nx.spec((4096, 520)), on="v5e-1")
    assert [f.source.file for f in report.findings if f.source] != []
    assert {f.called_from for f in report.findings} == {None}


def test_the_line_of_a_stopped_script_stands_for_the_stack() -> None:
    here = on_the_stack()
    assert here is not None and here.file == __file__
    with called_from(SourceLine("train.py", 3)):
        with called_from(None):
            assert users_caller() == SourceLine("train.py", 3)
        assert on_the_stack().file == __file__
    assert users_caller().file == __file__
