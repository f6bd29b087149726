"""The callbacks of ``fit``, under the name that users look for."""

from typing import TYPE_CHECKING

from neurenix._core.names import names_of
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

__all__ = [
    "EMA",
    "CSVLogger",
    "Callback",
    "EarlyStopping",
    "LambdaCallback",
    "LearningRateScheduler",
    "ModelCheckpoint",
    "ReduceLROnPlateau",
    "TensorBoard",
    "TerminateOnNaN",
]

# Names of other libraries → what to use here.
_ELSEWHERE = {
    "AveragedModel": "EMA",
    "ExponentialMovingAverage": "EMA",
    "Checkpoint": "callbacks.ModelCheckpoint",
    "History": "what model.fit returns",
    "ModelEma": "EMA",
    "ModelEmaV2": "EMA",
    "ModelEmaV3": "EMA",
    "ProgbarLogger": "model.fit(…, verbose=True)",
    "SwapEMAWeights": "EMA",
    "WeightAveraging": "EMA",
}

if not TYPE_CHECKING:  # with __getattr__, a type checker would accept any name
    __getattr__ = names_of(__name__, __all__, _ELSEWHERE)
