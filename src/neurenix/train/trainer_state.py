"""What a trainer keeps from one call to the next.

Owns where training stands, and when what was made for a module must be made anew. It does not own
what a single call works with (``device_state.py``), nor how it is written to a file
(``trainer_checkpoint.py``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from neurenix._nnx import nnx
from neurenix.train.batch_check import BatchCheck
from neurenix.train.callback_states import CallbackStates
from neurenix.train.compiled_steps import Compiled
from neurenix.train.config import Recipe
from neurenix.train.module_split import ModuleSplit
from neurenix.train.padding_check import Filling
from neurenix.train.step import StepDefinition


@dataclass
class Standing:
    """Where training stands: what it goes on from, beside the arrays of the module.

    Attributes:
        optimizer_state: the optimizer's state; None before the first step.
        steps_made: optimizer steps made.
        passes: passes over the data begun, which decide the order of shuffled data.
        batches_of_pass: batches of the last of them that were trained on.
        learning_rate_scale: factor on the optimizer's own learning rate.
        dtypes: of the parameters that the optimizer's state was last used for.
    """

    optimizer_state: Any = None
    steps_made: int = 0
    passes: int = 0
    batches_of_pass: int = 0
    learning_rate_scale: float = 1.0
    dtypes: tuple[Any, ...] = ()

    def begin(self, initial_epoch: int, steps_per_epoch: int | None) -> tuple[int, int]:
        """Return after how many passes over the data, and batches of one more, ``fit`` goes on.

        Epochs of so many steps may have ended within a pass, which then goes on.
        """
        within = self.batches_of_pass if steps_per_epoch and initial_epoch else 0
        return self.passes - 1 if within else max(self.passes, initial_epoch), within


class Prepared:
    """What was made for a module of one structure.

    Attributes:
        definition: the step.
        check: the checks of its batches.
        compiled: its functions, compiled when they are first called.
        filling: whether batches may be filled up for them.
    """

    def __init__(self, definition: StepDefinition, recipe: Recipe) -> None:
        self.definition = definition
        self.check = BatchCheck(definition, recipe)
        self.compiled = Compiled(definition)
        self.filling = Filling(definition.model)


class Kept:
    """What a trainer keeps between calls.

    Attributes:
        module: the module.
        recipe: what it is trained with.
        standing: where training stands. It is changed in place.
        callbacks: those of the latest ``fit``, and their states.
    """

    def __init__(self, module: nnx.Module, recipe: Recipe) -> None:
        self.module, self.recipe, self.standing = module, recipe, Standing()
        self.callbacks = CallbackStates()
        self._prepared: Prepared | None = None

    def prepared(self) -> Prepared:
        """Return what is made for the module, anew when the module's structure has changed.

        The optimizer's state and the count of steps are kept while the parameters have the paths
        and shapes that they had; otherwise both begin anew.
        """
        known = self._prepared
        if known is not None and known.definition.model.is_current():
            return known
        split = ModuleSplit(self.module)
        if known is not None and split.same_structure(known.definition.model):
            known.definition.model.renew(split)
            return known
        self._prepared = Prepared(self.recipe.definition(split), self.recipe)
        if known is not None and not split.same_parameters(known.definition.model):
            self.standing.optimizer_state, self.standing.steps_made = None, 0
        return self._prepared
