"""Training: ``fit``, callbacks, and the optimizer of custom loops."""

from neurenix.checkpoint.weights import load_weights, save_weights
from neurenix.train.callback import Callback
from neurenix.train.callbacks import (
    EarlyStopping,
    LambdaCallback,
    LearningRateScheduler,
    ReduceLROnPlateau,
    TerminateOnNaN,
)
from neurenix.train.ema import EMA
from neurenix.train.file_callbacks import CSVLogger, ModelCheckpoint, TensorBoard
from neurenix.train.fit import History
from neurenix.train.optimizer import Optimizer
from neurenix.train.options import FitOptions, TrainOptions
from neurenix.train.step_spec import StepProgram
from neurenix.train.trainer import Trainer
from neurenix.transforms import CompiledFunction, grad, jit, multi_step, value_and_grad

__all__ = [
    "EMA",
    "CSVLogger",
    "Callback",
    "CompiledFunction",
    "EarlyStopping",
    "FitOptions",
    "History",
    "LambdaCallback",
    "LearningRateScheduler",
    "ModelCheckpoint",
    "Optimizer",
    "ReduceLROnPlateau",
    "StepProgram",
    "TensorBoard",
    "TerminateOnNaN",
    "TrainOptions",
    "Trainer",
    "grad",
    "jit",
    "load_weights",
    "multi_step",
    "save_weights",
    "value_and_grad",
]
