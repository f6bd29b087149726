"""The options of a trainer and of ``fit``, and checks of the arguments of its methods.

Owns the two option classes, their validation, and the errors for unknown option names. Does not
own the checks of data (``batch.py``) or of callbacks (``callback_states.py``).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any

import jax.numpy as jnp
import numpy as np

from neurenix._core.errors import ArgumentError, ArgumentTypeError, did_you_mean, unknown_name
from neurenix._core.number_checks import optional_number, whole_number
from neurenix.distribute import Strategy
from neurenix.train.progress import check_verbose

_COMPUTE_DTYPES = {"float32": None, "bfloat16": jnp.bfloat16}
REMATS = ("none", "dots")


@dataclass(frozen=True, kw_only=True)
class TrainOptions:
    """How a step is built.

    Attributes:
        steps_per_execution: optimizer steps in one compiled call, a ``lax.scan`` on the device.
        precision: ``"float32"``, or ``"bfloat16"``: parameters stay float32, the model computes
            in bfloat16, the loss in float32.
        check_gradients: check every gradient for NaN and infinity before the update. Without it
            only the loss is checked, and a gradient that is not finite can destroy the weights
            while the loss is still finite. The check reads every gradient once.
        accumulate_steps: number of parts of a batch that are computed one after the other before
            the optimizer's update; divides the memory of activations. Not for a loss that couples
            the examples of a batch.
        remat: what the backward pass recomputes: ``"none"`` stores all activations that it needs,
            ``"dots"`` stores the results of matrix products and convolutions and recomputes the
            rest. (Models that scan their layers have their own policies.)
        strategy: the devices; by default those of the current ``strategy.scope()``, else the
            device of the parameters.
    """

    steps_per_execution: int = 1
    precision: str = "float32"
    check_gradients: bool = True
    accumulate_steps: int = 1
    remat: str = "none"
    strategy: Strategy | None = None

    def __post_init__(self) -> None:
        for name in ("steps_per_execution", "accumulate_steps"):
            object.__setattr__(self, name, whole_number(name, getattr(self, name)))
        if self.precision not in _COMPUTE_DTYPES:
            raise unknown_name("precision", str(self.precision), _COMPUTE_DTYPES)
        if self.remat not in REMATS:
            raise unknown_name("remat policy", str(self.remat), REMATS)

    @property
    def compute_dtype(self) -> Any:
        """The dtype that parameters and inputs are cast to for the model; None for no cast."""
        return _COMPUTE_DTYPES[self.precision]


@dataclass(frozen=True, kw_only=True)
class FitOptions:
    """Options of ``fit`` beside the data.

    Attributes:
        sample_weight: weight of each example, shape (N,), for array data. It weights the loss and
            the metrics; in Keras, ``weighted_metrics`` only.
        class_weight: class index → weight; weights the metrics too, unlike in Keras.
        shuffle: reshuffle array data before every epoch.
        verbose: ``"auto"`` and True show progress, a bar on a terminal and one line for each epoch
            elsewhere; False shows nothing.
        initial_epoch: number of the first epoch, to continue training. Callbacks continue from the
            state of those of the last ``fit``, unless one of them stopped it. In another process,
            call ``Trainer.load`` first; otherwise callbacks, optimizer and schedule start again.
        validation_split: fraction of the rows of arrays, the last ones before any shuffling, to
            hold out of training and evaluate after every epoch.
        validation_steps: batches of validation; None for all.
        validation_batch_size: for array data; None for the training batch size.
    """

    sample_weight: Any = None
    class_weight: Mapping[int, float] | None = None
    shuffle: bool = True
    verbose: bool | str = "auto"
    initial_epoch: int = 0
    validation_split: float = 0.0
    validation_steps: int | None = None
    validation_batch_size: int | None = None

    def __post_init__(self) -> None:
        check_verbose(self.verbose)
        object.__setattr__(self, "validation_split", _checked_split(self.validation_split))
        first = whole_number("initial_epoch", self.initial_epoch, least=0)
        object.__setattr__(self, "initial_epoch", first)
        for name in ("validation_steps", "validation_batch_size"):
            object.__setattr__(self, name, optional_number(name, getattr(self, name)))


def check_options(function: str, options: Iterable[str], known: Iterable[str]) -> None:
    """Check the names of options.

    Raises:
        ArgumentTypeError: one of ``options`` is not ``known``.
    """
    known = list(known)
    for name in options:
        if name not in known:
            raise ArgumentTypeError(
                f"{function}() has no option {name!r}.{did_you_mean(name, known)} "
                f"Options: {', '.join(known)}."
            )


def options_of(function: Callable[..., Any]) -> list[str]:
    """Return the names of the keyword-only arguments of a function."""
    parameters = inspect.signature(function).parameters.values()
    return [p.name for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY]


def _checked_split(fraction: Any) -> float:
    """Return the fraction as a float; 0 means no held-out rows.

    Raises:
        ArgumentError: it is not a number from 0 to below 1.
    """
    if isinstance(fraction, (int, float, np.number)) and 0 <= fraction < 1:
        return float(fraction)
    raise ArgumentError(f"validation_split must be a fraction from 0 to below 1, got {fraction!r}.")


DEFAULT_TRAIN_OPTIONS = TrainOptions()
DEFAULT_FIT_OPTIONS = FitOptions()
FIT_OPTIONS = tuple(field.name for field in fields(FitOptions))
