"""The module that ``nx.from_torch`` returns.

Owns the call: from the user's arguments to the program's inputs, and from its results to new
buffers and the user's results. Does not own the conversion (``convert``).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Self

import jax
import jax.numpy as jnp

from neurenix._core.errors import ArgumentError, CheckpointError, ConversionError
from neurenix._nnx import nnx
from neurenix.checkpoint.tensor_files import TRAINER, open_tensors
from neurenix.checkpoint.weights import load_tensors
from neurenix.distribute import get_strategy
from neurenix.distribute.strategy import made_in
from neurenix.interop.torch.interpret import compute
from neurenix.interop.torch.programs import Exported, Programs
from neurenix.interop.torch.storage import Weight, WeightView, variable_for
from neurenix.interop.torch.verify import Verification
from neurenix.interop.torch.weight_files import open_file, under_names_of
from neurenix.models.remat import POLICIES, check_remat
from neurenix.nn.module import Module
from neurenix.train.options import REMATS


class Scope(nnx.Module):
    """The parameters of one module of PyTorch, under its names."""


class TorchModule(Module):
    """A PyTorch module that computes in JAX: it trains, moves, saves and compiles like any other.

    ``nx.from_torch`` makes it. Its parameters have PyTorch's names and shapes, and it takes what
    the PyTorch module takes, as JAX arrays. ``train()`` and ``eval()`` choose between the two
    programs that ``torch.export`` made, and ``fit`` calls them as needed.
    """

    def __init__(
        self,
        programs: Programs,
        weights: list[Weight],
        arrays: Mapping[str, Any],
        rngs: nnx.Rngs,
        remat: str = "none",
    ) -> None:
        self.deterministic, self._remat = False, remat
        self._programs, self._weights = programs, tuple(weights)
        self.rngs = rngs
        for weight in weights:
            _insert(self, weight.path, variable_for(weight, [arrays[n] for n in weight.names]))

    @property
    def verification(self) -> Verification | None:
        """The differences from PyTorch that the conversion found; None if it did not compare."""
        return self._programs.verification

    @property
    def remat_policies(self) -> tuple[str, ...]:
        """Names of the rematerialization policies: of ``with_remat`` where layers are a loop.

        Else those of ``compile(…, remat=…)``.
        """
        return POLICIES if self.program().is_folded else REMATS

    @property
    def remat(self) -> str:
        """The name of the rematerialization policy."""
        return self._remat

    def with_remat(self, policy: str) -> TorchModule:
        """Return the model with another rematerialization policy, and the same arrays.

        Args:
            policy: ``"none"`` keeps what the backward pass needs, ``"minimal"`` the results of
                products with weights, ``"full"`` only the input of each of the repeated layers.

        Raises:
            ArgumentError: no layers of the model are a loop.
            UnknownNameError: unknown policy.

        Example:
            >>> import torch
            >>> layers = torch.nn.Sequential(*(torch.nn.Linear(4, 4) for _ in range(8)))
            >>> model = nx.from_torch(layers, (torch.ones(3, 4),))
            >>> model.with_remat("full").remat
            'full'
        """
        check_remat(policy)
        if policy != "none" and not self.program().is_folded:
            raise ArgumentError(
                f'remat="{policy}" is for layers that are a loop, and this model has none: there '
                'are fewer than four equal ones, or scan=False. Take compile(…, remat="dots").'
            )
        other = nnx.merge(*nnx.split(self))
        other._remat = policy
        return other

    def arrays(self) -> dict[str, Any]:
        """Return the array of every variable by its path here; those of repeated layers stacked."""
        return {w.path: _look_up(self, w.path).get_value() for w in self._weights}

    def program(self, *, training: bool = True) -> Exported:
        """Return the program for training or for evaluation; it is exported at the first call."""
        return self._programs.get(training=training)

    def weight_view(self) -> WeightView:
        """Return the weights by their names in PyTorch."""
        return WeightView(self._weights, self.arrays())

    def load(self, path: str | os.PathLike[str]) -> Self:
        """Read weights in place, under PyTorch's names.

        Takes what ``save`` wrote, a file of ``safetensors``, a folder or an index of several files
        (``model.safetensors.index.json``) as ``transformers`` writes them, and a file of
        ``torch.save`` that holds tensors alone. Names with another prefix, such as those of a base
        model, are understood as ``transformers`` does. Values are cast to the model's dtypes; each
        process reads the parts that its devices hold.

        Returns:
            The module itself.

        Raises:
            CheckpointError: a file is missing, damaged, or holds other names or shapes. The message
                names all differences; the module is unchanged.
        """
        tensors = open_tensors(path, what="weights", open_file=open_file)
        if tensors.about.get("format") != TRAINER:
            expected = [name for w in self._weights for row in w.files.rows for name in row]
            tensors = under_names_of(self._programs.module, expected, tensors)
        arrays = self.arrays()
        absent = [weight.path for weight in self._weights if not weight.files.is_stored]
        empty = [path for path in absent if isinstance(arrays[path], jax.ShapeDtypeStruct)]
        if empty:
            raise CheckpointError(
                f"{empty[0]} has no values, and no file has them: it is a buffer that PyTorch "
                "computes when it makes the module, which was on the meta device. Give the buffers "
                "that state_dict() does not have values on the CPU, and convert the module again."
            )
        load_tensors(self, tensors, path, self._shardings())
        return self

    def _shardings(self) -> dict[str, Any] | None:
        """Return where the strategy of this module has its weights, by path."""
        strategy = get_strategy() or made_in(self)
        if strategy is None:
            return None
        arrays = self.arrays()
        trained = {w.path: arrays[w.path] for w in self._weights if w.kind != "buffer"}
        placement = strategy.placement(trained)
        whole = dict.fromkeys(arrays, strategy.state_sharding)
        return whole if placement is None else whole | placement.shardings(trained)

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
        program, inputs = self._programs.get_for(args, kwargs, training=not self.deterministic)
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
            remat=self._remat,
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
