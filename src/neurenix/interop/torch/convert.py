"""``nx.from_torch``: a PyTorch module as a Neurenix module, and the way back.

Owns the conversion and its order: export, weights, verification. Does not own what is compared
(``verify``) or how a program is computed (``interpret``).
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from neurenix import random
from neurenix._core.errors import (
    ArgumentError,
    ArgumentTypeError,
    ConversionError,
    MissingExtraError,
)
from neurenix._nnx import nnx
from neurenix.interop.torch.dtypes import is_abstract, load_torch, to_jax
from neurenix.interop.torch.dtypes import to_torch as to_tensor
from neurenix.interop.torch.examples import varied
from neurenix.interop.torch.module import TorchModule
from neurenix.interop.torch.problems import found_in, raise_any
from neurenix.interop.torch.programs import Programs, free_axes
from neurenix.interop.torch.repeats import stacked_names
from neurenix.interop.torch.storage import plan_weights
from neurenix.interop.torch.verify import verify


def from_torch(
    module: Any,
    example_inputs: Any = None,
    *,
    example_kwargs: Mapping[str, Any] | None = None,
    dynamic_shapes: Any = None,
    scan: bool = True,
    check: bool | None = None,
    remat: str = "none",
) -> TorchModule:
    """Return a PyTorch module as a Neurenix module that computes in JAX.

    The module is exported by ``torch.export`` and computed operator by operator in JAX. Its
    parameters keep their names and shapes; repeated layers are computed by one loop. A module on
    the ``meta`` device gives a module of shapes, which ``nx.preflight`` takes.

    Args:
        module: a ``torch.nn.Module``. It is not changed.
        example_inputs: tensors as its ``forward`` takes them: one, a tuple, or a dict of named
            arguments. Their values do not matter, but for the comparison, which puts various
            numbers in place of a tensor of zeros or ones.
        example_kwargs: named arguments besides.
        dynamic_shapes: axes that may have other sizes later, as ``torch.export.export`` takes
            them. By default the first axis of every tensor, the batch, may, and the second of token
            ids, the length, where the model allows. With ``{}`` no axis is free, which converts
            faster: the module is exported anew for inputs of other shapes.
        scan: compute layers that repeat as a loop, so that many compile like one.
        check: compare outputs, losses and gradients with PyTorch's on the example inputs. By
            default that is done wherever there are values to compare.
        remat: what the backward pass computes again, see ``TorchModule.with_remat``.

    Returns:
        the module; ``verification`` has the differences that were found.

    Raises:
        ArgumentError: there are no example inputs; ``check`` is True and there are no values; or
            ``remat`` needs layers that are a loop.
        ArgumentTypeError: ``module`` is no ``torch.nn.Module``.
        ConversionError: the module cannot be exported, has operators without a function here (all
            are named, see ``nx.register_torch_op``), or computes something else here.
        MissingExtraError: PyTorch is not installed.

    Example:
        >>> import torch
        >>> model = nx.from_torch(torch.nn.Linear(4, 2), (torch.ones(3, 4),))
        >>> model(nx.ones((5, 4))).shape, sorted(model.parameters())
        ((5, 2), ['bias', 'weight'])
    """
    torch = import_torch("nx.from_torch")
    if not isinstance(module, torch.nn.Module):
        raise ArgumentTypeError(
            f"nx.from_torch takes a torch.nn.Module; got {type(module).__name__}."
        )
    module = uncompiled(module)
    args, kwargs = example_arguments(module, example_inputs, example_kwargs)
    raise_any(module, found_in(module, args, kwargs))
    abstract = any(is_abstract(t) for t in [*_tensors(module), *args, *kwargs.values()])
    if check and abstract:
        raise ArgumentError(
            f"{type(module).__name__} or an example input is on the meta device, which has shapes "
            "and no values to compare with: leave check out. To compare, convert a small model of "
            "the same class with values."
        )
    if dynamic_shapes is None:
        args, kwargs = several_rows(args, kwargs)
        dynamic_shapes = free_axes(args, kwargs)
    programs = Programs(module, args, kwargs, dynamic_shapes=dynamic_shapes, scan=scan)
    training = programs.get(training=True)
    kinds, arrays = _weights(module, programs.names)
    files = _file_names(module, programs.names)
    weights = plan_weights(kinds, arrays, stacked_names(training.steps), files)
    converted = TorchModule(programs, weights, arrays, nnx.Rngs(random.next_key()))
    if not module.training:
        converted.eval()
    if check is not False and not abstract:
        args, kwargs = varied((args, kwargs))
        found = verify(module, programs, weights, converted.arrays(), args, kwargs)
        programs.verification = found
        sys.stderr.write(f"neurenix: {type(module).__name__} converted; {found}\n")
    return converted if remat == "none" else converted.with_remat(remat)


def to_torch(model: TorchModule, module: Any) -> None:
    """Write the weights of a converted model into a PyTorch module, in place.

    Args:
        model: what ``nx.from_torch`` returned, trained since.
        module: the PyTorch module, or another one with the same parameters.

    Raises:
        ArgumentTypeError: ``model`` was not made by ``nx.from_torch``.
        ConversionError: names or shapes differ; ``module`` is then as it was.

    Example:
        >>> import torch
        >>> linear = torch.nn.Linear(4, 2)
        >>> model = nx.from_torch(linear, (torch.ones(3, 4),))
        >>> model.weight.set_value(nx.zeros((2, 4)))
        >>> nx.to_torch(model, linear)
        >>> linear.weight.detach().abs().sum().item()
        0.0
    """
    torch = import_torch("nx.to_torch")
    if not isinstance(model, TorchModule):
        raise ArgumentTypeError(
            f"nx.to_torch takes a model of nx.from_torch; got {type(model).__name__}."
        )
    if not isinstance(module, torch.nn.Module):
        raise ArgumentTypeError(
            f"nx.to_torch writes into a torch.nn.Module; got {type(module).__name__}."
        )
    view = model.weight_view()
    tensors = dict(_named_tensors(uncompiled(module)))
    missing = [name for name in view if name not in tensors]
    other = [n for n in view if n in tensors and tuple(tensors[n].shape) != view[n].shape]
    if missing or other:
        raise ConversionError(
            "The PyTorch module has other weights than the model: "
            + ", ".join([f"{name} is missing" for name in missing[:4]]
                        + [f"{name} has shape {tuple(tensors[name].shape)}, the model "
                           f"{view[name].shape}" for name in other[:4]])
            + "."
        )  # fmt: skip
    with torch.no_grad():
        for name in view:
            tensors[name].copy_(to_tensor(view[name], like=tensors[name]))


def import_torch(purpose: str) -> Any:
    """Import PyTorch.

    Raises:
        MissingExtraError: it is not installed.
    """
    try:
        torch = load_torch()
    except ImportError as error:
        raise MissingExtraError("torch", "torch", purpose) from error
    return torch


def example_arguments(
    module: Any, inputs: Any, kwargs: Mapping[str, Any] | None
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return positional and named example inputs, however they were given.

    Raises:
        ArgumentError: there are none.
    """
    named = dict(kwargs or {})
    if inputs is None and not named:
        raise ArgumentError(
            f"nx.from_torch({type(module).__name__}, …) needs example inputs, tensors as its "
            "forward takes them: example_inputs=(torch.zeros(2, 3, 32, 32),)."
        )
    if isinstance(inputs, Mapping):
        inputs, named = (), {**inputs, **named}
    elif inputs is None:
        inputs = ()
    given = tuple(inputs) if isinstance(inputs, (tuple, list)) else (inputs,)
    torch = load_torch()

    def detached(leaf: Any) -> Any:
        is_tensor = isinstance(leaf, torch.Tensor) and leaf.requires_grad
        return leaf.detach() if is_tensor else leaf

    return load_torch("torch.utils._pytree").tree_map(detached, (given, named))


