"""The state of a trainer, and how it is placed on the devices of a strategy.

``TrainerState`` holds everything that a trainer keeps from one call to the next; ``fit`` advances
it. ``DeviceState`` is the same state during one call, with the compiled step. Does not own the
order of a run (``fit.py``) or the files of a state (``trainer_checkpoint.py``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np
import optax

from neurenix import losses, optim
from neurenix._core.errors import CheckpointError
from neurenix._jit.flat_modules import apart
from neurenix._jit.process_arrays import put
from neurenix._jit.random_keys import is_key, like, numbers_of
from neurenix._nnx import nnx
from neurenix.checkpoint.safetensors_file import differences
from neurenix.checkpoint.weights import put_into, variables_of
from neurenix.distribute import Strategy, get_strategy
from neurenix.distribute.rules import ShardingRules, as_rules
from neurenix.distribute.state_sharding import Placement
from neurenix.distribute.strategy import made_in, strategy_for
from neurenix.losses import Loss
from neurenix.metrics import Metric
from neurenix.train.batch_check import BatchCheck
from neurenix.train.callback_states import CallbackStates
from neurenix.train.compiled_steps import (
    CompiledEvaluation,
    CompiledFunctions,
    CompiledStep,
    StepCall,
)
from neurenix.train.ema import EMA
from neurenix.train.ema_rule import AverageRule
from neurenix.train.learning_rate import BaseLearningRate
from neurenix.train.metric_names import named_apart
from neurenix.train.module_split import ModuleSplit
from neurenix.train.multi_output import as_loss, as_metrics, follow_loss, losses_of_outputs
from neurenix.train.options import TrainOptions
from neurenix.train.padding_check import PaddingCheck
from neurenix.train.step import StepDefinition, StepState, bind_metrics, counters

# What differs if the arrays of a part of the tree do.
_OTHER = {
    "weights": ("model", "another model"),
    "random": ("model", "a model with other random streams"),
    "optimizer": ("optimizer", "another optimizer, or other layers are frozen"),
}


@dataclass(frozen=True, eq=False)
class TrainConfig:
    """How a trainer trains: the arguments of ``Trainer``, read and checked.

    Attributes:
        learning_rate: the optimizer's learning rate before the trainer scales it.
        optimizer: the optimizer.
        loss: the loss; None for a trainer that only predicts.
        metrics: the metrics, with their names in the logs. Steps update copies of them.
        options: how a step is built.
        strategy: the strategy of the options, or of the scope that the trainer was made in.
    """

    learning_rate: BaseLearningRate
    optimizer: optax.GradientTransformation
    loss: Loss | None
    metrics: tuple[Metric, ...]
    options: TrainOptions
    strategy: Strategy | None

    @classmethod
    def of(
        cls, optimizer: Any, loss: Any, loss_weights: Any, metrics: Any, options: TrainOptions
    ) -> Self:
        """Read the arguments of ``Trainer``.

        Raises:
            UnknownNameError, ArgumentError: as ``Trainer``.
        """
        learning_rate, rule = BaseLearningRate(optimizer), optim.get(optimizer)
        known_loss, given = as_loss(loss, loss_weights), as_metrics(metrics)
        named = named_apart([*losses_of_outputs(known_loss, given), *given])
        follow_loss(named, known_loss)
        strategy = options.strategy or get_strategy()
        return cls(learning_rate, rule, known_loss, tuple(named), options, strategy)

    def definition(self, model: ModuleSplit) -> StepDefinition:
        """Return the step for a module."""
        copies = [nnx.clone(metric) for metric in self.metrics]
        for metric in copies:
            metric.reset()
        structure, first = bind_metrics(copies)
        return StepDefinition(
            model=model,
            loss=self.loss or losses.get("mse"),
            optimizer=self.optimizer,
            schedule=self.learning_rate.schedule,
            metrics=structure,
            first_metrics=first,
            metric_names=tuple(metric.name for metric in self.metrics),
            accumulate_steps=self.options.accumulate_steps,
            compute_dtype=self.options.compute_dtype,
            check_gradients=self.options.check_gradients,
            remat=self.options.remat,
        )


class DataPosition(NamedTuple):
    """The place in the training data.

    Attributes:
        passes: passes over the data begun. They determine the order of shuffled data.
        batches: batches of the last pass that were trained on.
    """

    passes: int = 0
    batches: int = 0

    def resumed(self, initial_epoch: int, steps_per_epoch: int | None) -> DataPosition:
        """Return the number of complete passes, and of batches to skip, where ``fit`` resumes.

        With ``steps_per_epoch`` an epoch can end within a pass, which then continues.
        """
        batches = self.batches if steps_per_epoch and initial_epoch else 0
        return DataPosition(
            self.passes - 1 if batches else max(self.passes, initial_epoch), batches
        )


@dataclass(frozen=True, eq=False)
class BuiltStep:
    """The step of a module of one structure, with everything compiled and found out for it.

    Attributes:
        definition: what the step computes.
        check: the checks of its batches.
        compiled: its compiled functions.
        padding: whether its batches may be padded.
    """

    definition: StepDefinition
    check: BatchCheck
    compiled: CompiledFunctions
    padding: PaddingCheck


@dataclass(eq=False)
class TrainerState:
    """Everything that a trainer keeps between calls. ``fit`` changes it in place.

    Attributes:
        module: the module.
        config: how it is trained.
        optimizer: the optimizer's state; None before the first step.
        steps_made: optimizer steps made.
        learning_rate_scale: factor on the optimizer's own learning rate.
        position: the place in the data.
        callbacks: the callbacks of the latest ``fit``, and their states.
        stop_training: whether ``fit`` stops after this epoch.
    """

    module: nnx.Module
    config: TrainConfig
    optimizer: Any = None
    steps_made: int = 0
    learning_rate_scale: float = 1.0
    position: DataPosition = DataPosition()
    callbacks: CallbackStates = field(default_factory=CallbackStates)
    stop_training: bool = False
    # The dtypes of the parameters that the optimizer's state was last used with.
    dtypes: tuple[Any, ...] = field(default=(), init=False, repr=False)
    _built: BuiltStep | None = field(default=None, init=False, repr=False)

    def built(self) -> BuiltStep:
        """Return the step of the module, built again if the module's structure has changed.

        The optimizer's state and the number of steps are reset if the paths or shapes of the
        parameters have changed.
        """
        known = self._built
        if known is not None and known.definition.model.is_current():
            return known
        split = ModuleSplit(self.module)
        if known is not None and split.same_structure(known.definition.model):
            known.definition.model.renew(split)
            return known
        definition = self.config.definition(split)
        check = BatchCheck(definition, self.config.loss, self.config.metrics)
        compiled, padding = CompiledFunctions(definition), PaddingCheck(split)
        self._built = BuiltStep(definition, check, compiled, padding)
        if known is not None and not split.same_parameters(known.definition.model):
            self.optimizer, self.steps_made = None, 0
        return self._built

    def scoped_strategy(self) -> Strategy | None:
        """Return the strategy of the options, of the current scope, or of the module's scope."""
        return self.config.strategy or get_strategy() or made_in(self.module)

    def strategy(self) -> Strategy:
        """Return the scoped strategy, or one for the devices of the parameters."""
        return self.scoped_strategy() or _strategy_of(self.built().definition.model)

    def module_rules(self) -> ShardingRules | None:
        """Return the sharding rules of the module, if it has any."""
        rules: Any = getattr(self.module, "sharding_rules", None)
        return None if rules is None else as_rules(rules())

    def on_devices(self) -> DeviceState:
        """Return the state on the devices of its strategy, for one call.

        Raises:
            ArgumentError: the module is abstract, or its arrays were deleted.
        """
        built = self.built()
        model, placement = built.definition.model, None
        model.check_arrays()
        strategy = self.scoped_strategy() or _strategy_of(model)
        if strategy.may_shard_state:
            placement = strategy.placement(model.weights(), self.module_rules())
        sharding = strategy.state_sharding
        return DeviceState(
            **vars(built), state=self, strategy=strategy, placement=placement, sharding=sharding
        )

    def to_tree(self) -> dict[str, Any]:
        """Return the whole state as a tree of dicts, for a checkpoint library.

        ``weights``, ``random``, ``optimizer`` and ``callbacks`` are dicts from names to arrays.
        The other entries are JSON values: ``steps_made``, ``passes``, ``batches_of_pass``,
        ``learning_rate_scale`` and the text ``callback_states``. Random keys are stored as
        integers. The arrays are not copied; they are valid until the next training step.

        Raises:
            ArgumentError: the module is abstract, or its arrays were deleted.
            ArgumentTypeError: the state of a callback has a value of an unsupported type.

        Example:
            >>> from neurenix import Trainer, nn
            >>> trainer = Trainer(nn.Linear(2, 1), optimizer="adam", loss="mse")
            >>> _ = trainer.fit(np.ones((8, 2)), np.ones((8, 1)), epochs=1, verbose=False)
            >>> tree = trainer.state.to_tree()
            >>> sorted(tree["weights"]), tree["steps_made"]
            (['bias', 'kernel'], 1)
            >>> other = Trainer(nn.Linear(2, 1), optimizer="adam", loss="mse")
            >>> other.state.load_tree(tree)
            >>> other.steps_made, bool((other.module.kernel == trainer.module.kernel).all())
            (1, True)
        """
        definition = self.built().definition
        definition.model.check_arrays()
        optimizer = self.optimizer
        if optimizer is None:
            optimizer = definition.optimizer.init(definition.model.read()[0])
        arrays = _arrays(_variables(self.module)) | {"optimizer": _named(optimizer)}
        text, callbacks = self.callbacks.pack()
        return jax.tree.map(numbers_of, arrays) | {
            "callbacks": callbacks,
            "callback_states": text,
            "steps_made": self.steps_made,
            "passes": self.position.passes,
            "batches_of_pass": self.position.batches,
            "learning_rate_scale": float(self.learning_rate_scale),
        }

    def load_tree(self, tree: Mapping[str, Any], *, source: str = "the tree") -> None:
        """Replace the whole state, in place, by that of ``to_tree``. Arrays are copied.

        Args:
            tree: the tree. Nothing changes unless all of it fits.
            source: how an error names the tree.

        Raises:
            CheckpointError: the tree is of another model or optimizer; the differences are named.
            ArgumentError: the module is abstract, or its arrays were deleted.
        """
        definition = self.built().definition
        definition.model.check_arrays()
        variables = _variables(self.module)
        optimizer = jax.eval_shape(definition.optimizer.init, definition.model.read()[0])
        held = _arrays(variables) | {"optimizer": _named(optimizer)}
        for part, leaves in held.items():
            owner, other = _OTHER[part]
            shapes = {name: _numbers_spec(leaf) for name, leaf in leaves.items()}
            if problems := differences(shapes, tree[part], owner):
                raise CheckpointError(f"The trainer's state in {source} is of {other}:\n{problems}")
        read = {
            part: {name: _like(leaf, tree[part][name]) for name, leaf in leaves.items()}
            for part, leaves in held.items()
        }
        by_part = [(part, name) for part, named in variables.items() for name in named]
        put_into(
            {f"{part}.{name}": variables[part][name] for part, name in by_part},
            {f"{part}.{name}": read[part][name] for part, name in by_part},
        )
        leaves = list(read["optimizer"].values())
        self.optimizer = jax.tree.unflatten(jax.tree.structure(optimizer), leaves)
        self.steps_made = tree["steps_made"]
        self.position = DataPosition(tree["passes"], tree["batches_of_pass"])
        self.learning_rate_scale = tree["learning_rate_scale"]
        self.callbacks.unpack(tree["callback_states"], tree["callbacks"])


