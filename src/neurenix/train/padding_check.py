"""Find out by trial whether a batch may be padded.

A module that mixes the examples of a batch (subtracts a mean, a ``BatchNorm`` of another library, a
codebook) computes different results with padding rows, and ignores the padding mask. The compiled
program is therefore run with different padding rows. Does not own padding (``batch.py``) or the
programs (``epoch.py``, ``evaluation.py``).
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from neurenix._jax import process_allgather
from neurenix._jaxpr import open_jaxpr, subjaxprs
from neurenix._jit.random_keys import numbers_of
from neurenix.train.batch import Batch, num_examples, pad
from neurenix.train.module_split import ModuleSplit

# Takes a padded batch and returns the arrays that a program computes, without those of the padding
# rows; None if they are not finite.
Attempt = Callable[[Batch], Sequence[np.ndarray] | None]
MayFill = Callable[[Batch, int], bool]

_ROUNDINGS = 4  # tolerance in units in the last place of the largest value of an array
_ANOTHER_ORDER = 1e-3  # relative tolerance of sums over different numbers of rows
_TIMES_NOISE = 8  # tolerance as a multiple of the difference between two equal runs


@dataclass
class _Found:
    """A result, the weights that it was found with, and whether it holds for other weights."""

    depends: bool
    weights: list[weakref.ref[Any]]
    final: bool

    def holds_for(self, weights: Sequence[Any]) -> bool:
        same = len(weights) == len(self.weights)
        return self.final or (
            same and all(ref() is leaf for ref, leaf in zip(self.weights, weights, strict=True))
        )


class PaddingCheck:
    """The results for one module; each program is tried before its first smaller batch.

    Args:
        model: the module, split.
    """

    def __init__(self, model: ModuleSplit) -> None:
        self._model = model
        self._found: dict[Any, _Found] = {}
        self._said = False

    def judge(
        self,
        program: str,
        attempts: Callable[[], AbstractContextManager[Attempt]],
        forward: Callable[[Any, Any], Any],
        *,
        changes_weights: bool = False,
    ) -> MayFill:
        """Return a function that returns whether a batch may be padded to a size.

        Args:
            program: ``"fit"``, ``"evaluate"`` or ``"predict"``.
            attempts: returns a context manager of a trial of the program.
            forward: the module's computation in the program, a function of its parameters and other
                state, and of inputs; it is traced.
            changes_weights: whether the trial changes the weights first. A weight of 0 hides its
                factor, so otherwise a program that may be padded is tried a second time when the
                weights have changed.
        """

        def may_fill(batch: Batch, size: int) -> bool:
            leaves, treedef = jax.tree.flatten(batch)
            key = (program, treedef, *((np.ndim(leaf), str(leaf.dtype)) for leaf in leaves))
            held = () if changes_weights else self._model.held()
            known = self._found.get(key)
            if known is None or not known.holds_for(held):
                with attempts() as attempt:
                    depends = depends_on_added_rows(attempt, batch, size)
                    count = num_examples(batch)
                    if depends is False and uses_row_count(
                        forward, self._model.read(), batch.x, size, count
                    ):
                        depends = depends_on_row_count(attempt, batch, size)
                if depends is None:  # unknown; without padding the result is correct
                    return False
                final = depends or changes_weights or known is not None
                known = _Found(depends, list(map(weakref.ref, held)), final)
                self._found[key] = known
            if known.depends:
                self._say(num_examples(batch), size)
            return not known.depends

        return may_fill

    def _say(self, count: int, size: int) -> None:
        if not self._said:
            self._said = True
            sys.stderr.write(
                f"neurenix: rows added to a batch of {count}, to make it one of {size}, would "
                f"change what {self._model.name}, its loss or its metrics compute for the other "
                "rows. The batch is not padded, and the step is compiled once more. Batches of one "
                "size that the replicas divide, or drop_remainder=True of Dataset.batch, avoid "
                "that.\n"
            )


def depends_on_added_rows(attempt: Attempt, batch: Batch, size: int) -> bool | None:
    """Return whether the results for a batch depend on its padding rows.

    Args:
        attempt: computes the results for a padded batch.
        batch: n examples.
        size: rows of the padded batch.

    Returns:
        None if unknown, because at most one result is finite.

    Example:
        >>> batch = Batch(np.array([[1.0], [2.0]], np.float32))
        >>> depends_on_added_rows(lambda b: [b.x[:2] - b.x.mean(0)], batch, 4)
        True
        >>> depends_on_added_rows(lambda b: [b.x[:2] ** 2], batch, 4)
        False
    """
    first, *others = filled_in_several_ways(batch, size)
    reference = attempt(first)
    depends: bool | None = None
    for other in others:
        gaps = _gaps(reference, attempt(other))
        if reference is None or gaps is None:
            continue
        depends = _exceeds(gaps, reference)
        if depends:
            noise = _gaps(reference, attempt(first))
            depends = noise is None or _exceeds(gaps - _TIMES_NOISE * noise, reference)
        if depends:
            break
    return _of_all_processes(depends)


def depends_on_row_count(attempt: Attempt, batch: Batch, size: int) -> bool:
    """Return whether the results for a batch and for the padded batch differ.

    The order of their sums differs, so the tolerance is larger than a rounding.

    Example:
        >>> batch = Batch(np.array([[1.0], [2.0]], np.float32))
        >>> depends_on_row_count(lambda b: [b.x[:2] / len(b.x)], batch, 4)
        True
    """
    filled, alone = attempt(pad(batch, size)), attempt(pad(batch, num_examples(batch)))
    gaps = _gaps(filled, alone)
    found = gaps is None or _exceeds(gaps, filled or (), tolerance=_ANOTHER_ORDER)
    return bool(_of_all_processes(found))


def filled_in_several_ways(batch: Batch, size: int) -> Iterator[Batch]:
    """Yield the batch with different padding rows, first those of ``pad``.

    ``pad`` repeats rows of the batch, whose mean can be that of the batch. The others are random
    rows, zeros, and copies of the last row. Integers are within the range of the batch.

    Example:
        >>> for one in filled_in_several_ways(Batch(np.array([5, 3])), 4):
        ...     assert one.x[:2].tolist() == [5, 3] and max(one.x) == 5
    """
    filled = pad(batch, size)
    count = num_examples(batch)
    random = np.random.default_rng(0)

    def drawn(rows: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
        if rows.dtype == bool:
            return random.integers(0, 2, shape)
        low, high = rows.min(initial=0), rows.max(initial=0)
        if jnp.issubdtype(rows.dtype, jnp.integer):
            return random.integers(low, high, shape, endpoint=True)
        greatest = np.nan_to_num(float(max(abs(low), abs(high)))) or 1.0
        return random.uniform(-2, 3, shape) * min(greatest, float(jnp.finfo(rows.dtype).max) / 4)

    def with_rows(make: Callable[[np.ndarray, tuple[int, ...]], Any]) -> Batch:
        def one(leaf: np.ndarray) -> np.ndarray:
            leaf = leaf.copy()
            leaf[count:] = np.asarray(make(leaf[:count], leaf[count:].shape)).astype(leaf.dtype)
            return leaf

        return filled._replace(x=jax.tree.map(one, filled.x))

    yield filled
    yield with_rows(drawn)
    yield with_rows(lambda rows, shape: np.zeros(shape))
    yield with_rows(lambda rows, shape: np.broadcast_to(rows[-1:], shape))


def _gaps(
    one: Sequence[np.ndarray] | None, other: Sequence[np.ndarray] | None
) -> np.ndarray | None:
    """Return the largest difference of each array; None if different values are finite."""
    if one is None or other is None:
        return None
    gaps = []
    for a, b in zip(one, other, strict=True):
        a, b = _wide(a), _wide(b)
        finite = np.isfinite(a)
        if not np.array_equal(finite, np.isfinite(b)):
            return None
        gaps.append(np.max(np.abs(a - b), initial=0, where=finite))
    return np.array(gaps)


def _exceeds(gaps: np.ndarray, reference: Sequence[np.ndarray], tolerance: float = 0.0) -> bool:
    """Return whether a gap exceeds the tolerance, relative to the array's largest value."""

    def allowed(leaf: np.ndarray) -> float:
        if not jnp.issubdtype(leaf.dtype, jnp.inexact):
            return 0.0
        wide = np.abs(_wide(leaf))
        greatest = np.max(wide, initial=0, where=np.isfinite(wide))
        return float(max(tolerance, _ROUNDINGS * jnp.finfo(leaf.dtype).eps) * greatest)

    return any(gap > allowed(leaf) for gap, leaf in zip(gaps, reference, strict=True))


