"""Explain the errors of a PyTorch training loop inside a compiled function.

Outside a compiled function the optimizer raises them (``neurenix.train.optimizer``).
"""

from __future__ import annotations

import re

from jax.core import Tracer

from neurenix._core.errors import ArgumentTypeError
from neurenix._core.source_files import users_frames
from neurenix._migration.optimizers import STEP

_GRADIENTS = ("backward", "grad", "requires_grad_")


def refuse_pytorchs(error: Exception, name: str) -> None:
    """Raise if the error was caused by ``optimizer.step()`` or ``loss.backward()``.

    Args:
        error: raised by JAX.
        name: of the compiled function.

    Raises:
        ArgumentTypeError: the error has that cause; the message says what to call instead.

    Example:
        >>> refuse_pytorchs(TypeError("another"), "step")
    """
    if isinstance(error, AttributeError) and isinstance(error.obj, Tracer):
        if error.name in _GRADIENTS:
            raise ArgumentTypeError(
                f"{name} asks an array for {error.name}: arrays have no gradients here. In place "
                f"of loss.backward() and optimizer.step(): {STEP}."
            ) from error
    frames = users_frames(error)
    line = (frames[-1].line or "") if frames else ""
    if re.fullmatch(r"'\w*Tracer\w*' object is not callable", str(error)) and ".step(" in line:
        raise ArgumentTypeError(
            f"{name} calls optimizer.step, which is the number of updates made. In place of "
            f"loss.backward() and optimizer.step(): {STEP}."
        ) from error