@dataclass(frozen=True, eq=False)
class DeviceState(BuiltStep):
    """A trainer's state on the devices of a strategy, during one call.

    Attributes:
        state: the trainer's state.
        strategy: the devices.
        placement: how the state is sharded; None if all of it is replicated.
        sharding: the sharding of a replicated array.
    """

    state: TrainerState
    strategy: Strategy
    placement: Placement | None
    sharding: jax.sharding.Sharding

    def step(
        self, per_call: int, steps: int | None, averages: tuple[AverageRule, ...] = ()
    ) -> CompiledStep:
        """Return the compiled step.

        Args:
            per_call: optimizer steps in one call.
            steps: optimizer steps of an epoch; None if they are uncertain.
            averages: rules of the moving averages of the weights.
        """
        call = StepCall.of(per_call, steps)
        return self.compiled.step(call, self.sharding, averages)

    def evaluation(self) -> CompiledEvaluation:
        """Return the compiled functions of ``evaluate`` and ``predict``."""
        return self.compiled.evaluation(self.sharding)

    def put(self, tree: Any) -> Any:
        """Put a tree of arrays on the devices, sharded as the state is."""
        sharding = self.sharding
        where = sharding if self.placement is None else self.placement.shardings(tree)
        if sharding.is_fully_addressable:
            return jax.device_put(tree, where)
        where = jax.tree.map(lambda _: sharding, tree) if self.placement is None else where
        return jax.tree.map(put, tree, where)

    def model(self) -> Any:
        """Return the module's parameters and other state, on the devices."""
        return self.put(self.definition.model.read())

    def initial_state(self, emas: Sequence[EMA] = ()) -> StepState:
        """Return the state for the first step of a run, in buffers of its own.

        Args:
            emas: the callbacks that average the weights.
        """
        model, optimizer = self.definition.model, self.state.optimizer
        own = self.put(_copied(model.read()))
        model.write(*own)  # frees the old arrays before the optimizer's state is allocated
        if optimizer is None:
            optimizer = jax.jit(self.definition.optimizer.init)(own[0])
        else:
            optimizer = self._cast_for(own[0], optimizer)
        self.state.dtypes = _dtypes(own[0])
        # An optimizer may hold the parameters themselves, which must not be donated twice.
        leaves, treedef = jax.tree.flatten((own, self.put(optimizer)))
        (parameters, model_state), optimizer = jax.tree.unflatten(treedef, apart(leaves))
        return StepState(
            parameters=parameters,
            model_state=model_state,
            optimizer=optimizer,
            **self.epoch_start(),
            step=self.put(np.int32(self.state.steps_made)),
            diverged=self.put(counters()["diverged"]),
            averages=self.put(_copied(tuple(ema.begin(own) for ema in emas))),
        )

    def _cast_for(self, parameters: Any, optimizer: Any) -> Any:
        """Cast the optimizer's state after ``model.to(dtype=…)`` has cast the parameters."""
        if self.state.dtypes == _dtypes(parameters):
            return optimizer
        made = jax.eval_shape(self.definition.optimizer.init, parameters)
        if jax.tree.structure(made) != jax.tree.structure(optimizer):
            return optimizer  # the user has set it
        return jax.tree.map(
            lambda leaf, like: leaf if leaf.dtype == like.dtype else leaf.astype(like.dtype),
            optimizer, made,
        )  # fmt: skip

    def epoch_start(self) -> dict[str, Any]:
        """Return the fields of the state that are reset at the start of an epoch."""
        return self.put(
            {
                "metrics": _copied(self.definition.first_metrics),
                "totals": self.definition.first_totals,
                "learning_rate_scale": np.float32(self.state.learning_rate_scale),
            }
        )

    def keep(self, state: StepState, emas: Sequence[EMA] = ()) -> None:
        """Store the arrays of a step's state in the module, the trainer's state and the EMAs."""
        self.definition.model.write(state.parameters, state.model_state)
        self.state.optimizer = state.optimizer
        for ema, average in zip(emas, state.averages, strict=True):
            ema.average = average


