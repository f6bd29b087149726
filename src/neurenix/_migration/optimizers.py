"""Names of optimizers, schedules, options and methods in Keras, PyTorch and optax, and names here.

Names that differ only in case or underscores, or that have no equivalent here, need no entry.
"""

from __future__ import annotations

# The equivalent of PyTorch's loss.backward() and optimizer.step().
STEP = (
    "optimizer.update(model, gradients), after loss, gradients = "
    "nx.value_and_grad(loss_of)(model); loss_of(model) returns the loss"
)
NAMES = {
    "ASGD": "optim.SGD for the steps; optax.ema for the averages",
    "CosineAnnealingLR": "optim.schedules.CosineDecay",
    "CosineDecay": "optim.schedules.CosineDecay",
    "ExponentialDecay": "optim.schedules.ExponentialDecay",
    "ExponentialLR": "optim.schedules.ExponentialDecay",
    "LearningRateSchedule": "any function from the step to the rate, such as those of "
    "optim.schedules",
    "LinearLR": "optim.schedules.LinearWarmup",
    "MultiStepLR": "optim.schedules.PiecewiseConstant",
    "Optimizer": "nx.Optimizer(model, optimizer) for a loop of your own",
    "PiecewiseConstantDecay": "optim.schedules.PiecewiseConstant",
    "PolynomialDecay": "optim.schedules.PolynomialDecay",
    "PolynomialLR": "optim.schedules.PolynomialDecay",
    "StepLR": "optim.schedules.ExponentialDecay, with staircase=True",
    "chain": "optax.chain: whatever optax makes is an optimizer here",
    "lr_scheduler": "optim.schedules",
}

OPTIONS = {
    "b1": "betas=(b1, b2)",
    "b2": "betas=(b1, b2)",
    "beta_1": "betas=(beta_1, beta_2)",
    "beta_2": "betas=(beta_1, beta_2)",
    "clipnorm": "clip_norm, of all gradients together",
    "clipvalue": "clip_value",
    "epsilon": "eps",
    "global_clipnorm": "clip_norm",
    "lr": "learning_rate",
    "mask": "decay_mask",
    "mu_dtype": "moment_dtype",
    "params": "not needed: the model comes with model.compile, or nx.Optimizer(model, optimizer)",
}

RMSPROP = OPTIONS | {"rho": "alpha"}

SCHEDULES = {
    "T_max": "decay_steps, in optimizer steps",
    "decay_schedule_fn": "after",
    "end_learning_rate": "end",
    "end_value": "end",
    "eta_min": "alpha, as a share of initial",
    "final_learning_rate": "end",
    "gamma": "decay_rate",
    "init_value": "initial",
    "initial_learning_rate": "initial",
    "milestones": "boundaries, in optimizer steps",
    "peak_value": "peak",
    "step_size": "decay_steps, in optimizer steps, with staircase=True",
    "total_iters": "decay_steps, in optimizer steps",
    "transition_steps": "decay_steps",
    "warmup_target": "nx.optim.schedules.WarmupCosine(peak, warmup_steps, decay_steps)",
}

METHODS = {
    "apply_gradients": "optimizer.update(model, gradients)",
    "lr": "optimizer.learning_rate",
    "minimize": "nx.value_and_grad, then optimizer.update(model, gradients)",
    "param_groups": "optimizer.learning_rate, which can be set",
    "state_dict": "nnx.state(optimizer)",
    "zero_grad": "not needed: nothing keeps gradients. In place of loss.backward() and "
    f"optimizer.step(): {STEP}",
}

# Methods that need the model and state, which an OptimizerSpec does not have.
METHODS_OF_SPEC = {
    name: "nx.Optimizer(model, optimizer) for a loop of your own. In place of loss.backward() and "
    f"optimizer.step(): {STEP}"
    for name in ("apply_gradients", "init", "minimize", "step", "update", "zero_grad")
} | {
    "lr": "optimizer.learning_rate",
    "param_groups": "optimizer.learning_rate, of an nx.Optimizer(model, optimizer)",
    "state_dict": "nnx.state(optimizer), of an nx.Optimizer(model, optimizer)",
}
