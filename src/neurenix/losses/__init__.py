"""Losses: stateless, targets first, ``loss(y_true, y_pred, sample_weight=None)``.

Owns the public names; each formula is in the module named after its family.
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
    HingeLoss,
    HuberLoss,
    L1Loss,
    MSELoss,
    NLLLoss,
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
    "HingeLoss",
    "Huber",
    "HuberLoss",
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
    "SparseCategoricalCrossentropy",
    "SquaredHinge",
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

# What other libraries call what is called otherwise here.
_ELSEWHERE = {
    "KLDivLoss": "losses.KLDivergence",
    "MAE": "losses.MeanAbsoluteError",
    "MAPE": "losses.MeanAbsolutePercentageError",
    "MSE": "losses.MeanSquaredError",
    "MSLE": "losses.MeanSquaredLogarithmicError",
    "SmoothL1Loss": "losses.HuberLoss",
    "cross_entropy": "losses.sparse_categorical_crossentropy(y_true, y_pred, from_logits=True)",
    "mae": "losses.mean_absolute_error",
    "mse": "losses.mean_squared_error",
}

if not TYPE_CHECKING:  # a type checker would take any name for one that exists
    __getattr__ = names_of(__name__, __all__, _ELSEWHERE)
