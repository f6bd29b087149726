"""A PyTorch module with everything that its training step needs, and no values.

Owns ``TorchWorkload``, and how ``file.py:function`` becomes one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax

from neurenix import losses
from neurenix._core.errors import ArgumentError, ArgumentTypeError
from neurenix.interop.torch.convert import import_torch
from neurenix.interop.torch.examples import is_torch_module, specs_of
from neurenix.interop.torch.model_file import call_function

_KEYS = ("module", "example_inputs", "loss", "optimizer")
_CONTRACT = (
    "It takes no arguments and returns (module, example_inputs), or a dict of module, "
    "example_inputs, loss and, if wanted, optimizer."
)


@dataclass(frozen=True)
class TorchWorkload:
    """What one training step of a PyTorch module is made of.

    Attributes:
        module: the module, on the CPU or on ``meta``.
        inputs: shapes and dtypes of one global batch: a tuple of positional arguments of its
            ``forward``, or a dict of named ones.
        loss: as ``compile`` takes it.
        optimizer: as ``compile`` takes it.
        targets: shapes and dtypes of the targets; None for what the loss takes.
        description: the model, the loss and the batch in words.
    """

    module: Any
    inputs: Any
    loss: Any
    optimizer: Any = "adamw"
    targets: Any = None
    description: str = ""


def workload_of_file(
    text: str, *, batch: int | None = None, loss: str | None = None, optimizer: str | None = None
) -> TorchWorkload:
    """Return the workload that a function in a Python file makes.

    Args:
        text: ``"file.py:function"``.
        batch: number of examples, in place of that of the example inputs.
        loss: name of a loss; by default the one that the function gives.
        optimizer: name of an optimizer; by default the function's, or AdamW.

    Raises:
        ArgumentError: no such file or function, it fails, or gives no inputs or no loss.
        ArgumentTypeError: it returns something else.
        MissingExtraError: PyTorch is not installed.
    """
    import_torch("--torch")
    made = call_function(text)
    if is_torch_module(made):
        raise ArgumentError(f"{text} returns a module and no example inputs. {_CONTRACT}")
    if isinstance(made, tuple) and len(made) == 2:
        made = dict(zip(_KEYS, made, strict=False))
    if not isinstance(made, Mapping) or not is_torch_module(made.get("module")):
        kind = "a dict without a module" if isinstance(made, Mapping) else type(made).__name__
        raise ArgumentTypeError(f"{text} returns {kind}. {_CONTRACT}")
    if unknown := [str(key) for key in made if key not in _KEYS]:
        raise ArgumentTypeError(f"{text} returns a dict with {', '.join(unknown)}. {_CONTRACT}")
    if made.get("example_inputs") is None:
        raise ArgumentError(f"{text} returns no example inputs. {_CONTRACT}")
    chosen = made.get("loss") if loss is None else named_loss(loss)
    if chosen is None:
        raise ArgumentError(
            f"{text} gives no loss: return it in a dict, or name one: --loss CrossEntropyLoss."
        )
    inputs = specs_of(made["example_inputs"])
    if not isinstance(inputs, (tuple, Mapping)):
        inputs = tuple(inputs) if isinstance(inputs, list) else (inputs,)
    inputs = inputs if batch is None else _with_batch(inputs, batch)
    module = made["module"]
    shapes = ", ".join(str(tuple(leaf.shape)) for leaf in jax.tree.leaves(inputs))
    return TorchWorkload(
        module,
        inputs,
        chosen,
        optimizer or made.get("optimizer") or "adamw",
        description=f"{type(module).__name__} of {text}, {parameters_text(module)}; one global "
        f"batch is {shapes}",
    )


def named_loss(name: str) -> Any:
    """Return a loss of ``nx.losses`` for a name, of a class or as ``compile`` takes it.

    Example:
        >>> named_loss("CrossEntropyLoss").name
        'cross_entropy_loss'
    """
    kind = getattr(losses, name, None) if name in dir(losses) else None
    return kind() if isinstance(kind, type) else name


def parameters_text(module: Any) -> str:
    """Return the number of parameters in words, shared ones once, and their dtypes.

    Example:
        >>> import torch
        >>> parameters_text(torch.nn.Linear(4, 2))
        '10 parameters in float32'
    """
    parameters = list(module.parameters())
    count = sum(parameter.numel() for parameter in parameters)
    dtypes = dict.fromkeys(str(p.dtype).removeprefix("torch.") for p in parameters)
    for unit, size in (("billion ", 10**9), ("million ", 10**6)):
        if count >= size:
            return f"{count / size:.3g} {unit}parameters in {' and '.join(dtypes)}"
    return f"{count:,} parameters in {' and '.join(dtypes)}"


def _with_batch(inputs: Any, batch: int) -> Any:
    sizes = {leaf.shape[:1] for leaf in jax.tree.leaves(inputs)}
    if len(sizes) != 1 or () in sizes:
        raise ArgumentError(
            "--batch cannot be told apart: the example inputs have first axes of several sizes. "
            "Return example inputs of that batch, and leave --batch out."
        )
    return jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct((batch, *leaf.shape[1:]), leaf.dtype), inputs
    )
