"""Losses: stateless objects and functions. The name decides the order of arguments.

=======================================  ========================================
Keras names (``BinaryCrossentropy``)     ``loss(y_true, y_pred, sample_weight=None)``
functions (``binary_crossentropy``)      ``function(y_true, y_pred)``
PyTorch names (``BCELoss``)              ``loss(input, target)``: predictions first
=======================================  ========================================

A loss with a PyTorch name behaves as in PyTorch, including its reductions and the axis of classes.
``compile``, ``Trainer`` and metrics accept every kind and call it in the right order. User-defined
functions and metrics are called with ``(y_true, y_pred)``. Swapped arguments raise where they can
be detected (see :class:`Loss`).
"""

from typing import TYPE_CHECKING

from neurenix._core.names import names_of
from neurenix.losses.base import Loss
from neurenix.losses.crossentropy import (
    BinaryCrossentropy,
    CategoricalCrossentropy,
    SparseCategoricalCrossentropy,
    binary_crossentropy,
    categorical_crossentropy,
    sparse_categorical_crossentropy,
)
from neurenix.losses.margin import CategoricalHinge, Hinge, SquaredHinge, hinge
from neurenix.losses.registry import FunctionLoss, get
from neurenix.losses.regression import (
    Huber,
    LogCosh,
    MeanAbsoluteError,
    MeanAbsolutePercentageError,
    MeanSquaredError,
    MeanSquaredLogarithmicError,
    Poisson,
    huber,
    mean_absolute_error,
    mean_squared_error,
)
from neurenix.losses.similarity import (
    CosineSimilarity,
    KLDivergence,
    cosine_similarity,
    kl_divergence,
)
from neurenix.losses.torch_names import (
    BCELoss,
    BCEWithLogitsLoss,
    CrossEntropyLoss,
    HuberLoss,
    KLDivLoss,
    L1Loss,
    MSELoss,
    NLLLoss,
    SmoothL1Loss,
    TorchLoss,
)

__all__ = [
    "BCELoss",
    "BCEWithLogitsLoss",
    "BinaryCrossentropy",
    "CategoricalCrossentropy",
    "CategoricalHinge",
    "CosineSimilarity",
    "CrossEntropyLoss",
    "FunctionLoss",
    "Hinge",
    "Huber",
    "HuberLoss",
    "KLDivLoss",
    "KLDivergence",
    "L1Loss",
    "LogCosh",
    "Loss",
    "MSELoss",
    "MeanAbsoluteError",
    "MeanAbsolutePercentageError",
    "MeanSquaredError",
    "MeanSquaredLogarithmicError",
    "NLLLoss",
    "Poisson",
    "SmoothL1Loss",
    "SparseCategoricalCrossentropy",
    "SquaredHinge",
    "TorchLoss",
    "binary_crossentropy",
    "categorical_crossentropy",
    "cosine_similarity",
    "get",
    "hinge",
    "huber",
    "kl_divergence",
    "mean_absolute_error",
    "mean_squared_error",
    "sparse_categorical_crossentropy",
]

# Names of other libraries → what to use here.
_FUNCTION = "a function of your own, (y_true, y_pred), in JAX operations"
_ELSEWHERE = {
    "BinaryFocalCrossentropy": _FUNCTION,
    "CTCLoss": f"{_FUNCTION}, around optax.losses.ctc_loss",
    "CategoricalFocalCrossentropy": _FUNCTION,
    "CosineEmbeddingLoss": f"{_FUNCTION}; losses.CosineSimilarity where all pairs are alike",
    "GaussianNLLLoss": _FUNCTION,
    "HingeEmbeddingLoss": f"{_FUNCTION}; losses.Hinge is the hinge of signs and scores",
    "HingeLoss": "losses.Hinge(), called with (y_true, y_pred)",
    "MAE": "losses.MeanAbsoluteError",
    "MAPE": "losses.MeanAbsolutePercentageError",
    "MSE": "losses.MeanSquaredError",
    "MSLE": "losses.MeanSquaredLogarithmicError",
    "MarginRankingLoss": _FUNCTION,
    "MultiLabelMarginLoss": _FUNCTION,
    "MultiLabelSoftMarginLoss": "losses.BCEWithLogitsLoss",
    "MultiMarginLoss": f"{_FUNCTION}; losses.CategoricalHinge takes one-hot rows",
    "PoissonNLLLoss": "losses.Poisson(), called with (y_true, y_pred), of rates, not logarithms",
    "SigmoidFocalCrossEntropy": _FUNCTION,
    "SoftMarginLoss": f"{_FUNCTION}; losses.BinaryCrossentropy(from_logits=True) takes 0 and 1",
    "SparseCategoricalCrossEntropyLoss": "losses.SparseCategoricalCrossentropy",
    "TripletMarginLoss": _FUNCTION,
    "binary_cross_entropy": "losses.binary_crossentropy(y_true, y_pred)",
    "binary_cross_entropy_with_logits": "losses.binary_crossentropy(y_true, y_pred, "
    "from_logits=True)",
    "cosine_distance": "1 + losses.cosine_similarity(y_true, y_pred)",
    "cross_entropy": "losses.sparse_categorical_crossentropy(y_true, y_pred, from_logits=True)",
    "hinge_loss": "losses.hinge(y_true, y_pred)",
    "huber_loss": "losses.huber(y_true, y_pred)",
    "kl_div": "losses.kl_divergence(y_true, y_pred), of probabilities",
    "l1_loss": "losses.mean_absolute_error(y_true, y_pred)",
    "l2_loss": "losses.mean_squared_error(y_true, y_pred) / 2",
    "log_cosh": "losses.LogCosh().per_example(y_true, y_pred)",
    "mae": "losses.mean_absolute_error",
    "mse": "losses.mean_squared_error",
    "mse_loss": "losses.mean_squared_error(y_true, y_pred)",
    "nll_loss": "losses.NLLLoss()(input, target)",
    "sigmoid_binary_cross_entropy": "losses.binary_crossentropy(y_true, y_pred, from_logits=True)",
    "smooth_l1_loss": "losses.SmoothL1Loss()(input, target)",
    "softmax_cross_entropy": "losses.categorical_crossentropy(y_true, y_pred, from_logits=True)",
    "softmax_cross_entropy_with_integer_labels": "losses.sparse_categorical_crossentropy(y_true, "
    "y_pred, from_logits=True)",
    "squared_error": "losses.mean_squared_error(y_true, y_pred)",
}

if not TYPE_CHECKING:  # with __getattr__, a type checker would accept any name
    __getattr__ = names_of(__name__, __all__, _ELSEWHERE)
