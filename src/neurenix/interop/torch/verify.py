"""The comparison of a converted module with PyTorch: outputs, gradients, new buffers.

Owns what is compared and when a difference is an error. Both sides compute the example inputs; the
loss is the sum of all floating-point outputs, each times a fixed random number.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from neurenix._core.errors import ConversionError
from neurenix.interop.torch.dtypes import load_torch, to_jax, to_torch
from neurenix.interop.torch.export import in_mode, without_cache, without_drawn_structure
from neurenix.interop.torch.interpret import compute
from neurenix.interop.torch.programs import Exported
from neurenix.interop.torch.storage import Weight, WeightView

# Largest differences, relative to the largest number of the array, that are no error. Rounding in
# float32 gives 1e-6 to 1e-4 (batch statistics of few values are the worst).
_OUTPUTS, _GRADIENTS = 2e-3, 1e-2
_MORE_INPUTS = 2  # tried where gradients differ
_COARSE = 20.0  # times that for models in bfloat16 or float16


@dataclass(frozen=True)
class Verification:
    """The largest differences from PyTorch, relative to the largest number of an array.

    Attributes:
        outputs: of the outputs in evaluation.
        training: of the outputs and new buffers in training; None where training is random.
        gradients: of the gradients, in training, or in evaluation where training is random.
        depends_on_input: whether other inputs give other outputs.
    """

    outputs: float
    training: float | None
    gradients: float
    depends_on_input: bool

    def __str__(self) -> str:
        training = "random" if self.training is None else f"{self.training:.1e}"
        depends = "depends" if self.depends_on_input else "does not depend, here or in PyTorch,"
        return (
            f"largest difference from PyTorch {self.outputs:.1e} in evaluation, {training} in "
            f"training, {self.gradients:.1e} in gradients; the output {depends} on the input"
        )


def verify(
    module: Any,
    programs: Any,
    weights: Sequence[Weight],
    arrays: Mapping[str, Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
) -> Verification:
    """Compare a converted module with PyTorch on the example inputs.

    Args:
        module: the PyTorch module.
        programs: the programs.
        weights: the variables.
        arrays: their values, by path.
        args: positional example inputs.
        kwargs: named example inputs.

    Raises:
        ConversionError: outputs, buffers or gradients differ by more than rounding, the output
            depends on the input in PyTorch alone, or there is no finite output to compare.
    """
    comparison = _Comparison(module, programs, weights, arrays, args, kwargs)
    evaluation = programs.get(training=False)
    training = programs.get(training=True)
    gradients = not training.is_random
    outputs, other, found = comparison.run(evaluation, training=False, gradients=not gradients)
    trained = None
    if gradients:
        trained, _, found = comparison.run(training, training=True, gradients=True)
    loose = _COARSE if comparison.is_coarse else 1.0
    for number in range(_MORE_INPUTS):
        # An element within rounding of a kink (ReLU) has the gradient of one side here and of the
        # other there. That is so for one input; a wrong gradient is wrong for others too.
        moved = comparison.moved(number)
        if found <= _GRADIENTS * loose or moved is None:
            break
        program = training if gradients else evaluation
        again = comparison.run(program, training=gradients, gradients=True, given=moved)
        found = min(found, again[2])
    result = Verification(outputs, trained, found, other)
    worst = max(result.outputs, result.training or 0.0)
    if not worst <= _OUTPUTS * loose or not result.gradients <= _GRADIENTS * loose:
        raise ConversionError(
            f"{type(module).__name__} computes something else here than in PyTorch: {result}. "
            "Convert parts of it to find the layer, and report it; check=False leaves the "
            "comparison out."
        )
    return result


class _Comparison:
    def __init__(self, module, programs, weights, arrays, args, kwargs) -> None:
        self._module, self._weights, self._arrays = module, weights, arrays
        self._args, self._kwargs, self._names = args, kwargs, programs.names
        self.is_coarse = any(map(_is_half, weights))

    def run(
        self, program: Exported, *, training: bool, gradients: bool, given: Any = None
    ) -> tuple[float, bool, float]:
        """Return the differences of outputs and gradients, and whether inputs matter."""
        given = (self._args, self._kwargs) if given is None else given
        inputs = [
            to_jax(leaf) if hasattr(leaf, "detach") else leaf
            for leaf in (
                *program.takes.children[0].flatten(given[0]),
                *program.takes.children[1].flatten(dict(given[1])),
            )
        ]
        ours = self._ours(program, gradients)
        results, buffers, slopes = ours(inputs)
        wanted, wanted_buffers, wanted_slopes = self._torchs(program, training, gradients, given)
        self.is_coarse = self.is_coarse or any(map(_is_half, results))
        self._expect_finite(wanted)
        pairs = list(zip(results, wanted, strict=True))
        before = WeightView(self._weights, self._arrays)
        worst = max((_difference(a, b) for a, b in pairs), default=0.0)
        for n, b in wanted_buffers.items():  # a mean of what has none is rounding: not by itself
            if n in before:
                worst = max(worst, _difference(buffers.get(n, before[n]), b, 1e-3))
        for name, slope in slopes.items():  # without a gradient in PyTorch
            wanted_slopes.setdefault(name, np.zeros_like(slope))
        largest = max((float(np.abs(g).max(initial=0)) for g in wanted_slopes.values()), default=0)
        # A gradient that is zero but for rounding (a scale before a norm) is compared with these.
        least = max(1e-3 * largest, 1e-5 * sum(map(_size, results)))
        steep = max(
            (_difference(slopes[n], g, least) for n, g in wanted_slopes.items()), default=0.0
        )
        return worst, training or self._depends(program, inputs, ours, results, wanted), steep

    def moved(self, number: int) -> tuple[Any, Any] | None:
        """Return the example inputs moved a little, or None if none is of real numbers."""
        torch = load_torch()
        drawn = np.random.default_rng(number)
        given = [*self._args, *self._kwargs.values()]
        if not any(isinstance(x, torch.Tensor) and x.is_floating_point() for x in given):
            return None

        def move(x: Any) -> Any:
            if not isinstance(x, torch.Tensor) or not x.is_floating_point():
                return x
            noise = drawn.normal(scale=0.05, size=tuple(x.shape))
            return x + torch.from_numpy(np.asarray(noise)).to(x) * x.detach().abs().mean()

        return tuple(map(move, self._args)), {n: move(x) for n, x in self._kwargs.items()}

    def _depends(
        self, program: Exported, inputs: list[Any], ours: Any, results: list[Any], wanted: list[Any]
    ) -> bool:
        """Return whether other inputs give other outputs, here as in PyTorch."""
        changed = [_changed(leaf) for leaf in inputs]
        if not _same(results, ours(changed)[0]):
            return True
        torch = load_torch()
        examples = program.takes.flatten((self._args, dict(self._kwargs)))
        others = [
            to_torch(leaf, like=example) if isinstance(example, torch.Tensor) else example
            for leaf, example in zip(changed, examples, strict=True)
        ]
        given = program.takes.unflatten(iter(others))
        if not _same(wanted, self._torchs(program, False, False, given)[0]):
            raise ConversionError(
                f"The output of {type(self._module).__name__} does not depend on the input here, "
                "and does in PyTorch. Report it; check=False leaves the comparison out."
            )
        return False

    def _expect_finite(self, wanted: list[Any]) -> None:
        numbers = [leaf for leaf in map(np.asarray, wanted) if leaf.size and _is_real(leaf)]
        if numbers and not any(np.isfinite(n.astype(np.float32)).any() for n in numbers):
            raise ConversionError(
                f"All outputs of {type(self._module).__name__} on the example inputs are NaN or "
                "infinite in PyTorch, so nothing can be compared. Give example inputs with finite "
                "outputs, or check=False."
            )

    def _ours(self, program: Exported, gradients: bool) -> Any:
        trained = {w.path: w for w in self._weights if w.kind == "parameter"} if gradients else {}

        def loss(parameters: Any, rest: Any, inputs: Any) -> Any:
            view = WeightView(self._weights, {**rest, **parameters})
            results, buffers = compute(
                program.steps, program.program, view, inputs, key=jax.random.key(0)
            )
            return _loss(results, jnp), ([_number(leaf) for leaf in results], buffers)

        def both(parameters: Any, rest: Any, inputs: Any) -> Any:
            if not gradients:
                return loss(parameters, rest, inputs)[1], {}
            slopes, found = jax.grad(loss, has_aux=True)(parameters, rest, inputs)
            return found, slopes

        whole = [i for i, index in enumerate(program.program.inputs)
                 if program.program.types[index] is not None]  # fmt: skip

        @jax.jit
        def compiled(parameters: Any, rest: Any, arrays: list[Any]) -> Any:
            inputs = [program.fixed.get(i) for i in range(len(program.program.inputs))]
            for number, array in zip(whole, arrays, strict=True):
                inputs[number] = array
            return both(parameters, rest, inputs)

        parameters = {path: self._arrays[path] for path in trained}
        rest = {path: a for path, a in self._arrays.items() if path not in trained}

        def run(inputs: list[Any]) -> tuple[list[Any], dict[str, Any], dict[str, Any]]:
            given = [jnp.asarray(inputs[number]) for number in whole]
            (results, buffers), slopes = compiled(parameters, rest, given)
            by_name = {}
            for path, slope in slopes.items():
                names = trained[path].names
                each = list(slope) if trained[path].is_stacked else [slope]
                by_name.update(zip(names, map(np.asarray, each), strict=True))
            return results, buffers, by_name

        return run

    def _torchs(
        self, program: Exported, training: bool, gradients: bool, given: tuple[Any, Any]
    ) -> tuple[list[Any], dict[str, Any], dict[str, Any]]:
        torch = load_torch()

        module = self._module
        buffers = {n: b.detach().clone() for n, b in module.named_buffers()}
        before = {n: p.grad for n, p in module.named_parameters()}
        random = torch.random.get_rng_state()
        quiet = warnings.catch_warnings()  # of PyTorch's own kernels
        with (
            quiet, in_mode(module, training), without_cache(module),
            without_drawn_structure(module), torch.set_grad_enabled(gradients),
        ):  # fmt: skip
            warnings.simplefilter("ignore")
            try:
                for parameter in module.parameters():
                    parameter.grad = None
                found = module(*given[0], **given[1])
                leaves = program.gives.flatten(found, "the result")
                if gradients:
                    loss = _loss(leaves, torch)
                    if getattr(loss, "requires_grad", False):
                        loss.backward()
                slopes = {
                    self._names[n]: to_jax(p.grad)
                    for n, p in module.named_parameters() if p.grad is not None and gradients
                }  # fmt: skip
                new = {self._names[n]: to_jax(b) for n, b in module.named_buffers()}
            finally:
                for name, parameter in module.named_parameters():
                    parameter.grad = before[name]
                with torch.no_grad():
                    for name, buffer in module.named_buffers():
                        buffer.copy_(buffers[name])
                torch.random.set_rng_state(random)
        values = [to_jax(leaf) if hasattr(leaf, "detach") else _number(leaf) for leaf in leaves]
        return values, new, slopes


def _loss(leaves: Sequence[Any], library: Any) -> Any:
    """Return the sum of floating-point leaves, each times a fixed random number."""
    total: Any = 0.0
    for number, leaf in enumerate(leaves):
        dtype = str(getattr(leaf, "dtype", ""))
        if "float" not in dtype:
            continue
        factors = np.random.default_rng(number).normal(size=tuple(leaf.shape)).astype(np.float32)
        if library is jnp:
            total = total + (leaf.astype(jnp.float32) * factors).sum()
        elif leaf.requires_grad:
            total = total + (leaf.float() * library.from_numpy(factors)).sum()
    return total


def _number(leaf: Any) -> Any:
    """Return a result that can be compared: None for a text or another object."""
    return leaf if hasattr(leaf, "dtype") or isinstance(leaf, (int, float, complex)) else None


def _is_real(leaf: Any) -> bool:
    return jnp.issubdtype(getattr(leaf, "dtype", object), jnp.floating)


def _is_half(leaf: Any) -> bool:
    return str(getattr(leaf, "dtype", "")) in ("bfloat16", "float16")


def _size(result: Any) -> float:
    floating = _is_real(result)
    return float(jnp.abs(jnp.nan_to_num(result.astype(jnp.float32))).sum()) if floating else 0.0


def _difference(ours: Any, wanted: Any, least: float = 1e-12) -> float:
    """Return the largest difference, relative to the largest number; infinite for NaN apart."""
    a, b = np.asarray(ours), np.asarray(wanted)
    if a.shape != b.shape:
        return float("inf")
    if a.dtype.kind in "biuO" or a.size == 0:
        return float(not np.array_equal(a, b))
    wide = np.complex128 if "c" in (a.dtype.kind, b.dtype.kind) else np.float64
    a, b = a.astype(wide), b.astype(wide)
    finite = np.isfinite(b)
    if (
        not np.array_equal(a[~finite], b[~finite], equal_nan=True)
        or not np.isfinite(a[finite]).all()
    ):
        return float("inf")
    scale = max(float(np.abs(b[finite]).max(initial=0.0)), least, 1e-12)
    return float(np.abs(a - b)[finite].max(initial=0.0)) / scale


def _changed(leaf: Any) -> Any:
    """Return an input with other values of the same kind."""
    if not hasattr(leaf, "dtype") or leaf.size == 0:
        return leaf
    values = np.asarray(leaf)
    if values.dtype == bool:
        return values
    if values.dtype.kind in "iu":
        return np.where(values < values.max(initial=0), values + 1, 0).astype(values.dtype)
    noise = np.random.default_rng(7).normal(size=values.shape)
    wide = np.complex64 if values.dtype.kind == "c" else np.float32
    return (values.astype(wide) + noise).astype(values.dtype)


def _same(first: Sequence[Any], second: Sequence[Any]) -> bool:
    pairs = zip(map(np.asarray, first), map(np.asarray, second), strict=True)
    return all(np.array_equal(a, b, equal_nan=a.dtype.kind in "fc") for a, b in pairs)
