"""The two programs of a PyTorch module, training and evaluation, exported when they are needed.

Owns what a program takes and gives back, by the nesting of the example inputs.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from neurenix._core.errors import ArgumentTypeError, ConversionError, ShapeError
from neurenix._core.source_files import SourceLine
from neurenix.interop.check_report import Problem
from neurenix.interop.torch import operators
from neurenix.interop.torch.dtypes import load_torch
from neurenix.interop.torch.export import export
from neurenix.interop.torch.problems import BY_VALUE, NO_NUMBERS
from neurenix.interop.torch.program import Program, Value, read_program
from neurenix.interop.torch.repeats import Loop, Step, find_loops
from neurenix.interop.torch.structure import Structure

__all__ = ["Exported", "Programs", "free_axes"]


@dataclasses.dataclass(eq=False)
class Exported:
    """One program and how it is called.

    Attributes:
        program: the program.
        steps: its operations, repeated layers as loops.
        takes: nesting of ``(args, kwargs)``.
        gives: nesting of the results.
        names: what each input, flat, is called in messages.
        fixed: values of inputs that are no tensors, which are compiled in; by position.
        is_random: whether it draws random numbers.
    """

    program: Program
    steps: Sequence[Step]
    takes: Structure
    gives: Structure
    fixed: Mapping[int, Any]
    is_random: bool

    def take_inputs(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Any]:
        """Return the inputs of the program for the arguments of a call.

        Raises:
            ArgumentTypeError, ShapeError: they are not like the example inputs.
        """
        leaves = self.flat_inputs(args, kwargs)
        if len(leaves) != len(self.program.inputs):
            raise ArgumentTypeError(
                f"The model takes {len(self.program.inputs)} inputs, got {len(leaves)}."
            )
        return [self._input(number, leaf) for number, leaf in enumerate(leaves)]

    @property
    def is_folded(self) -> bool:
        """Whether repeated layers are a loop."""
        return any(isinstance(step, Loop) for step in self.steps)

    def flat_inputs(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Any]:
        """Return the leaves of the arguments of a call.

        Raises:
            ArgumentTypeError: they are nested otherwise than the example inputs.
        """
        args, kwargs = self._complete(args, dict(kwargs))
        positional, named = self.takes.children
        leaves = positional.flatten(args, "the positional arguments")
        return leaves + named.flatten(kwargs, "the named arguments")

    @property
    def shapes(self) -> tuple[tuple[Any, ...] | None, ...]:
        """The shape of each input, None for one that is no tensor."""
        types = (self.program.types[index] for index in self.program.inputs)
        return tuple(None if each is None else each[0] for each in types)

    def result_specs(self) -> Any:
        """Return shape and dtype of each result, nested as the PyTorch module's."""
        return self.give_results(
            [
                jax.ShapeDtypeStruct(*self.program.types[result.value.index])
                if isinstance(result.value, Value)
                else result.value
                for result in self.program.results
                if result.buffer is None
            ]
        )

    def _complete(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Take a dict as named arguments, and a tuple as positional ones, as ``fit`` gives them."""
        positional, named = self.takes.children
        if len(args) == 1 and not kwargs:
            (given,) = args
            if isinstance(given, Mapping) and not positional.children and named.names:
                return (), dict(given)
            if isinstance(given, (tuple, list)) and len(positional.children) == len(given) > 1:
                return tuple(given), {}
        if not kwargs and len(args) == len(named.names) and not positional.children:
            return (), dict(zip(named.names, args, strict=True))  # the example had names for them
        return args, kwargs

    def _input(self, number: int, leaf: Any) -> Any:
        index = self.program.inputs[number]
        expected = self.program.types[index]
        if expected is None:
            if number in self.fixed and leaf != self.fixed[number]:
                raise ArgumentTypeError(
                    f"Input {number} of the model was {self.fixed[number]!r} when it was "
                    f"converted, which is part of its program; got {leaf!r}. Convert it again."
                )
            return leaf
        shape, dtype = expected
        if not hasattr(leaf, "shape"):
            leaf = np.asarray(leaf)
        if len(shape) != leaf.ndim or any(
            isinstance(want, int) and want != have
            for want, have in zip(shape, leaf.shape, strict=True)
        ):
            raise ShapeError(
                f"Input {number} of the model has the shape ({', '.join(map(str, shape))}) in the "
                f"example inputs; got {tuple(leaf.shape)}. An axis of another size is one to name "
                "in dynamic_shapes of nx.from_torch."
            )
        leaf = jnp.asarray(leaf)
        same = jnp.issubdtype(dtype, jnp.floating) == jnp.issubdtype(leaf.dtype, jnp.floating)
        return leaf if leaf.dtype == dtype or same and leaf.dtype != bool else leaf.astype(dtype)

    def give_results(self, results: Sequence[Any]) -> Any:
        """Return the results of the program, nested as the PyTorch module's."""
        return self.gives.unflatten(iter(results))


def free_axes(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Return the ``dynamic_shapes`` that leave the batch free, and the length of token ids.

    ``torch.export`` fixes an axis that the model needs to be of one size.
    """
    torch = load_torch()
    pytree = load_torch("torch.utils._pytree")

    free = torch.export.Dim.AUTO

    def axes(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor) or leaf.ndim == 0:
            return None
        ids = not leaf.is_floating_point() and not leaf.is_complex()
        return {axis: free for axis in range(2 if ids and leaf.ndim == 2 else 1)}

    return pytree.tree_map(axes, (args, dict(kwargs)))


class Programs:
    """The programs of a module for training and for evaluation.

    Args:
        module: the PyTorch module.
        args: positional example inputs.
        kwargs: named example inputs.
        dynamic_shapes: as ``torch.export.export`` takes them; ``free_axes`` by default. With an
            empty dict no axis is free: inputs of other shapes have a program of their own.
        scan: make loops of repeated layers.
    """

    def __init__(
        self,
        module: Any,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        *,
        dynamic_shapes: Any = None,
        scan: bool = True,
    ) -> None:
        self._module, self._args, self._kwargs = module, args, kwargs
        self._dynamic_shapes, self._scan = dynamic_shapes, scan
        self._known: dict[Any, Exported] = {}
        self._is_fixed = isinstance(dynamic_shapes, Mapping) and not dynamic_shapes
        self.names = shared_names(module)
        self.verification: Any = None

    @property
    def module(self) -> Any:
        """The PyTorch module."""
        return self._module

    def get(self, *, training: bool) -> Exported:
        """Return the program for a mode; it is exported at the first call.

        Raises:
            ConversionError: it cannot be exported, or has operators that nothing here computes.
        """
        if training not in self._known:
            self._known[training] = self._export(training, self._args, self._kwargs)
        return self._known[training]

    def get_for(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], *, training: bool
    ) -> tuple[Exported, list[Any]]:
        """Return the program for the arguments of a call, and its inputs.

        Raises:
            ArgumentTypeError, ShapeError: they are not like the example inputs.
            ConversionError: as ``get``.
        """
        program = self.get(training=training)
        if not self._is_fixed:
            return program, program.take_inputs(args, kwargs)
        leaves = program.flat_inputs(args, kwargs)
        shapes = tuple(tuple(leaf.shape) if hasattr(leaf, "shape") else None for leaf in leaves)
        if program.shapes != shapes:
            if (training, shapes) not in self._known:
                examples = program.takes.unflatten(iter(self._resized(program, shapes)))
                self._known[training, shapes] = self._export(training, *examples)
            program = self._known[training, shapes]
        return program, program.take_inputs(args, kwargs)

    def _resized(self, program: Exported, shapes: tuple[Any, ...]) -> list[Any]:
        """Return the example inputs with other shapes, and no values of interest."""
        leaves = program.takes.flatten((self._args, dict(self._kwargs)))
        return [
            leaf if shape is None else leaf.new_zeros(shape)
            for leaf, shape in zip(leaves, shapes, strict=True)
        ]

    def _export(self, training: bool, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Exported:
        operators.load()
        exported = export(
            self._module, args, kwargs, training=training, dynamic_shapes=self._dynamic_shapes
        )
        program = read_program(exported, self.names)
        if program.unknown:
            raise unknown_operators(program.unknown)
        takes = Structure.of(exported.call_spec.in_spec)
        flat = takes.children[0].flatten(args) + takes.children[1].flatten(dict(kwargs))
        fixed = {
            number: leaf
            for number, (index, leaf) in enumerate(zip(program.inputs, flat, strict=True))
            if program.types[index] is None
        }
        return Exported(
            program=program,
            steps=find_loops(program) if self._scan else program.operations,
            takes=takes,
            gives=Structure.of(exported.call_spec.out_spec),
            fixed=fixed,
            is_random=any(operation.is_random for operation in program.operations),
        )


def shared_names(module: Any) -> dict[str, str]:
    """Return name → first name, for parameters and buffers that share one tensor."""
    first: dict[int, str] = {}
    tensors = [
        *module.named_parameters(remove_duplicate=False),
        *module.named_buffers(remove_duplicate=False),
    ]
    return {name: first.setdefault(id(tensor), name) for name, tensor in tensors}


def unknown_operators(unknown: Mapping[str, SourceLine | None]) -> ConversionError:
    """Return the error that names every operator without a function here, with its line."""
    lines = [f"  - {problem}" for problem in unknown_problems(unknown)]
    return ConversionError(
        "These operators of the model have no function in JAX here:\n" + "\n".join(lines)
    )


def unknown_problems(unknown: Mapping[str, SourceLine | None]) -> list[Problem]:
    """Return the operators without a function here as problems, with what to do."""
    found = []
    for name, line in unknown.items():
        packet = name.rpartition(".")[0]
        if packet in BY_VALUE:
            found.append(Problem(f"{name}, where {BY_VALUE[packet]},", NO_NUMBERS, line))
        else:
            fix = (
                f'Say how it is computed, nx.register_torch_op("{packet}", function), or write '
                "that line otherwise."
            )
            found.append(Problem(name, fix, line))
    return found
