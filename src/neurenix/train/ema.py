"""``EMA``: a callback that averages the weights over optimizer steps.

Owns when the averages replace the weights, and their saving. Does not own their computation
(``ema_rule.py``).
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import jax
import jax.numpy as jnp

from neurenix._core.errors import ArgumentError, CheckpointError, unknown_name
from neurenix._core.number_checks import check_number, whole_number
from neurenix.checkpoint.safetensors_file import differences
from neurenix.checkpoint.weights import is_held, put_back, variables_held
from neurenix.train.callback import Callback
from neurenix.train.ema_rule import Average, AverageRule
from neurenix.train.module_split import ModuleSplit

USES = ("validation", "checkpoints", "end")


class EMA(Callback):
    """Average the weights exponentially over optimizer steps, inside the compiled step.

    After optimizer step t = 1, 2, … with the weights w_t, and w_0 those at the start of ``fit``,
    the average is::

        a_t = w_t                             for t ≤ s, so a_0 = w_0
        a_t = d_t · a_{t−1} + (1 − d_t) · w_t    for t > s

    where s is ``start_step`` and d_t is ``decay``, or with ``warmup``
    min(decay, (1 + t − s) / (10 + t − s)). With s = 0 it equals that of timm's ``ModelEmaV2``; with
    s = 1, that of Keras's ``use_ema`` and ``SwapEMAWeights`` and of PyTorch's
    ``swa_utils.AveragedModel`` with ``get_ema_multi_avg_fn``, called after every step.

    Every optimizer step counts once, whatever ``steps_per_execution`` and ``accumulate_steps``
    are; a step that diverges does not count. The average has the size and the shardings of the
    parameters, in float32 or wider. Batch statistics are those of the newest step, unless they are
    averaged too.

    A later ``fit`` of the same trainer with this callback continues the average if the shapes of
    the parameters are the same. ``Trainer.save`` includes the average; after ``Trainer.load``,
    ``fit`` continues from weights and average.

    Args:
        decay: d, from 0 to below 1.
        warmup: start with a smaller d, which discounts early weights faster.
        start_step: s, optimizer steps before averaging starts.
        batch_statistics: also average floating-point arrays that are not weights, such as the
            means and variances of batch normalization.
        swap: where the average replaces the weights automatically, any of ``"validation"``
            (the numbers ``val_…`` of ``fit``), ``"checkpoints"`` (files of ``ModelCheckpoint`` with
            weights only) and ``"end"`` (the model has the average when ``fit`` returns; a ``fit``
            that continues starts from the weights).

    Raises:
        ArgumentError: ``decay`` is out of range.
        UnknownNameError: unknown name in ``swap``.

    Example:
        >>> from neurenix import nn
        >>> x, y = nx.ones((8, 2)), nx.ones((8, 1))
        >>> model = nn.Linear(2, 1).compile("sgd", "mse")
        >>> ema = nx.callbacks.EMA(0.99, swap=["validation"])
        >>> _ = model.fit(x, y, epochs=2, validation_data=(x, y), callbacks=ema, verbose=0)
        >>> with ema.swapped():
        ...     logs = model.evaluate(x, y)
        >>> averaged = ema.averaged()  # a model of its own
    """

    migration_options = {
        **Callback.migration_options,
        "alpha": "decay",
        "average_decay": "decay",
        "beta": "decay",
        "dynamic_decay": "warmup",
        "ema_momentum": "decay",
        "momentum": "decay",
        "overwrite_frequency": 'swap=["end"]',
        "swap_on_epoch": 'swap=["validation", "checkpoints"]',
        "update_after_step": "start_step",
        "use_buffers": "batch_statistics",
        "use_warmup": "warmup",
    }

    def __init__(
        self,
        decay: float = 0.999,
        *,
        warmup: bool = False,
        start_step: int = 0,
        batch_statistics: bool = False,
        swap: str | Iterable[str] = (),
    ) -> None:
        check_number("The argument `decay`", decay)
        if not 0 <= decay < 1:
            raise ArgumentError(
                f"EMA: decay must be from 0 to below 1, got {decay}. It is the share of the old "
                "average, such as 0.999."
            )
        start = whole_number("The argument `start_step`", start_step, least=0)
        self.swap = (swap,) if isinstance(swap, str) else tuple(swap)
        for use in self.swap:
            if use not in USES:
                raise unknown_name("use of an average", str(use), USES)
        self.rule = AverageRule(float(decay), bool(warmup), start, bool(batch_statistics))
        self._average: Average | None = None  # donated by a step, and then replaced
        self._averages_of: Any = None  # the trainer
        self._weights: dict[str, Any] | None = None  # while the module holds the average

    @property
    def steps(self) -> int:
        """Optimizer steps since averaging began."""
        return 0 if self._average is None else int(self._average.count)

    def begin(self, model: Any) -> Average:
        """Return the initial average of ``fit``: an earlier one, or a copy of the weights.

        Args:
            model: parameters and other state of the model.
        """
        first = jax.eval_shape(self.rule.first, model)
        held = self._average
        if self._averages_of is not self.trainer or held is None or not _alike(first, held):
            held = jax.jit(self.rule.first)(model)
        self._averages_of = self.trainer
        return held

    @property
    def average(self) -> Average | None:
        """The arrays, valid until the next step; None before the first ``fit``."""
        return self._average

    @average.setter
    def average(self, value: Average) -> None:
        self._average = value

    @contextmanager
    def swapped(self) -> Iterator[None]:
        """Put the average into the model inside a ``with`` block, to evaluate or save it.

        A file that ``Trainer.save`` writes inside has the average as the weights of the model;
        training still continues from the real weights.

        Raises:
            ArgumentError: there is no average yet.
        """
        split, before = ModuleSplit(self.model), self._weights
        own = split.read()
        averaged = self.rule.put_into(self._needed(), own)
        self._weights = variables_held(self.model)
        split.write(*jax.tree.map(jnp.copy, averaged))  # which a compiled function may donate
        try:
            yield
        finally:
            split.write(*own)
            self._weights = before

    def averaged(self) -> Any:
        """Return a copy of the model with the average as its weights.

        Raises:
            ArgumentError: there is no average yet.
        """
        average, module = self._needed(), copy.deepcopy(self.model)
        split = ModuleSplit(module)
        split.write(*jax.tree.map(jnp.copy, self.rule.put_into(average, split.read())))
        return module

    def on_train_begin(self) -> None:
        """Forget what an earlier run has put back."""
        self._weights = None

    def on_train_end(self) -> None:
        """Put the average into the model, if ``swap`` has ``"end"``."""
        if "end" in self.swap:
            self._weights = variables_held(self.model)
            split = ModuleSplit(self.model)
            split.write(*jax.tree.map(jnp.copy, self.rule.put_into(self._needed(), split.read())))

    def state(self) -> dict[str, Any]:
        """Return the average, and the weights if the model holds the average."""
        average = None if self._average is None else _named(self._average)
        return {"average": average, "weights": self._weights}

    def load_state(self, state: dict[str, Any]) -> None:
        """Continue from an average, and from the weights that it replaced.

        Raises:
            CheckpointError: the average is of other arrays.
        """
        held, stored, weights = self._needed(), state["average"], state["weights"]
        if stored is None:
            return
        if problems := differences(_named(held), stored, "average"):
            raise CheckpointError(
                f"EMA: the average that was saved is of other arrays:\n{problems}\n"
                "Averages with and without batch_statistics do not go on from each other."
            )
        leaves = [
            jax.device_put(jnp.asarray(stored[name], leaf.dtype), leaf.sharding)
            for name, leaf in _named(held).items()
        ]
        average: Average = jax.tree.unflatten(jax.tree.structure(held), leaves)
        self._average = average
        if weights is not None:
            split = ModuleSplit(self.model)
            own = split.read()
            split.write(*self.rule.put_into(average, own))
            averaged = variables_held(self.model)
            split.write(*own)
            if is_held(self.model, averaged):
                put_back(self.model, weights)

    def _needed(self) -> Average:
        if self._average is None:
            raise ArgumentError(
                "EMA has no average yet: give it to fit, model.fit(…, callbacks=ema), which begins "
                "to average."
            )
        return self._average


def averaging(callbacks: Sequence[Callback]) -> list[EMA]:
    """Return the callbacks that average.

    Raises:
        ArgumentError: two of them would replace the weights at once.
    """
    found = [callback for callback in callbacks if isinstance(callback, EMA)]
    for use in USES:
        if sum(use in ema.swap for ema in found) > 1:
            raise ArgumentError(
                f"Two EMA callbacks have swap={use!r}, and the model holds one of them at a time. "
                "Remove it from one."
            )
    return found


def swapped_for(use: str, callbacks: Sequence[Callback]) -> AbstractContextManager[None]:
    """Return a context in which the model holds the average whose ``swap`` has ``use``, if any."""
    for ema in averaging(callbacks):
        if use in ema.swap:
            return ema.swapped()
    return nullcontext()


def _named(average: Average) -> dict[str, Any]:
    return {
        jax.tree_util.keystr(path, simple=True, separator="."): leaf
        for path, leaf in jax.tree_util.tree_leaves_with_path(average)
    }


def _alike(a: Any, b: Any) -> bool:
    if jax.tree.structure(a) != jax.tree.structure(b):
        return False
    pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    return all((x.shape, x.dtype) == (y.shape, y.dtype) for x, y in pairs)
