"""The module that ``nx.from_torch`` returns.

Owns the call: from the user's arguments to the program's inputs, and from its results to new
buffers and the user's results. Does not own the conversion (``convert``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp

from neurenix._core.errors import ConversionError
from neurenix._nnx import nnx
from neurenix.interop.torch.interpret import compute
from neurenix.interop.torch.programs import Exported, Programs
from neurenix.interop.torch.storage import Weight, WeightView, variable_for
from neurenix.interop.torch.verify import Verification
from neurenix.nn.module import Module


class Scope(nnx.Module):
    """The parameters of one module of PyTorch, under its names."""


class TorchModule(Module):
    """A PyTorch module that computes in JAX: it trains, moves, saves and compiles like any other.

    ``nx.from_torch`` makes it. Its parameters have PyTorch's names and shapes, and it takes what
    the PyTorch module takes, as JAX arrays. ``train()`` and ``eval()`` choose between the two
    programs that ``torch.export`` made, and ``fit`` calls them as needed.
    """

    def __init__(
        self, programs: Programs, weights: list[Weight], arrays: Mapping[str, Any], rngs: nnx.Rngs
    ) -> None:
        self.deterministic = False
        self._programs, self._weights = programs, tuple(weights)
        self.rngs = rngs
        for weight in weights:
            _insert(self, weight.path, variable_for(weight, [arrays[n] for n in weight.names]))

    @property
    def verification(self) -> Verification | None:
        """The differences from PyTorch that the conversion found; None if it did not compare."""
        return self._programs.verification

    def arrays(self) -> dict[str, Any]:
        """Return the array of every variable by its path here; those of repeated layers stacked."""
        return {w.path: _look_up(self, w.path).get_value() for w in self._weights}

    def program(self, *, training: bool = True) -> Exported:
        """Return the program for training or for evaluation; it is exported at the first call."""
        return self._programs.get(training=training)

    def weight_view(self) -> WeightView:
        """Return the weights by their names in PyTorch."""
        return WeightView(self._weights, self.arrays())

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Compute the module's outputs.

        Args:
            *args: positional arguments of the PyTorch module's ``forward``, as JAX arrays.
            **kwargs: the named arguments that the example inputs had.

        Returns:
            what ``forward`` returns; ``Outputs`` where that is a dataclass.

        Raises:
            ArgumentTypeError: the arguments are nested otherwise than the example inputs.
            ShapeError: an input has another shape than the example, on an axis that is fixed.
        """
        program = self._programs.get(training=not self.deterministic)
        inputs = program.take_inputs(args, kwargs)
        variables = {weight.path: _look_up(self, weight.path) for weight in self._weights}
        arrays = {path: variable.get_value() for path, variable in variables.items()}
        view = WeightView(self._weights, arrays)
        results, buffers = compute(
            program.steps,
            program.program,
            view,
            inputs,
            key=self.rngs.dropout() if program.is_random else None,
            product_dtype=_product_dtype(self._weights, arrays),
        )
        for weight in self._weights if buffers else ():
            if any(name in buffers for name in weight.names):
                new = [buffers.get(name, view[name]) for name in weight.names]
                variables[weight.path].set_value(jnp.stack(new) if weight.is_stacked else new[0])
        return program.give_results(results)


def _product_dtype(weights: tuple[Weight, ...], arrays: Mapping[str, Any]) -> Any:
    """Return the dtype of a float32 parameter that is given in a smaller one, if any is."""
    for weight in weights:
        dtype = arrays[weight.path].dtype
        if weight.dtype == jnp.float32 and dtype in (jnp.bfloat16, jnp.float16):
            return dtype
    return None


def _insert(module: nnx.Module, path: str, variable: nnx.Variable) -> None:
    *scopes, name = path.split(".")
    inside = module
    for scope in scopes:
        if scope not in vars(inside):
            _expect_free(inside, scope)
            setattr(inside, scope, Scope())
        inside = getattr(inside, scope)
    _expect_free(inside, name)
    setattr(inside, name, variable)


def _expect_free(module: nnx.Module, name: str) -> None:
    if isinstance(module, TorchModule) and hasattr(type(module), name):
        raise ConversionError(
            f"The PyTorch module has a part called {name!r}, which is a method of every module "
            "here. Wrap it in a module that gives it another name."
        )


def _look_up(module: nnx.Module, path: str) -> Any:
    for name in path.split("."):
        module = vars(module)[name]
    return module
