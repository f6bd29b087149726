"""Export a module to ONNX and compare onnxruntime with it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import neurenix as nx


def array(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def run(path: Path, *inputs: Any) -> list[np.ndarray]:
    """Return what onnxruntime computes of a file, for inputs in its order."""
    onnxruntime = pytest.importorskip("onnxruntime")
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    names = [one.name for one in session.get_inputs()]
    return session.run(None, dict(zip(names, map(np.asarray, inputs), strict=True)))


def agree(
    module: Any, path: Path, *inputs: Any, tolerance: float = 2e-5, dynamic: bool = True
) -> Any:
    """Export a module, compare three times as many rows, and return ONNX's model."""
    nx.to_onnx(module, path, example_inputs=inputs, dynamic_batch=dynamic, check=False)
    module.eval()
    arrays = [np.asarray(x) for x in inputs]
    if dynamic:
        rows = arrays[0].shape[0]
        arrays = [
            np.concatenate([x, x[::-1], x]) if x.ndim and len(x) == rows else x for x in arrays
        ]
    compare(run(path, *arrays), jax.jit(module.__call__)(*map(jnp.asarray, arrays)), tolerance)
    return pytest.importorskip("onnx").load(path)


def compare(found: list[np.ndarray], wanted: Any, tolerance: float = 2e-5) -> None:
    """Compare results with the leaves of others, relative to the largest number of each."""
    leaves = jax.tree.leaves(wanted)
    assert len(found) == len(leaves)
    for ours, leaf in zip(found, leaves, strict=True):
        theirs = np.asarray(leaf)
        assert ours.shape == theirs.shape
        if theirs.dtype.kind in "biu":
            np.testing.assert_array_equal(ours, theirs)
            continue
        finite = np.isfinite(theirs)
        np.testing.assert_array_equal(np.where(finite, 0, ours), np.where(finite, 0, theirs))
        scale = max(float(np.abs(theirs[finite]).max(initial=0.0)), 1e-6)
        np.testing.assert_allclose(
            np.where(finite, ours, 0), np.where(finite, theirs, 0), rtol=0, atol=tolerance * scale
        )
