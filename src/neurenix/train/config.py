"""What a trainer was told to train with, and the step that this makes of a module.

Owns the reading of optimizer, loss and metrics as a user gives them, and what they make of each
other. It does not own what is computed with them (``step.py``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import optax

from neurenix import losses, optim
from neurenix._core.errors import NotCompiledError
from neurenix.distribute import Strategy, get_strategy
from neurenix.losses import Loss
from neurenix.metrics import Metric
from neurenix.metrics import get as get_metric
from neurenix.train.learning_rate import OwnRate
from neurenix.train.metric_names import named_apart
from neurenix.train.module_split import ModuleSplit
from neurenix.train.multi_output import as_loss, as_metrics, follow_loss, losses_of_outputs
from neurenix.train.options import TrainOptions
from neurenix.train.step import StepDefinition, bind_metrics


@dataclass(frozen=True, eq=False)
class Recipe:
    """What training is made of, but for the module.

    Attributes:
        own_rate: the optimizer's own learning rate.
        optimizer: the optimizer.
        loss: the loss, or None: predicting needs none.
        metrics: the metrics, under the names that the logs have; steps count in copies of them.
        options: how a step is built.
        strategy: the one given, or that of the scope in which the trainer was made.
    """

    own_rate: OwnRate
    optimizer: optax.GradientTransformation
    loss: Loss | None
    metrics: tuple[Metric, ...]
    options: TrainOptions
    strategy: Strategy | None

    @classmethod
    def of(
        cls, optimizer: Any, loss: Any, loss_weights: Any, metrics: Any, options: TrainOptions
    ) -> Recipe:
        """Return the recipe for what ``Trainer`` was given.

        Raises:
            UnknownNameError, ArgumentError: as ``Trainer``.
        """
        own_rate, rule = OwnRate(optimizer), optim.get(optimizer)
        known_loss, given = as_loss(loss, loss_weights), as_metrics(metrics)
        named = named_apart([*losses_of_outputs(known_loss, given), *given])
        follow_loss(named, known_loss)
        strategy = options.strategy or get_strategy()
        return cls(own_rate, rule, known_loss, tuple(named), options, strategy)

    def needed_loss(self) -> Loss:
        """Return the loss.

        Raises:
            NotCompiledError: there is none.
        """
        if self.loss is None:
            raise NotCompiledError(
                'There is no loss. Name one: model.compile(optimizer="adam", loss="…") or '
                'Trainer(module, loss="…").'
            )
        return self.loss

    def definition(self, model: ModuleSplit) -> StepDefinition:
        """Return the step for a module."""
        structure, first = bind_metrics([get_metric(metric) for metric in self.metrics])
        return StepDefinition(
            model=model,
            loss=self.loss or losses.get("mse"),
            optimizer=self.optimizer,
            schedule=self.own_rate.schedule,
            metrics=structure,
            first_metrics=first,
            metric_names=tuple(metric.name for metric in self.metrics),
            accumulate_steps=self.options.accumulate_steps,
            compute_dtype=self.options.compute_dtype,
            check_gradients=self.options.check_gradients,
            remat=self.options.remat,
        )
