"""A PyTorch module as a target of preflight: converted without values and without comparison.

Owns what a module is given and which arrays its training step takes. Does not own the conversion
(``neurenix.interop.torch``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from neurenix._core.errors import ArgumentError, ArgumentTypeError, NotCompiledError
from neurenix.interop.torch import TorchModule, from_torch
from neurenix.interop.torch.examples import example_tensors, is_torch_module, specs_of
from neurenix.preflight.describe_program import Shape
from neurenix.train.multi_output import as_loss

_OPTIONS = ("example_inputs", "loss", "optimizer")


def torch_target(
    target: Any,
    args: tuple[Any, ...],
    input_shape: Sequence[int] | None,
    dtype: Any,
    **options: Any,
) -> tuple[Any, tuple[Any, ...], Sequence[int] | None]:
    """Return a target, its arguments and ``input_shape``; a PyTorch module is converted.

    Args:
        target: any target of ``preflight``.
        args: its specs.
        input_shape: as for ``preflight``.
        dtype: as for ``preflight``.
        **options: ``example_inputs``, ``loss`` and ``optimizer``, None where not given.

    Raises:
        ArgumentTypeError: an option of PyTorch modules is given for another target, the loss or the
            optimizer is PyTorch's, or the inputs are given twice.
        ArgumentError: there are no inputs.
        NotCompiledError: there is no loss.
        ConversionError: as ``from_torch``.
    """
    examples, loss, optimizer = (options[name] for name in _OPTIONS)
    if not is_torch_module(target):
        if given := [f"{name}=" for name in _OPTIONS if options[name] is not None]:
            raise ArgumentTypeError(
                f"{', '.join(given)} are for PyTorch modules; got {type(target).__name__}. A model "
                "of Neurenix is given its loss by model.compile(optimizer=…, loss=…)."
            )
        return target, args, input_shape
    inputs, targets = _batch(target, args, input_shape, dtype, examples)
    model = compiled_model(target, inputs, loss=loss, optimizer=optimizer)
    return model, (inputs, targets or targets_of(model, loss)), None


def compiled_model(
    module: Any, inputs: Any, *, loss: Any, optimizer: Any = None, remat: str = "none"
) -> TorchModule:
    """Return a PyTorch module converted for inputs of one batch, with a loss and an optimizer.

    Args:
        module: the PyTorch module.
        inputs: shapes and dtypes: a tuple of positional arguments, or a dict of named ones.
        loss: as for ``compile``.
        optimizer: as for ``compile``; AdamW by default.
        remat: as for ``from_torch``.

    Raises:
        NotCompiledError, ArgumentTypeError, ConversionError: as ``torch_target``.
    """
    name = type(module).__name__
    if loss is None:
        raise NotCompiledError(
            f"{name} has no loss here, so there is no training step to look at: give preflight "
            'loss="…" and optimizer="…", as model.compile takes them.'
        )
    for option, value, package in (("loss", loss, "losses"), ("optimizer", optimizer, "optim")):
        if type(value).__module__.startswith("torch."):
            kind = type(value).__name__
            raise ArgumentTypeError(
                f"{option}= is a {kind} of PyTorch. nx.{package} has PyTorch's by their names: "
                f"nx.{package}.{kind}(…)."
            )
    model = from_torch(
        module, example_tensors(module, inputs), dynamic_shapes={}, check=False, remat=remat
    )
    return model.compile("adamw" if optimizer is None else optimizer, loss)


def _batch(
    module: Any,
    args: tuple[Any, ...],
    input_shape: Sequence[int] | None,
    dtype: Any,
    examples: Any,
) -> tuple[Any, Any]:
    """Return the specs of the inputs and, if given, of the targets."""
    given = (*Shape(input_shape, dtype).specs(), *args)
    if examples is None and not given:
        raise ArgumentError(
            f"preflight of {type(module).__name__} needs the inputs of one global batch: "
            'example_inputs=torch.zeros(64, 3, 32, 32, device="meta"), input_shape= or nx.spec.'
        )
    if examples is not None and input_shape is not None:
        raise ArgumentTypeError("Give either input_shape or example_inputs, not both.")
    inputs, *targets = given if examples is None else (specs_of(examples), *given)
    if len(targets) > 1:
        raise ArgumentTypeError(
            "preflight of a PyTorch module takes the specs of inputs and targets; got "
            f"{len(targets) + 1} of them."
        )
    if not isinstance(inputs, (Mapping, tuple)):
        inputs = tuple(inputs) if isinstance(inputs, list) else (inputs,)
    return inputs, targets[0] if targets else None


def targets_of(model: TorchModule, loss: Any) -> Any:
    """Return the specs of the targets that the loss takes for the outputs in training."""
    known: Any = as_loss(loss)
    return known.target_spec(model.program(training=True).result_specs())
