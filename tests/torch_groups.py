"""Many functions of PyTorch converted as one module, and each compared by itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from flax import nnx

from neurenix.interop.torch import from_torch

nn = torch.nn
TOLERANCE = 1e-4  # of a norm, as the table of architectures has it


def image(*shape: int, seed: int = 0) -> Any:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


class Part(nn.Module):
    """A function of a parameter of its own and of inputs: its gradient is seen whole."""

    def __init__(self, function: Any, x: Any) -> None:
        super().__init__()
        self.x = nn.Parameter(x.clone())
        self.function = function

    def forward(self, *rest: Any) -> Any:
        return self.function(self.x, *rest)


class Group(nn.Module):
    """Functions of equal inputs; the first is a parameter."""

    def __init__(self, functions: Mapping[str, Any], x: Any) -> None:
        super().__init__()
        self.names = list(functions)
        self.parts = nn.ModuleList(Part(function, x) for function in functions.values())

    def forward(self, *rest: Any) -> Any:
        pairs = zip(self.names, self.parts, strict=True)
        return {name: part(*rest) for name, part in pairs}


def differences(
    functions: Mapping[str, Any], x: Any, *rest: Any, training: bool = True
) -> dict[str, float]:
    """Return the largest relative difference of outputs, buffers and gradients of each function.

    Args:
        functions: functions or layers by name.
        x: their first input, a parameter here.
        rest: their other inputs.
        training: in training, or in evaluation.
    """
    torch.manual_seed(0)
    group = Group(functions, x).train(training)
    # ``zero`` has the batch's axis free, and example inputs are wanted.
    model = from_torch(group, rest or (), scan=False, check=False)
    model.train() if training else model.eval()
    graph, parameters, state = nnx.split(model, nnx.Param, ...)
    given = [np.asarray(jnp.asarray(each.numpy())) for each in rest]

    @jax.jit
    def ours(parameters: Any, state: Any, given: Any) -> Any:
        def loss(parameters: Any) -> Any:
            module = nnx.merge(graph, parameters, state, copy=True)
            found = module(*given)
            total = sum((leaf * factor(leaf.shape)).sum() for leaf in _floating(found))
            return total, (found, nnx.state(module, nnx.Not(nnx.Param)))

        return jax.grad(loss, has_aux=True)(parameters)

    slopes, (found, state) = ours(parameters, state, given)
    slopes = nnx.merge(graph, slopes, state).weight_view()
    wanted = group(*rest)
    total: Any = sum(
        (leaf * torch.from_numpy(factor(tuple(leaf.shape)))).sum() for leaf in _floating(wanted)
    )
    total.backward()
    worst = {}
    for number, name in enumerate(functions):
        pairs = list(zip(_leaves(found[name]), _leaves(wanted[name]), strict=True))
        prefix = f"parts.{number}."
        pairs += [
            (slopes[n], p.grad)
            for n, p in group.named_parameters() if n.startswith(prefix) and p.grad is not None
        ]  # fmt: skip
        pairs += [(slopes[n], b) for n, b in group.named_buffers() if n.startswith(prefix)]
        worst[name] = max(_difference(a, b) for a, b in pairs)
    return worst


def factor(shape: tuple[int, ...]) -> Any:
    return np.random.default_rng(1).normal(size=shape).astype(np.float32)


def _leaves(tree: Any) -> Iterator[Any]:
    if isinstance(tree, Mapping):
        tree = list(tree.values())
    if isinstance(tree, (list, tuple)):
        for each in tree:
            yield from _leaves(each)
    else:
        yield tree


def _floating(tree: Any) -> list[Any]:
    return [leaf for leaf in _leaves(tree) if "float" in str(leaf.dtype)]


def _difference(ours: Any, wanted: Any) -> float:
    a, b = np.asarray(ours), wanted.detach().numpy()
    assert a.shape == b.shape, (a.shape, b.shape)
    if a.dtype.kind in "biu":
        return float(not np.array_equal(a, b))
    scale = max(float(np.linalg.norm(b)), 1e-2)  # sums that are zero but for rounding
    return float(np.linalg.norm(a.astype(np.float64) - b)) / scale
