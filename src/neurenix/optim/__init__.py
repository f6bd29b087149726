"""Optimizers: frozen dataclasses over optax, with PyTorch's names and defaults.

Learning-rate schedules are in ``schedules``.
"""

from typing import TYPE_CHECKING

from neurenix._core.names import names_of
from neurenix._migration import optimizers
from neurenix.optim import schedules
from neurenix.optim.adam import Adam, Adamax, AdamW, Lamb, Lion, NAdam, RAdam
from neurenix.optim.adaptive import Adadelta, Adafactor, Adagrad, RMSprop
from neurenix.optim.base import OptimizerSpec, matrices_only
from neurenix.optim.moments import held_in
from neurenix.optim.registry import get, learning_rate_of, spec
from neurenix.optim.sgd import SGD, Lars

__all__ = [
    "SGD",
    "Adadelta",
    "Adafactor",
    "Adagrad",
    "Adam",
    "AdamW",
    "Adamax",
    "Lamb",
    "Lars",
    "Lion",
    "NAdam",
    "OptimizerSpec",
    "RAdam",
    "RMSprop",
    "get",
    "held_in",
    "learning_rate_of",
    "matrices_only",
    "schedules",
    "spec",
]

if not TYPE_CHECKING:  # with __getattr__, a type checker would accept any name
    __getattr__ = names_of(__name__, __all__, optimizers.NAMES)
