"""Example inputs of a PyTorch module as shapes, and shapes as example inputs."""

from __future__ import annotations

import sys
from typing import Any

import jax

from neurenix._core.errors import ArgumentTypeError
from neurenix.interop.torch.dtypes import load_torch, to_shape


def is_torch_module(target: Any) -> bool:
    """Tell whether an object is a ``torch.nn.Module``, without importing PyTorch.

    Example:
        >>> is_torch_module(nx.nn.Linear(2, 2))
        False
    """
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(target, torch.nn.Module)


def specs_of(inputs: Any) -> Any:
    """Return tensors, nested in tuples, lists and dicts, as shapes and dtypes.

    Raises:
        ArgumentTypeError: a leaf has no shape, so it cannot be an input of a step.

    Example:
        >>> import torch
        >>> specs_of({"x": torch.zeros(2, 3, device="meta")})
        {'x': ShapeDtypeStruct(shape=(2, 3), dtype=float32)}
    """
    torch = load_torch()

    def spec(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor):
            return to_shape(leaf)
        if hasattr(leaf, "shape") and hasattr(leaf, "dtype"):
            return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype)
        raise ArgumentTypeError(
            f"example_inputs has a {type(leaf).__name__}, {leaf!r}; inputs of a training step are "
            "tensors. Bind other arguments in a module that calls this one."
        )

    return jax.tree.map(spec, inputs)


def example_tensors(module: Any, specs: Any) -> Any:
    """Return tensors for shapes and dtypes: abstract ones where the module is on ``meta``.

    Example:
        >>> import torch
        >>> example_tensors(torch.nn.Linear(2, 2), (nx.spec((3, 2)),))[0].shape
        torch.Size([3, 2])
    """
    torch = load_torch()
    devices = {tensor.device for tensor in module.parameters()}
    device = "meta" if any(device.type == "meta" for device in devices) else "cpu"

    def tensor(leaf: Any) -> Any:
        dtype = getattr(torch, str(leaf.dtype))
        if dtype is torch.int32:
            dtype = torch.int64  # what 64-bit integers, PyTorch's own, became
        return torch.zeros(leaf.shape, dtype=dtype, device=device)

    return jax.tree.map(tensor, specs)


def varied(inputs: Any) -> Any:
    """Return inputs in which no floating-point tensor is one number over and over.

    Batch statistics of equal numbers are rounding alone, and so are gradients through them: inputs
    of zeros, which are what people have at hand, would compare nothing else. Zeros become numbers
    from 0 to 1, and another number becomes half of it to all of it.

    Example:
        >>> import torch
        >>> bool(varied((torch.zeros(2, 3),))[0].std() > 0)
        True
    """
    torch = load_torch()
    generator = torch.Generator().manual_seed(0)

    def one(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor) or not leaf.is_floating_point() or leaf.numel() < 2:
            return leaf
        first = leaf.reshape(-1)[0]
        if not bool((leaf == first).all()):
            return leaf
        numbers = torch.rand(leaf.shape, generator=generator).to(leaf)
        return numbers if first == 0 else first * (0.5 + 0.5 * numbers)

    return load_torch("torch.utils._pytree").tree_map(one, inputs)