def _strategy_of(model: ModuleSplit) -> Strategy:
    """Return a strategy for the devices of a model's parameters."""
    array = model.first_array()
    return strategy_for(array if isinstance(array, jax.Array) else jnp.zeros(()))


def _dtypes(tree: Any) -> tuple[Any, ...]:
    return tuple(leaf.dtype for leaf in jax.tree.leaves(tree))


@jax.jit
def _copied(tree: Any) -> Any:
    """Copy every array in one compiled call; one by one, each shape is compiled by itself."""
    return jax.tree.map(jnp.copy, tree)


def _variables(module: nnx.Module) -> dict[str, dict[str, Any]]:
    """Return the variables of a module by name, random streams apart."""
    parts: dict[str, dict[str, Any]] = {"weights": {}, "random": {}}
    for name, variable in variables_of(module).items():
        parts["random" if isinstance(variable, nnx.RngState) else "weights"][name] = variable
    return parts


def _arrays(variables: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {part: {n: v[...] for n, v in named.items()} for part, named in variables.items()}


def _named(tree: Any) -> dict[str, Any]:
    """Return the leaves of ``tree`` in order, by path."""
    return {
        jax.tree_util.keystr(path, simple=True, separator="."): leaf
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
    }


def _numbers_spec(leaf: Any) -> Any:
    return jax.eval_shape(numbers_of, leaf) if is_key(leaf) else leaf


def _like(leaf: Any, stored: Any) -> Any:
    """Return ``stored`` in the dtype of ``leaf``, or as random keys if that holds keys."""
    if is_key(leaf):
        return like(leaf, stored)
    if isinstance(stored, jax.Array):
        return jnp.array(stored, leaf.dtype)
    return np.asarray(stored).astype(leaf.dtype)
