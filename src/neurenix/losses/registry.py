"""Build a loss from a name, a class or a function."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import jax
import jax.numpy as jnp

from neurenix._core.errors import ArgumentTypeError, ShapeError, unknown_name
from neurenix._user_functions.alignment import aligned
from neurenix._user_functions.batch_dependence import of_each_alone
from neurenix._user_functions.other_libraries import refuse_foreign, refuse_predictions_first
from neurenix.losses import crossentropy, margin, regression, similarity, torch_names
from neurenix.losses.base import Loss, mean_per_example
from neurenix.losses.torch_names import TorchLoss

_CLASSES: tuple[type[Loss], ...] = (
    crossentropy.SparseCategoricalCrossentropy,
    crossentropy.CategoricalCrossentropy,
    crossentropy.BinaryCrossentropy,
    regression.MeanSquaredError,
    regression.MeanAbsoluteError,
    regression.MeanAbsolutePercentageError,
    regression.MeanSquaredLogarithmicError,
    regression.Huber,
    regression.LogCosh,
    regression.Poisson,
    similarity.CosineSimilarity,
    similarity.KLDivergence,
    margin.Hinge,
    margin.SquaredHinge,
    margin.CategoricalHinge,
)
_BY_NAME: Mapping[str, type[Loss] | type[TorchLoss]] = {cls().name: cls for cls in _CLASSES} | {
    "mse": regression.MeanSquaredError,
    "mae": regression.MeanAbsoluteError,
    "mape": regression.MeanAbsolutePercentageError,
    "msle": regression.MeanSquaredLogarithmicError,
    "bce": crossentropy.BinaryCrossentropy,
    "kld": similarity.KLDivergence,
    "cross_entropy": torch_names.CrossEntropyLoss,
}


@dataclass(frozen=True)
class FunctionLoss(Loss):
    """A function ``(y_true, y_pred)`` as a loss.

    The function returns one loss per example (N, ...), or a scalar, which is treated as the mean
    over the batch. With sample weights, a scalar function is called once per example (vectorized),
    so a scalar that couples examples cannot be weighted. ``fit`` and ``evaluate`` do not pad
    batches for a function whose loss of one example depends on other examples (in-batch negatives).

    For a model that returns a dict or a tuple of arrays, ``y_pred`` is that dict or tuple. Targets
    (N,) for predictions (N, 1) are passed as (N, 1), and vice versa, so that ``y_true - y_pred``
    pairs each target with its prediction. A function that handles both shapes itself gets them
    unchanged (``_user_functions.alignment.aligned``).

    Args:
        function: the function; traced, so it must use JAX operations.
    """

    function: Callable[[jax.Array, jax.Array], jax.Array]

    @property
    def name(self) -> str:
        """The function's name."""
        return getattr(self.function, "__name__", type(self.function).__name__)

    def elementwise(self, y_true: jax.Array, y_pred: jax.Array) -> jax.Array:
        """Return the function's result per example."""
        y_true = aligned(self.function, y_true, y_pred)
        losses = self._called(y_true, y_pred)
        if losses.ndim == 0:
            losses = of_each_alone(self.function, y_true, y_pred)
        batch = jnp.shape(jax.tree.leaves(y_pred)[0])[:1]
        if losses.shape[:1] != batch:
            raise ShapeError(
                f"The loss function {self.name!r} returned shape {losses.shape} for a batch of "
                f"{batch[0]}; it must return a scalar or one loss per example."
            )
        return losses

    def __call__(
        self, y_true: jax.Array, y_pred: jax.Array, sample_weight: jax.Array | None = None
    ) -> jax.Array:
        """Return the mean loss; see :meth:`Loss.__call__`."""
        if sample_weight is not None or self.reduction != "mean":
            return super().__call__(y_true, y_pred, sample_weight)
        y_true = aligned(self.function, y_true, y_pred)
        return jnp.mean(mean_per_example(self._called(y_true, y_pred)))

    def _called(self, y_true: jax.Array, y_pred: jax.Array) -> jax.Array:
        found = self.function(y_true, y_pred)
        if isinstance(found, (tuple, dict)):
            raise ArgumentTypeError(
                f"The loss function {self.name!r} returned a {type(found).__name__}; it must "
                "return a scalar or one loss per example. Give several numbers as metrics."
            )
        return jnp.asarray(found)

    def _validate_shape(self, y_true: tuple[int, ...], y_pred: tuple[int, ...]) -> None:
        if y_true[:1] != y_pred[:1]:
            raise ShapeError(f"`y_true` has {y_true[:1]} examples where `y_pred` has {y_pred[:1]}.")


def get(loss: str | Loss | TorchLoss | type[Loss] | type[TorchLoss] | Callable) -> Loss:
    """Return the loss for a name, a loss, a loss class or a function.

    The result takes targets first, also for a loss with a PyTorch name.

    Raises:
        UnknownNameError: unknown loss name; the message suggests similar names.
        ArgumentTypeError: ``loss`` has another type, belongs to another library such as PyTorch, or
            is a function whose parameter names say predictions first, as in optax.

    Example:
        >>> nx.losses.get("mse").name
        'mean_squared_error'
    """
    if isinstance(loss, Loss):
        return loss
    if isinstance(loss, TorchLoss):
        return loss.targets_first
    if isinstance(loss, str):
        if loss.lower() not in _BY_NAME:
            raise unknown_name("loss", loss, _BY_NAME)
        return get(_BY_NAME[loss.lower()]())
    if isinstance(loss, type) and issubclass(loss, (Loss, TorchLoss)):
        return get(loss())
    refuse_foreign("loss", loss, _names())
    if callable(loss) and not isinstance(loss, type):
        refuse_predictions_first("loss", loss)
        return FunctionLoss(loss)
    raise ArgumentTypeError(
        f"The argument `loss` must be a name, a Loss or a function (y_true, y_pred); got "
        f"{type(loss).__name__}."
    )


def _names() -> set[str]:
    torch = {cls.__name__ for cls in TorchLoss.__subclasses__()}
    return torch | {cls.__name__ for cls in _CLASSES}
