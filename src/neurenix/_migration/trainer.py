"""Names of the arguments of ``compile``, ``Trainer`` and ``nx.jit`` in other libraries."""

from __future__ import annotations

# The fields of ``nx.train.TrainOptions``; a test compares.
TRAIN_OPTIONS = (
    "steps_per_execution",
    "precision",
    "check_gradients",
    "accumulate_steps",
    "remat",
    "strategy",
)

OF_COMPILE = {
    "auto_scale_loss": "not needed: bfloat16 has the range of float32",
    "criterion": "loss",
    "dtype": "precision",
    "experimental_steps_per_execution": "steps_per_execution",
    "gradient_accumulation_steps": "accumulate_steps",
    "jit_compile": "not needed: every step is compiled",
    "learning_rate": "optimizer=nx.optim.Adam(learning_rate)",
    "loss_fn": "loss",
    "lr": "optimizer=nx.optim.Adam(learning_rate)",
    "mixed_precision": 'precision="bfloat16", with parameters in float32',
    "optim": "optimizer",
    "run_eagerly": "with jax.disable_jit(): around fit, which is slow and for looking into a step",
    "sample_weight_mode": "sample_weight= of fit",
    "strategy": "strategy.scope() around the making of the model",
    "weighted_metrics": "metrics",
}
OF_TRAINER = {
    **OF_COMPILE,
    **{name: f"options=nx.train.TrainOptions({name}=…)" for name in TRAIN_OPTIONS},
    "accumulate_grad_batches": "options=nx.train.TrainOptions(accumulate_steps=…)",
    "dtype": "options=nx.train.TrainOptions(precision=…)",
    "experimental_steps_per_execution": "options=nx.train.TrainOptions(steps_per_execution=…)",
    "gradient_accumulation_steps": "options=nx.train.TrainOptions(accumulate_steps=…)",
    "max_epochs": "epochs= of fit",
    "mixed_precision": 'options=nx.train.TrainOptions(precision="bfloat16")',
    "model": "module",
}
_ONLY_MODULES = (
    "donate, which is True by default: the memory of modules' arrays goes to the results. That of "
    "other arrays does not; where it must, jax.jit(function, {0}=…) of a function of arrays"
)
_BY_ARRAYS = "fixed: results are placed like the arrays of the modules and the inputs"
OF_JIT = {
    "backend": "nx.to(model, device), since a function runs on the device of its arrays",
    "compiler_options": "not available; jax.jit has it",
    "device": "nx.to(model, device), since a function runs on the device of its arrays",
    "donate_argnames": _ONLY_MODULES.format("donate_argnames"),
    "donate_argnums": _ONLY_MODULES.format("donate_argnums"),
    "dynamic": "fixed: each input shape compiles a new program",
    "fullgraph": "not needed: the function is always one program",
    "fun": "function",
    "func": "function",
    "graph": "not needed: modules may share parameters",
    "in_shardings": _BY_ARRAYS,
    "inline": "not needed",
    "input_signature": "not needed: the first call says it",
    "jit_compile": "not needed: the function is always compiled",
    "mode": "not available",
    "model": "function",
    "out_shardings": _BY_ARRAYS,
    "reduce_retracing": "static_argnames, and inputs of one shape",
    "static_args": "static_argnames",
}
