"""The base class of models and layers: an NNX module that can be trained, moved and saved.

Its methods delegate: training to ``neurenix.train``, placement to ``neurenix.device``, tables to
``summary``, files to ``neurenix.checkpoint``.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NoReturn, Self

import jax
import jax.numpy as jnp

from neurenix._core.errors import ArgumentTypeError, NotCompiledError
from neurenix._core.names import ExplainedMeta, MissingAttributeError, answers
from neurenix._dtypes import dtype as dtype_named
from neurenix._jit.training_mode import following_mode, mode_of, set_mode
from neurenix._migration import layers
from neurenix._migration.trainer import OF_COMPILE
from neurenix._nnx import nnx
from neurenix.checkpoint import load_weights, save_weights
from neurenix.device import Device, DeviceType, expect_floating, place_and_dtype
from neurenix.device import to as move
from neurenix.distribute import get_strategy
from neurenix.distribute.strategy import made_in
from neurenix.hardware.allocation import out_of_memory_told
from neurenix.nn import freezing
from neurenix.nn._call_errors import cause, no_container, not_called
from neurenix.nn.summary import Summary, summarize
from neurenix.train import (
    History,
    Trainer,
    TrainOptions,
)
from neurenix.train.options import check_options, options_of

# Flax looks for these on every module, so their errors are built without a hint.
_PROBED = ("deterministic", "use_running_average", "sharding_rules")
_NEVER_CALLING = ("neurenix.", "flax.")  # their layers never call a subclass's ``forward``


def _running(module: Module) -> Trainer:
    if module.trainer is None:
        raise NotCompiledError(
            "This module was not compiled, so it has no stop_training of its own: in a callback "
            "set self.trainer.stop_training = True."
        )
    return module.trainer


class _Slots:
    # A slot is not in ``vars(self)``, so NNX does not copy, split, save or trace its value with the
    # module. NNX forbids slots on its own classes; they are declared on a plain base class.
    # ``_made_in`` is the strategy in whose scope the module was created, unset outside of any;
    # ``distribute.made_in`` reads it.
    __slots__ = ("_made_in", "_trainer")


_NnxMeta: Any = type(nnx.Module)


class _ModuleMeta(ExplainedMeta, _NnxMeta):
    def options_elsewhere(cls) -> Mapping[str, str] | None:
        return layers.options_of(cls) if cls.__module__.startswith("neurenix.nn.") else None


class Module(_Slots, nnx.Module, metaclass=_ModuleMeta):
    """Base of every layer and model. Define ``__init__`` and ``__call__``.

    A Module is an ``nnx.Module``: everything that works on those works on it.

    Example:
        >>> import jax
        >>> from neurenix import nn
        >>> class Net(nn.Module):
        ...     def __init__(self):
        ...         self.hidden, self.out = nn.Linear(4, 8), nn.Linear(8, 2)
        ...     def __call__(self, x):
        ...         return self.out(jax.nn.relu(self.hidden(x)))
        >>> Net()(nx.ones((3, 4))).shape
        (3, 2)
        >>> Net().num_parameters
        58
    """

    __slots__ = ()
    _training = nnx.static()  # absent from a new module; see ``_jit.training_mode``

    def __init_subclass__(cls, **options: Any) -> None:
        """Wrap ``__call__`` so that its errors are explained in terms of the layer."""
        super().__init_subclass__(**options)
        layer: Any = cls
        if cls.__module__.startswith("neurenix.") and "__init__" in vars(cls):
            layer.__init__ = out_of_memory_told("")(layer.__init__)
        other = next((name for name in ("forward", "call") if name in vars(cls)), None)
        owner = next((base for base in cls.__mro__ if "__call__" in vars(base)), None)
        if other and (owner is None or owner.__module__.startswith(_NEVER_CALLING)):
            layer.__call__ = property(functools.partial(not_called, other))
        elif cls.__module__.startswith("neurenix.nn.") and "__call__" in vars(cls):
            layer.__call__ = following_mode(layer.__call__, explain=cause)
        elif owner is not None and (owner is cls or not issubclass(owner, Module)):
            if callable(own := vars(owner)["__call__"]) and not isinstance(own, staticmethod):
                layer.__call__ = following_mode(own)

    if not TYPE_CHECKING:  # with __getattr__, a type checker would accept any attribute

        def __new__(cls, *args: Any, **options: Any) -> Module:
            """Create the module and record the strategy whose scope is active."""
            if (args or options) and cls.__init__ is object.__init__:
                raise TypeError(f"{cls.__name__}() takes no arguments")  # Python's wording
            module = super().__new__(cls)
            strategy = get_strategy()
            if strategy is not None:
                object.__setattr__(module, "_made_in", strategy)
            return module

        def __getattr__(self, name: str) -> NoReturn:
            if name.startswith("_") or name in _PROBED or hasattr(type(self), name):
                object.__getattribute__(self, name)  # raises the original AttributeError
            kind = f"{type(self).__name__!r} object"
            raise MissingAttributeError(kind, name, lambda: dir(self), layers.METHODS)

        def __setattr__(self, name: str, value: Any) -> None:
            if name == "stop_training":  # belongs to the trainer, not to the module's structure
                _running(self).stop_training = bool(value)
                return
            if name in ("trainable", "training"):
                if not isinstance(value, bool):
                    raise ArgumentTypeError(f"{name} must be True or False; got {value!r}.")
                if name == "training":
                    self.train(value)
                else:
                    _ = self.unfreeze() if value else self.freeze()
                return
            try:
                super().__setattr__(name, value)
            except ValueError as error:
                if not isinstance(value, (list, tuple, dict)) or "nnx.List" not in str(error):
                    raise
                raise no_container(self, name, value) from error

    @property
    def stop_training(self) -> bool:
        """Whether ``fit`` ends after this epoch; callbacks may set it, as in Keras."""
        return _running(self).stop_training

    @stop_training.setter
    def stop_training(self, value: bool) -> None: ...

    @property
    def training(self) -> bool:
        """Whether the module is in training mode: True in ``fit``, False in ``evaluate``.

        ``predict`` sets False too. Elsewhere, ``train()``, ``eval()`` or an assignment sets it; a
        new module is in training mode, as in PyTorch. ``training=`` given to a call overrides it
        for that call and the calls inside it. The value is a Python bool: each mode is compiled
        separately.

        As in Keras, ``__call__`` may take the mode as an argument instead:
        ``def __call__(self, x, training=False)``. ``fit`` passes True, ``evaluate`` and ``predict``
        pass False, also to nested modules whose callers omit it. Flax's ``train`` and
        ``deterministic`` are passed in the same way.

        Example:
            >>> from neurenix import nn
            >>> class Noise(nn.Module):
            ...     def __call__(self, x):
            ...         return x + 1 if self.training else x
            >>> layer = Noise()
            >>> layer(0), layer(0, training=False), layer.eval()(0)
            (1, 0, 0)
        """
        known = mode_of(self)
        return True if known is None else known

    @training.setter
    def training(self, value: bool) -> None: ...

    @property
    def trainable(self) -> bool:
        """Whether any parameter is trained; setting it freezes or unfreezes all, as in Keras."""
        return bool(self.parameters())

    @trainable.setter
    def trainable(self, value: bool) -> None: ...

    @answers(OF_COMPILE)
    def compile(
        self,
        optimizer: Any = "adam",
        loss: Any = None,
        *,
        loss_weights: Any = None,
        metrics: Any = (),
        steps_per_execution: int = 1,
        precision: str = "float32",
        accumulate_steps: int = 1,
        remat: str = "none",
        check_gradients: bool = True,
    ) -> Self:
        """Configure training. Compilation happens when the first batch is seen.

        Args:
            optimizer: a name, an optimizer of ``neurenix.optim`` or an optax transformation.
            loss: a name, a loss of ``neurenix.losses`` or a function ``(y_true, y_pred)``; for a
                model that returns a dict or a tuple, a dict or a list of these.
            loss_weights: factors of the losses in their sum, in the form of ``loss``.
            metrics: names, metrics of ``neurenix.metrics`` or functions ``(y_true, y_pred)``; or a
                dict of these by output. Equal names are numbered. ``sample_weight`` and
                ``class_weight`` of ``fit`` apply to metrics too (Keras: ``weighted_metrics``). A
                function that returns the mean over examples is exact for any batches. Any other
                function (a root of a mean, an F1 score) is averaged over batches, as in Keras, and
                needs full, unweighted batches: see ``neurenix.metrics.FunctionMetric``.
            steps_per_execution: optimizer steps per compiled call.
            precision: ``"float32"``, or ``"bfloat16"``: parameters float32, compute bfloat16.
            accumulate_steps: number of parts each batch is split into; their gradients are
                accumulated.
            remat: ``"dots"`` keeps only the results of matrix products and convolutions for the
                backward pass and recomputes the rest; ``"none"`` keeps everything.
            check_gradients: check every gradient for NaN and infinity, and do not apply such an
                update; see ``neurenix.train.TrainOptions``.

        Returns:
            The module itself.

        Raises:
            UnknownNameError: unknown optimizer, loss, metric, precision or policy.
            ArgumentError: a metric has the name of the loss or of a validation result.
        """
        options = TrainOptions(
            steps_per_execution=steps_per_execution,
            precision=precision,
            accumulate_steps=accumulate_steps,
            remat=remat,
            check_gradients=check_gradients,
        )
        trainer = Trainer(
            self,
            optimizer=optimizer,
            loss=loss,
            loss_weights=loss_weights,
            metrics=metrics,
            options=options,
        )
        object.__setattr__(self, "_trainer", trainer)
        return self

    def fit(
        self,
        x: Any,
        y: Any = None,
        *,
        epochs: int = 1,
        batch_size: int | None = None,
        steps_per_epoch: int | None = None,
        validation_data: Any = None,
        callbacks: Any = (),
        **options: Any,
    ) -> History:
        """Train; see ``neurenix.Trainer.fit``.

        Args:
            x: a dataset, or an array (N, ...).
            y: targets (N, ...), if ``x`` is an array.
            epochs: number of the last epoch. The first is ``initial_epoch``, 0 by default; without
                that option, ``epochs`` is the number of passes over the data.
            batch_size: examples per optimizer step, over all devices; 32 by default for arrays.
            steps_per_epoch: steps per epoch; required for infinite data.
            validation_data: a dataset, ``(x, y)`` or ``(x, y, sample_weight)``, evaluated after
                each epoch.
            callbacks: a callback of ``neurenix.callbacks``, or a sequence of them.
            options: fields of ``neurenix.train.FitOptions``: ``sample_weight``, ``class_weight``,
                ``shuffle``, ``validation_split``, ``verbose``, …

        Returns:
            The history: ``history["val_accuracy"][-1]``.

        Raises:
            NotCompiledError: ``compile`` was not called.
            ArgumentTypeError: unknown option.
        """
        return self._compiled("fit").fit(
            x,
            y,
            epochs=epochs,
            batch_size=batch_size,
            steps_per_epoch=steps_per_epoch,
            validation_data=validation_data,
            callbacks=callbacks,
            **options,
        )

    def evaluate(self, x: Any, y: Any = None, **options: Any) -> Mapping[str, float]:
        """Return loss and metrics over a dataset or arrays; see ``neurenix.Trainer.evaluate``.

        Raises:
            NotCompiledError: ``compile`` was not called.
            ArgumentTypeError: unknown option.
        """
        check_options("evaluate", options, options_of(Trainer.evaluate))
        return self._compiled("evaluate").evaluate(x, y, **options)

    def predict(self, x: Any, **options: Any) -> Any:
        """Return the outputs for a dataset or an array, on the host.

        Does not need ``compile``. See ``neurenix.Trainer.predict``.

        Raises:
            ArgumentTypeError: unknown option.
        """
        check_options("predict", options, options_of(Trainer.predict))
        trainer = self.trainer or Trainer(self)
        return trainer.predict(x, **options)

    def train(self, mode: bool = True, **attributes: Any) -> Self:
        """Switch to training mode: dropout on, batch statistics; frozen layers excepted.

        Returns:
            The module itself.
        """
        if not mode:
            return self.eval(**attributes)
        super().train(**attributes)
        set_mode(self, training=True)
        return self

    def eval(self, **attributes: Any) -> Self:
        """Switch to evaluation: dropout off, running statistics. Returns the module."""
        super().eval(**attributes)
        set_mode(self, training=False)
        return self

    @answers(layers.OF_TO)
    def to(
        self,
        device: Device | DeviceType | str | Any = None,
        dtype: jax.typing.DTypeLike | None = None,
    ) -> Self:
        """Move parameters and state to a device, cast them, or both, in place.

        Args:
            device: such as ``"tpu:0"`` or ``Device(DeviceType.TPU, 0)``; None keeps the placement.
                As in PyTorch, a dtype may be given here instead.
            dtype: floating dtype to cast floating-point parameters and state to. Running
                statistics (``nnx.BatchStat``) keep their dtype: bfloat16 loses their small
                updates.

        Returns:
            The module itself.

        Raises:
            ArgumentError: the dtype is not floating-point, or neither argument is given.
            DeviceNotFoundError: the device does not exist.
            UnknownNameError: unknown dtype name.

        Example:
            >>> from neurenix import nn
            >>> nn.Linear(2, 2).to("cpu", dtype="bfloat16").kernel.dtype
            dtype(bfloat16)
            >>> nn.Linear(2, 2).to("bfloat16").kernel.dtype
            dtype(bfloat16)
        """
        device, dtype = place_and_dtype(device, dtype)
        state = nnx.state(self)
        if dtype is not None:
            wanted = dtype_named(dtype)
            expect_floating(wanted)

            def cast(variable: Any) -> Any:
                if isinstance(variable, nnx.BatchStat):
                    return variable
                return jax.tree.map(
                    lambda x: x.astype(wanted) if jnp.issubdtype(x.dtype, jnp.floating) else x,
                    variable,
                )

            state = jax.tree.map(cast, state, is_leaf=lambda x: isinstance(x, nnx.Variable))
        if device is not None:
            leaves, structure = jax.tree.flatten(state)
            state = jax.tree.unflatten(structure, move(leaves, device))
        nnx.update(self, state)
        if device is not None and made_in(self) is not None:
            object.__delattr__(self, "_made_in")  # the explicit device replaces the scope's
        return self

    def freeze(self) -> Self:
        """Exclude the parameters of this module from training, until ``unfreeze``.

        They become ``Frozen`` variables in place and are no longer ``nnx.Param``, so ``fit``,
        ``nx.grad`` and optimizers skip them; gradients still flow to earlier layers. They are
        counted, saved and loaded as before; the file format is unchanged. A shared parameter is
        frozen wherever it is used.

        A frozen ``BatchNorm`` stays in evaluation mode, as in Keras: it uses its running statistics
        and does not update them. (In PyTorch they are updated, and the output of a frozen network
        changes with every step.) Dropout stays on.

        Create an ``nx.Optimizer`` after freezing: an earlier one holds state for parameters that
        are frozen now. ``fit`` creates new state itself.

        Returns:
            The module itself.

        Example:
            >>> from neurenix import nn
            >>> model = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 2))
            >>> _ = model[0].freeze()
            >>> list(model.parameters()), model.num_parameters
            (['layers.1.bias', 'layers.1.kernel'], 58)
        """
        freezing.freeze(self)
        return self

    def unfreeze(self) -> Self:
        """Train the parameters of this module again; the opposite of ``freeze``.

        Call ``train()`` before a custom loop, so that ``BatchNorm`` updates its statistics again.

        Returns:
            The module itself.
        """
        freezing.unfreeze(self)
        return self

    def parameters(self) -> dict[str, jax.Array]:
        """Return the trainable arrays by name, such as ``"layers.0.kernel"``.

        Example:
            >>> from neurenix import nn
            >>> list(nn.Sequential(nn.Linear(2, 2)).parameters())
            ['layers.0.bias', 'layers.0.kernel']
        """
        flat = nnx.to_flat_state(nnx.state(self, nnx.Param))
        return {".".join(map(str, path)): variable.get_value() for path, variable in flat}

    @property
    def num_parameters(self) -> int:
        """Total size of all parameters, frozen or not; shared ones count once."""
        return freezing.num_parameters(self)

    def summary(self, input_shape: Any, *, dtype: Any = "float32") -> Summary:
        """Return a table of layers: output shape, parameters, bytes. Nothing is computed.

        Args:
            input_shape: shape of one batch, batch axis first; (N, H, W, C) for images. The batch
                size may be None, which means 1. For several inputs, a tuple or list of shapes in
                the model's order, or a dict by name.
            dtype: of all inputs, or one for each in the form of the shapes.

        Raises:
            ShapeError: the model does not accept this shape, or a size is invalid.
            ArgumentTypeError: the model takes other inputs, or ``input_shape`` is not a shape.
        """
        return freezing.with_frozen(self, lambda m: summarize(m, input_shape, dtype=dtype))

    @answers(layers.OF_SAVE)
    def save(self, path: str | os.PathLike[str]) -> None:
        """Write parameters and state atomically to a safetensors file.

        Example:
            >>> import tempfile
            >>> from neurenix import nn
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     nn.Linear(2, 2).save(f"{folder}/model.safetensors")
        """
        save_weights(self, path)

    @answers(layers.OF_LOAD)
    def load(self, path: str | os.PathLike[str]) -> Self:
        """Read parameters and state in place from a file that ``save`` wrote.

        Returns:
            The module itself.

        Raises:
            CheckpointError: the file is missing, damaged, or holds other names or shapes. The
                message names all differences; the module is unchanged.
        """
        load_weights(self, path)
        return self

    @property
    def trainer(self) -> Trainer | Any:
        """The trainer that ``compile`` created, or None before.

        (Typed as Any too, so that type checkers accept ``model.trainer.save(…)``.)
        """
        return getattr(self, "_trainer", None)

    def _compiled(self, asked: str) -> Trainer:
        if self.trainer is None:
            raise NotCompiledError(
                f"{asked}() needs an optimizer and a loss. Call it first, for example:\n"
                '    model.compile(optimizer="adam", loss="mse")'
            )
        return self.trainer
