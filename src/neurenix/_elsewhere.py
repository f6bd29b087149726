"""What JAX, NumPy, Keras, TensorFlow and PyTorch call what is called otherwise at the top level.

Owns that table, from which ``nx.<name>`` explains a name that is not there. Names that differ in
case or underscores only need no entry, nor do those of the packages of ``neurenix``.
"""

from __future__ import annotations

import importlib

_TENSOR = "nx.Tensor(data)"
_GRADIENTS = "nx.grad, or nx.value_and_grad, of a function of the model"
_NO_GRADIENTS = (
    "not needed: nothing has gradients but what nx.grad is asked for; jax.lax.stop_gradient(x) "
    "keeps one from x"
)
_PACKAGES = ("nn", "optim", "losses", "metrics", "callbacks", "data", "distribute")

NAMES = {
    "GradientTape": _GRADIENTS,
    "Parameter": "nnx.Param (from flax import nnx)",
    "Variable": "nnx.Variable, or nnx.Param (from flax import nnx)",
    "as_tensor": _TENSOR,
    "autograd": _GRADIENTS,
    "backward": _GRADIENTS,
    "bmm": "nx.matmul",
    "cast": "nx.astype",
    "cat": "nx.concatenate",
    "checkpoint": "jax.checkpoint, or nnx.remat of a function that is given modules",
    "clamp": "nx.clip",
    "compile": "nx.jit",
    "cond": "jax.lax.cond, or nnx.cond of functions that are given modules",
    "constant": _TENSOR,
    "convert_to_tensor": _TENSOR,
    "cuda": 'nx.device("cuda")',
    "detach": "jax.lax.stop_gradient",
    "device_count": "len(nx.devices())",
    "device_get": "np.asarray(x)",
    "device_put": "nx.to",
    "erf": "jax.lax.erf",
    "fori_loop": "jax.lax.fori_loop",
    "from_numpy": _TENSOR,
    "function": "nx.jit",
    "gather": "nx.take_along_axis",
    "inference_mode": _NO_GRADIENTS,
    "lax": "jax.lax",
    "load": "model.load(path)",
    "local_devices": "nx.devices",
    "manual_seed": "nx.seed",
    "masked_fill": "nx.where",
    "mm": "nx.matmul",
    "multinomial": "jax.random.categorical",
    "no_grad": _NO_GRADIENTS,
    "norm": "nx.linalg.norm",
    "normal": "nx.randn",
    "permute": "nx.transpose",
    "pmap": "strategy.run of a strategy of nx.distribute, or jax.shard_map",
    "rand_like": "nx.rand(*x.shape)",
    "randn_like": "nx.randn(*x.shape)",
    "randperm": "jax.random.permutation",
    "reduce_max": "nx.max",
    "reduce_mean": "nx.mean",
    "reduce_sum": "nx.sum",
    "save": "model.save(path)",
    "scan": "jax.lax.scan, or nx.multi_step for training steps",
    "shard_map": "strategy.run of a strategy of nx.distribute, or jax.shard_map",
    "stop_gradient": "jax.lax.stop_gradient",
    "topk": "jax.lax.top_k",
    "uniform": "nx.rand",
    "unsqueeze": "nx.expand_dims",
    "view": "nx.reshape",
    "vmap": "jax.vmap, or nnx.vmap of a function that is given modules",
    "while_loop": "jax.lax.while_loop",
    **{
        name: f"jax.nn.{name}"
        for name in (
            "elu", "gelu", "leaky_relu", "log_softmax", "logsumexp", "one_hot", "relu", "sigmoid",
            "silu", "softmax", "softplus",
        )
    },
}  # fmt: skip


def names() -> dict[str, str]:
    """Return ``NAMES``, and where the packages of ``neurenix`` have what they have.

    Example:
        >>> names()["Linear"], names()["cat"]
        ('nx.nn.Linear', 'nx.concatenate')
    """
    found = dict(NAMES)
    for package in _PACKAGES:
        for name in importlib.import_module(f"neurenix.{package}").__all__:
            found.setdefault(name, f"nx.{package}.{name}")
    return found