def _wide(leaf: np.ndarray) -> np.ndarray:
    return leaf.astype(np.complex128 if np.iscomplexobj(leaf) else np.float64)


def _of_all_processes(depends: bool | None) -> bool | None:
    """Return the result of all processes; each one compares its own shards."""
    if jax.process_count() == 1:
        return depends
    code = {None: 1, False: 0, True: 2}[depends]
    found = np.max(process_allgather(np.int32(code)))
    return {1: None, 0: False, 2: True}[int(found)]


def uses_row_count(
    function: Callable[[Any, Any], Any], model: Any, x: Any, one: int, other: int
) -> bool:
    """Return whether the traces for two numbers of rows differ in more than array shapes.

    Different traces may compute the same, such as those of ``x[-1]``.

    Args:
        function: of a model and a batch's inputs.
        model: its arrays; only shapes and dtypes are used.
        x: inputs, (N, …).
        one: a number of rows.
        other: another number of rows.

    Example:
        >>> x = np.ones((4, 2), np.float32)
        >>> uses_row_count(lambda model, x: x / x.shape[0], (), x, 4, 3)
        True
        >>> uses_row_count(lambda model, x: x / x.shape[1], (), x, 4, 3)
        False
    """

    def described(leaf: Any, shape: tuple[int, ...]) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, jax.dtypes.canonicalize_dtype(leaf.dtype))

    def traced(rows: int) -> Any:
        inputs = jax.tree.map(lambda leaf: described(leaf, (rows, *leaf.shape[1:])), x)
        return jax.make_jaxpr(function)(held, inputs)

    held = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), model)
    return not _same_numbers(traced(one), traced(other))