def uncompiled(module: Any) -> Any:
    """Return the module that ``torch.compile`` was given, which has the names of its parameters."""
    compiled = type(module).__name__ == "OptimizedModule"
    return dict(module.named_children()).get("_orig_mod", module) if compiled else module


def several_rows(
    args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return example inputs of one row with that row twice: the size 1 would be fixed."""
    torch = load_torch()

    tensors = [t for t in (*args, *kwargs.values()) if isinstance(t, torch.Tensor) and t.ndim]
    if not tensors or any(tensor.shape[0] != 1 for tensor in tensors):
        return args, kwargs

    def twice(leaf: Any) -> Any:
        return torch.cat([leaf, leaf]) if isinstance(leaf, torch.Tensor) and leaf.ndim else leaf

    return tuple(map(twice, args)), {name: twice(leaf) for name, leaf in kwargs.items()}


def _named_tensors(module: Any) -> list[tuple[str, Any]]:
    return [
        *module.named_parameters(remove_duplicate=False),
        *module.named_buffers(remove_duplicate=False),
    ]


def _tensors(module: Any) -> list[Any]:
    return [tensor for _, tensor in _named_tensors(module)]


def _weights(module: Any, names: Mapping[str, str]) -> tuple[dict[str, str], dict[str, Any]]:
    """Return kind and array of every parameter and buffer by name, shared ones once."""
    kinds, arrays = {}, {}
    for name, tensor in module.named_parameters(remove_duplicate=False):
        if names[name] == name:
            kinds[name] = "parameter" if tensor.requires_grad else "frozen"
            arrays[name] = to_jax(tensor)
    for name, tensor in module.named_buffers(remove_duplicate=False):
        if names[name] == name:
            kinds[name], arrays[name] = "buffer", to_jax(tensor)
    return kinds, arrays


def _file_names(module: Any, names: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
    """Return the names in PyTorch's files of every parameter and buffer; none if not in files."""
    stored = set(module.state_dict(keep_vars=True))
    found: dict[str, tuple[str, ...]] = {first: () for first in names.values()}
    for name, first in names.items():
        if name in stored:
            found[first] = (*found[first], name)
    return found
