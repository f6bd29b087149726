"""One way to run a program: slice, mesh, batch, recomputation, optimizer state, XLA options.

Owns the workload (the target and its arguments) and the program of one choice. Compiles nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax

from neurenix import chips
from neurenix._core.errors import ArgumentError
from neurenix.compiler.program import Program, spec
from neurenix.preflight.array_arguments import given
from neurenix.preflight.describe_program import PreflightOptions, Shape, describe, trainer_of
from neurenix.train.options import REMATS

_TENSOR_SIZES = (2, 4, 8)


@dataclass(frozen=True)
class Choice:
    """One choice; ``None`` keeps the workload's own value."""

    slice: chips.Slice
    mesh: Mapping[str, int] | None = None
    batch: int | None = None
    remat: str | None = None
    accumulate_steps: int | None = None
    moment_dtype: str | None = None
    compiler_options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def mesh_text(self) -> str:
        """The mesh as text, ``fsdp=4, tensor=2``."""
        return mesh_text(self.mesh or {"data": self.slice.num_devices})

    @property
    def options_text(self) -> str:
        """The compiler options, for a table."""
        return ", ".join(f"{k}={v}" for k, v in self.compiler_options.items())


@dataclass(frozen=True)
class Workload:
    """A model, trainer or function, and its arguments, as for ``preflight``."""

    target: Any
    args: tuple[Any, ...]
    options: PreflightOptions

    @classmethod
    def of(
        cls,
        target: Any,
        args: tuple[Any, ...],
        input_shape: Sequence[int] | None,
        dtype: Any,
        options: PreflightOptions | None,
    ) -> Workload:
        """Return the workload of a user's arguments; ``input_shape`` becomes the first spec."""
        args = (*Shape(input_shape, dtype).specs(), *args)
        return cls(target, args, given("options", options, PreflightOptions))

    @property
    def trainer(self) -> Any:
        """The trainer, or None for a plain function."""
        return trainer_of(self.target)

    @property
    def batch(self) -> int | None:
        """Examples in the global batch of a trainer's step."""
        if self.trainer is None:
            return None
        shapes = [leaf.shape for leaf in jax.tree.leaves(self.args[:1])[:1] if leaf.shape]
        return int(shapes[0][0]) if shapes else None

    @property
    def remats(self) -> tuple[str, ...]:
        """The available recomputation policies."""
        if self.trainer is None:
            return ()
        return tuple(getattr(self.trainer.module, "remat_policies", REMATS))

    @property
    def remat(self) -> str:
        """The workload's own policy."""
        if self.trainer is None:
            return "as written"
        own = getattr(self.trainer.module, "remat", "none")
        return str(self.trainer.options.remat if own == "none" else own)

    def meshes(self, where: chips.Slice) -> list[dict[str, int]]:
        """Return the meshes to try on a slice: data, FSDP, and tensor if the rules use it."""
        count, slices = where.num_devices, where.num_slices
        if self.trainer is None or count == 1:
            return [{"data": count}]
        across = {"data": slices} if slices > 1 else {}
        inside = count // slices
        meshes = [{"data": count}, {**across, "fsdp": inside}]
        rules = self.trainer.model_rules()
        if rules is not None and any("tensor" in str(axes) for _, axes in rules.rules):
            meshes += [
                {**across, "fsdp": inside // size, "tensor": size}
                for size in _TENSOR_SIZES
                if inside % size == 0 and inside > size
            ]
        return meshes

    def program(self, choice: Choice) -> Program:
        """Return the program of a choice.

        Raises:
            ArgumentError: the choice has another batch, and it is unknown which arrays have one
                row for each example.
            ShapeError, ArgumentError, NotCompiledError: as ``preflight``.
        """
        target, args = self.target, self.args
        changes: dict[str, Any] = {}
        if choice.remat is not None and choice.remat != self.remat:
            changes["remat"] = choice.remat
        if choice.accumulate_steps is not None:
            changes["accumulate_steps"] = choice.accumulate_steps
        if changes or choice.moment_dtype:
            target = self.trainer.variant(moment_dtype=choice.moment_dtype, **changes)
        if choice.batch is not None and choice.batch != self.batch:
            args = self._resized(choice.batch)
        return describe(target, args, choice.slice, mesh=choice.mesh, options=self.options)

    def _resized(self, batch: int) -> tuple[Any, ...]:
        """Return the arguments with ``batch`` examples; arrays without a batch axis are unchanged.

        Raises:
            ArgumentError: the first input and the targets have different numbers of rows; or there
                are no targets, and the inputs have different numbers of rows.
        """
        named = dict(zip(("x", "y", "weight"), self.args, strict=False))
        rows = {
            name + jax.tree_util.keystr(path): leaf.shape[0] if leaf.shape else None
            for name, tree in named.items()
            for path, leaf in jax.tree.leaves_with_path(tree)
        }
        targets = [path for path in rows if path.startswith("y")]
        decisive = [*list(rows)[:1], *targets] if targets else list(rows)
        if self.batch is None or {rows[path] for path in decisive} != {self.batch}:
            found = ", ".join(f"{path} has {rows[path] or 'none'}" for path in decisive)
            raise ArgumentError(
                f"A batch of {batch} cannot be made of this one: it is not known which arrays have "
                f"a row for each example. They need the same number of rows: {found}."
            )

        def resized(leaf: Any) -> Any:
            if leaf.shape[:1] != (self.batch,):
                return leaf
            return spec((batch, *leaf.shape[1:]), leaf.dtype)

        return jax.tree.map(resized, self.args)

    def compile_options(self, choice: Choice, timeout_seconds: float | None = None) -> Any:
        """Return the compiler options of a choice."""
        own = self.options.compiler
        merged = {**own.compiler_options, **choice.compiler_options}
        timeout = min(own.timeout_seconds, timeout_seconds or math.inf)
        return replace(own, compiler_options=merged, timeout_seconds=timeout)


def mesh_of(text: str) -> dict[str, int]:
    """Parse a mesh, keeping the order of the axes.

    Raises:
        ArgumentError: the text is not a list of ``axis=size``, or names an axis twice.

    Example:
        >>> mesh_of("fsdp=4, tensor=2")
        {'fsdp': 4, 'tensor': 2}
    """
    mesh: dict[str, int] = {}
    for part in text.split(","):
        name, _, size = (word.strip() for word in part.partition("="))
        if not name.isidentifier() or not size.isdecimal() or int(size) < 1 or name in mesh:
            raise ArgumentError(
                f"{text!r} is not a mesh. Write each axis once with its size, such as fsdp=8 or "
                "data=2,fsdp=4."
            )
        mesh[name] = int(size)
    return mesh


def mesh_text(mesh: Mapping[str, int]) -> str:
    """Return a mesh as text.

    Example:
        >>> mesh_text({"fsdp": 4, "tensor": 2})
        'fsdp=4, tensor=2'
    """
    return ", ".join(f"{name}={size}" for name, size in mesh.items())
