"""The base class of models and layers: an NNX module that can also be trained, moved and saved.

Owns the methods and how they pass on: training to ``neurenix.train``, moving to
``neurenix.device``, tables to ``summary``, files to ``neurenix.checkpoint``.
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
from neurenix.nn._call_errors import explained, no_container, not_called
from neurenix.nn.summary import Summary, summarize
from neurenix.train import (
    History,
    Trainer,
    TrainOptions,
)
from neurenix.train.options import check_options, options_of

_NEVER_CALLING = ("neurenix.", "flax.")  # whose layers call no ``forward`` of a class made of them


def _running(module: Module) -> Trainer:
    if module.trainer is None:
        raise NotCompiledError(
            "This module was not compiled, so stop_training is not its own: in a callback set "
            "self.trainer.stop_training = True."
        )
    return module.trainer


class _Slots:
    # A slot does not appear in ``vars(self)``, so what is in it is no part of the module's graph:
    # it is not copied, split, saved or traced with the module. NNX refuses slots on its own
    # classes, so they are declared on a base that is none. ``_made_in`` is the strategy in whose
    # scope the module was made, and is empty outside of any; ``distribute.made_in`` reads it.
    __slots__ = ("_made_in", "_trainer")


_NnxMeta: Any = type(nnx.Module)


class _ModuleMeta(ExplainedMeta, _NnxMeta):
    def options_elsewhere(cls) -> Mapping[str, str] | None:
        return layers.options_of(cls) if cls.__module__.startswith("neurenix.nn.") else None


class Module(_Slots, nnx.Module, metaclass=_ModuleMeta):
    """Base of every layer and model. Write ``__init__`` and ``__call__``; the rest is here.

    It is an ``nnx.Module``: everything that works on those works on this one.

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
    _training = nnx.static()  # absent from a new module; see ``_functions.mode``

    def __init_subclass__(cls, **options: Any) -> None:
        """See to it that a call of the module tells what is wrong in the user's words."""
        super().__init_subclass__(**options)
        layer: Any = cls
        if cls.__module__.startswith("neurenix.") and "__init__" in vars(cls):
            layer.__init__ = out_of_memory_told("")(layer.__init__)
        other = next((name for name in ("forward", "call") if name in vars(cls)), None)
        owner = next((base for base in cls.__mro__ if "__call__" in vars(base)), None)
        if other and (owner is None or owner.__module__.startswith(_NEVER_CALLING)):
            layer.__call__ = property(functools.partial(not_called, other))
        elif cls.__module__.startswith("neurenix.nn.") and "__call__" in vars(cls):
            layer.__call__ = following_mode(explained(layer.__call__))
        elif owner is not None and (owner is cls or not issubclass(owner, Module)):
            if callable(own := vars(owner)["__call__"]) and not isinstance(own, staticmethod):
                layer.__call__ = following_mode(own)

    if not TYPE_CHECKING:  # a type checker would take any attribute for one that exists

        def __new__(cls, *args: Any, **options: Any) -> Module:
            """Make the module, and remember the strategy of the scope if there is one."""
            if (args or options) and cls.__init__ is object.__init__:
                raise TypeError(f"{cls.__name__}() takes no arguments")  # as Python says it
            module = super().__new__(cls)
            strategy = get_strategy()
            if strategy is not None:
                object.__setattr__(module, "_made_in", strategy)
            return module

        def __getattr__(self, name: str) -> NoReturn:
            if name.startswith("_") or hasattr(type(self), name):
                object.__getattribute__(self, name)  # fails again, as it did
            kind = f"{type(self).__name__!r} object"
            raise MissingAttributeError(kind, name, lambda: dir(self), layers.METHODS)

        def __setattr__(self, name: str, value: Any) -> None:
            if name == "stop_training":  # the trainer's; here it would be part of the structure
                _running(self).stop_training = bool(value)
                return
            if name in ("trainable", "training"):
                if not isinstance(value, bool):
                    raise ArgumentTypeError(f"{name} is True or False; got {value!r}.")
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
        """Whether ``fit`` ends after this epoch; a callback may set it, as in Keras."""
        return _running(self).stop_training

    @stop_training.setter
    def stop_training(self, value: bool) -> None: ...

    @property
    def training(self) -> bool:
        """Whether the module trains: True in ``fit``, False in ``evaluate`` and ``predict``.

        Elsewhere it is what ``train()`` or ``eval()`` has set, or setting it, and True for a new
        module, as in PyTorch. In a call that was given ``training=``, and in the calls inside of
        it, it is that. It is a Python bool: each mode is compiled by itself.

        A ``__call__`` may take the mode as an argument instead, as in Keras:
        ``def __call__(self, x, training=False)``. ``fit`` gives it True, ``evaluate`` and
        ``predict`` give it False, also to modules inside of others whose callers leave it out.
        Flax's ``train`` and ``deterministic`` are given in the same way.

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
        """Say how to train. Nothing is compiled until data is seen.

        Args:
            optimizer: a name, an optimizer of ``neurenix.optim`` or an optax transformation.
            loss: a name, a loss of ``neurenix.losses`` or a function ``(y_true, y_pred)``; a dict
                or a list of such for a model that returns a dict or a tuple.
            loss_weights: factors of the losses of such a model in their sum, in the same form.
            metrics: names, metrics of ``neurenix.metrics`` or functions ``(y_true, y_pred)``; a
                dict of such by output. Those of one name are numbered. ``sample_weight`` and
                ``class_weight`` of ``fit`` count in them too: they are what Keras calls
                ``weighted_metrics``. A function that returns the mean over the examples is exact
                whatever the batches; of any other number for a batch (the root of a mean, an F1
                score) the mean over the batches is shown, as in Keras, and batches must then be
                whole and without weights: see ``neurenix.metrics.FunctionMetric``.
            steps_per_execution: optimizer steps in one compiled call.
            precision: ``"float32"``, or ``"bfloat16"``: parameters float32, compute bfloat16.
            accumulate_steps: parts that every batch is computed in, one after the other.
            remat: ``"dots"`` computes all but matrix products and convolutions again in the
                backward pass instead of keeping it; ``"none"`` keeps it.
            check_gradients: let no gradient that is not finite change the weights; see
                ``neurenix.train.TrainOptions``.

        Returns:
            The module itself.

        Raises:
            UnknownNameError: no optimizer, loss, metric, precision or policy has this name.
            ArgumentError: a metric is called as the loss, or as a number of validation, is.
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
            y: the targets (N, ...) when ``x`` is an array.
            epochs: number of the last epoch. The first is ``initial_epoch``, 0 by default: without
                that option it is how often to go through the data.
            batch_size: examples per optimizer step, over all devices; 32 by default for arrays.
            steps_per_epoch: steps in an epoch; needed for data without end.
            validation_data: a dataset, ``(x, y)`` or ``(x, y, sample_weight)``, evaluated after
                each epoch.
            callbacks: one callback of ``neurenix.callbacks``, or several.
            options: the fields of ``neurenix.train.FitOptions``: ``sample_weight``,
                ``class_weight``, ``shuffle``, ``validation_split``, ``verbose``, …

        Returns:
            The history: ``history["val_accuracy"][-1]``.

        Raises:
            NotCompiledError: ``compile`` was not called.
            ArgumentTypeError: an option does not exist.
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
            ArgumentTypeError: an option does not exist.
        """
        check_options("evaluate", options, options_of(Trainer.evaluate))
        return self._compiled("evaluate").evaluate(x, y, **options)

    def predict(self, x: Any, **options: Any) -> Any:
        """Return the outputs for a dataset or an array, on the host.

        Works without ``compile`` too. See ``neurenix.Trainer.predict``.

        Raises:
            ArgumentTypeError: an option does not exist.
        """
        check_options("predict", options, options_of(Trainer.predict))
        trainer = self.trainer or Trainer(self)
        return trainer.predict(x, **options)

    def train(self, mode: bool = True, **attributes: Any) -> Self:
        """Switch to training: dropout on, batch statistics, but for what is frozen.

        Returns:
            The module itself.
        """
        if not mode:
            return self.eval(**attributes)
        super().train(**attributes)
        set_mode(self, training=True)
        freezing.keep_statistics(self)
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
            device: such as ``"tpu:0"`` or ``Device(DeviceType.TPU, 0)``; without one they stay
                where they are. A dtype in its place is the dtype, as in PyTorch.
            dtype: cast floating-point parameters and state to this floating dtype as well, but for
                running statistics (``nnx.BatchStat``), which keep theirs: bfloat16 is too coarse
                for their small moves.

        Returns:
            The module itself.

        Raises:
            ArgumentError: the dtype is none of floats, which would cut the parameters to zero; or
                neither a device nor a dtype is given.
            DeviceNotFoundError: the device is not there.
            UnknownNameError: the dtype is none.

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
            object.__delattr__(self, "_made_in")  # this says where to train, and says it later
        return self

    def freeze(self) -> Self:
        """Leave the parameters of this layer, or model, as they are, until ``unfreeze``.

        They become ``Frozen`` variables in place and are no ``nnx.Param`` any more, so that
        ``fit``, ``nx.grad`` and optimizers leave them alone; gradients go through to layers
        before. They are saved, loaded and counted as ever, in files that know no difference. A
        parameter that is shared is frozen wherever it is used.

        A frozen ``BatchNorm`` stays in evaluation, also when the model trains: it uses its
        running statistics and leaves them as they are. (So does Keras; in PyTorch they move, and
        a frozen network computes something else after every step.) Dropout stays on.

        Make an ``nx.Optimizer`` after freezing: one made before has a state for what is frozen
        now. ``fit`` makes a new state by itself.

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
        """Train the parameters of this layer, or model, again; the opposite of ``freeze``.

        Call ``train()`` before a loop of your own, for the running statistics of ``BatchNorm``.

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
        """How many numbers the parameters have, frozen or not; a shared one counts once."""
        return freezing.num_parameters(self)

    def summary(self, input_shape: Any, *, dtype: Any = "float32") -> Summary:
        """Return a table of layers: output shape, parameters, bytes. Nothing is computed.

        Args:
            input_shape: of one batch, the batch first, which may be None for 1; (N, H, W, C) for
                images. Of several inputs a tuple or a list of shapes, in the model's order, or a
                dict by name.
            dtype: of the input, or of all inputs; or one for each, in the form of the shapes.

        Raises:
            ShapeError: the model does not take this shape, or it is none.
            ArgumentTypeError: the model takes other inputs, or it is no shape at all.
        """
        return freezing.with_frozen(self, lambda m: summarize(m, input_shape, dtype=dtype))

    @answers(layers.OF_SAVE)
    def save(self, path: str | os.PathLike[str]) -> None:
        """Write parameters and state to a safetensors file, all or nothing.

        Example:
            >>> import tempfile
            >>> from neurenix import nn
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     nn.Linear(2, 2).save(f"{folder}/model.safetensors")
        """
        save_weights(self, path)

    @answers(layers.OF_LOAD)
    def load(self, path: str | os.PathLike[str]) -> Self:
        """Read parameters and state from a file that ``save`` wrote, in place, all or nothing.

        Returns:
            The module itself.

        Raises:
            CheckpointError: the file is not there, is damaged, or holds other names or shapes;
                all that differ are named, and the module is as it was.
        """
        load_weights(self, path)
        return self

    @property
    def trainer(self) -> Trainer | Any:
        """The trainer that ``compile`` made, or None before that.

        (Declared so that ``model.trainer.save(…)`` is no error to a type checker.)
        """
        return getattr(self, "_trainer", None)

    def _compiled(self, asked: str) -> Trainer:
        if self.trainer is None:
            raise NotCompiledError(
                f"{asked}() needs an optimizer and a loss. Call it first, for example:\n"
                '    model.compile(optimizer="adam", loss="mse")'
            )
        return self.trainer