def _same_numbers(one: Any, other: Any) -> bool:
    """Compare two jaxprs, open or closed."""
    consts = zip(getattr(one, "consts", ()), getattr(other, "consts", ()), strict=False)
    if not all(_same(a, b) for a, b in consts):
        return False
    one, other = open_jaxpr(one), open_jaxpr(other)
    return len(one.eqns) == len(other.eqns) and all(map(_same_equation, one.eqns, other.eqns))


def _same_equation(one: Any, other: Any) -> bool:
    if one.primitive is not other.primitive or len(one.invars) != len(other.invars):
        return False
    atoms = zip(one.invars, other.invars, strict=True)
    if not all(_same(getattr(a, "val", None), getattr(b, "val", None)) for a, b in atoms):
        return False
    inside, others = subjaxprs(one), subjaxprs(other)
    return len(inside) == len(others) and all(map(_same_numbers, inside, others))


def _same(one: Any, other: Any) -> bool:
    """Compare two constants; those of different shapes count as equal."""
    if one is None or other is None:
        return one is other
    one, other = map(_numbers, (one, other))
    return one.shape != other.shape or one.tobytes() == other.tobytes()


def _numbers(constant: Any) -> np.ndarray:
    return np.asarray(numbers_of(constant) if hasattr(constant, "dtype") else constant)
