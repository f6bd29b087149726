"""Top-level names of JAX, NumPy, Keras, TensorFlow and PyTorch, and names here.

The error of an unknown ``nx.<name>`` uses this table. Names that differ only in case or
underscores, and names in the packages of ``neurenix``, need no entry.
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
    "DataLoader": "nx.data.Dataset",
    "FloatTensor": _TENSOR,
    "GradientTape": _GRADIENTS,
    "Input": "not needed: a layer takes its number of inputs, as nx.nn.Linear(inputs, outputs)",
    "Layer": "nx.nn.Module",
    "LongTensor": _TENSOR,
    "Mesh": "jax.sharding.Mesh",
    "Model": "nx.nn.Module, or nx.nn.Sequential(*layers)",
    "NamedSharding": "jax.sharding.NamedSharding",
    "PRNGKey": "jax.random.key",
    "Parameter": "nnx.Param (from flax import nnx)",
    "PartitionSpec": "jax.sharding.PartitionSpec",
    "Variable": "nnx.Variable, or nnx.Param (from flax import nnx)",
    "activations": "jax.nn, and layers of nx.nn",
    "applications": "nx.models",
    "as_tensor": _TENSOR,
    "autograd": _GRADIENTS,
    "backward": _GRADIENTS,
    "bmm": "nx.matmul",
    "bool": "nx.bool_",
    "cast": "nx.astype",
    "cat": "nx.concatenate",
    "clamp": "nx.clip",
    "compile": "nx.jit",
    "cond": "jax.lax.cond, or nnx.cond of functions that are given modules",
    "constant": _TENSOR,
    "convert_to_tensor": _TENSOR,
    "cuda": 'nx.device("cuda")',
    "datasets": "nx.data",
    "detach": "jax.lax.stop_gradient",
    "device_count": "len(nx.devices())",
    "device_get": "np.asarray(x)",
    "device_put": "nx.to",
    "double": "nx.float64",
    "erf": "jax.lax.erf",
    "eval_shape": "jax.eval_shape",
    "evaluate": "model.evaluate",
    "fit": "model.fit",
    "flatten": "nx.ravel",
    "float": "nx.float32",
    "fori_loop": "jax.lax.fori_loop",
    "from_numpy": _TENSOR,
    "function": "nx.jit",
    "gather": "nx.take_along_axis",
    "global_norm": "optax.global_norm",
    "half": "nx.float16",
    "hessian": "jax.hessian",
    "image": "jax.image",
    "index_select": "nx.take",
    "inference_mode": _NO_GRADIENTS,
    "initializers": "jax.nn.initializers",
    "is_tensor": "isinstance(x, nx.Tensor)",
    "jacobian": "jax.jacobian",
    "keras": "nx.nn for layers, nx.losses, nx.metrics, nx.optim and nx.callbacks for the rest",
    "key": "jax.random.key",
    "lax": "jax.lax",
    "layers": "nx.nn",
    "load": "model.load(path)",
    "local_devices": "nx.devices",
    "long": "nx.int64, or nx.int32 where JAX has no 64 bits",
    "manual_seed": "nx.seed",
    "masked_fill": "nx.where",
    "mm": "nx.matmul",
    "multinomial": "jax.random.categorical",
    "no_grad": _NO_GRADIENTS,
    "norm": "nx.linalg.norm",
    "normal": "nx.randn",
    "numpy": "nx itself, which has NumPy's functions",
    "optimizers": "nx.optim",
    "permute": "nx.transpose",
    "pmap": "strategy.run of a strategy of nx.distribute, or jax.shard_map",
    "predict": "model.predict",
    "process_count": "jax.process_count",
    "process_index": "jax.process_index",
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
    "summary": "model.summary",
    "topk": "jax.lax.top_k",
    "tree": "jax.tree",
    "tree_map": "jax.tree.map",
    "tree_util": "jax.tree_util",
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
    """Return ``NAMES`` and the names in the packages of ``neurenix``.

    Example:
        >>> names()["Linear"], names()["cat"]
        ('nx.nn.Linear', 'nx.concatenate')
    """
    found = dict(NAMES)
    for package in _PACKAGES:
        for name in importlib.import_module(f"neurenix.{package}").__all__:
            found.setdefault(name, f"nx.{package}.{name}")
    return found
