"""Train three models with versions of JAX and Flax that lack names.

``python unstable_names_program.py NAMES OUT``, where ``NAMES`` is a JSON list of
``"module:attribute"``. JAX, Flax and optax are loaded once; each case runs in a fork, which hides
names before Neurenix is imported. What each case did is written to ``OUT`` as JSON.
"""

from __future__ import annotations

import contextlib
import json
import os
import pkgutil
import sys
import traceback
import types
import warnings
from pathlib import Path
from typing import Any

import flax.nnx
import jax
import optax  # noqa: F401  loaded before the forks
from jaxlib.mlir.dialects import chlo, mhlo, sdy, stablehlo  # noqa: F401  JAX loads them late

SLOT = "flax.nnx:Variable._raw_value"
FALLBACK = "jax.extend.core:get_opaque_trace_state"  # what is left for another name


class Without(types.ModuleType):
    """A module without some of its names. Who holds the module itself still has them."""

    def __init__(self, module: types.ModuleType, hidden: set[str]) -> None:
        super().__init__(module.__name__)
        vars(self).update(__spec__=module.__spec__, _module=module, _hidden=hidden)

    def __getattr__(self, name: str) -> Any:
        if name in self._hidden:
            raise AttributeError(f"{self.__name__} has no {name}")
        return getattr(self._module, name)


def is_ours_alone(name: str) -> bool:
    """Return whether a name is hidden from our lookups alone: JAX or Flax needs it itself."""
    return name == SLOT or name.endswith(":")


def hide(names: list[str]) -> None:
    attributes: dict[str, set[str]] = {}
    for name in names:
        module, _, attribute = name.partition(":")
        attributes.setdefault(module, set()).add(attribute)
    for module, hidden in attributes.items():
        with contextlib.suppress(ImportError):
            real = pkgutil.resolve_name(module + ":")
            sys.modules[module] = without = Without(real, hidden)
            parent, _, last = module.rpartition(".")
            if parent and parent != "flax":  # Flax's own lazy imports take names from it
                setattr(sys.modules[parent], last, without)


def train() -> dict[str, list[float]]:
    import numpy as np

    import neurenix as nx
    from neurenix import nn

    nx.random.seed(0)
    models = {
        "Linear": (nn.Sequential(nn.Linear(4, 70), nn.ReLU(), nn.Linear(70, 3)), (4,)),
        "CNN": (
            nn.Sequential(
                nn.Conv2d(1, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 3)
            ),
            (8, 8, 1),
        ),
        "transformer": (
            nn.Sequential(
                nn.Linear(4, 8), nn.TransformerBlock(8, 2), nn.Flatten(), nn.Linear(40, 3)
            ),
            (5, 4),
        ),
    }
    losses = {}
    for name, (model, shape) in models.items():
        generator = np.random.default_rng(0)
        x = generator.normal(size=(32, *shape)).astype(np.float32)
        y = generator.integers(0, 3, 32)
        model.compile(optimizer="sgd", loss="cross_entropy")
        losses[name] = model.fit(x, y, epochs=2, batch_size=16, verbose=0).history["loss"]
    return losses


def case(name: str, hidden: list[str]) -> dict[str, Any]:
    resolve, looked_up = pkgutil.resolve_name, set()

    def recorded(name: str) -> Any:
        looked_up.add(name)
        if name in hidden and is_ours_alone(name):
            raise AttributeError(name)
        return resolve(name)

    hide([name for name in hidden if not is_ours_alone(name)])
    pkgutil.resolve_name = recorded
    if name == "one by one":
        from neurenix._cpu import tuning

        tuning._OPTIONS = {"xla_cpu_no_such_option": "1"}
    if name == "tunings":
        os.environ["NEURENIX_CPU_TUNING"] = "0"
    losses = train()
    loaded = [m for m in sys.modules if m.startswith("jax.experimental.pallas")]
    return {
        "losses": losses, "hidden": hidden, "looked_up": sorted(looked_up), "pallas": loaded,
        "options": _options(), "lowerings": _lowerings(),
    }  # fmt: skip


def _options() -> Any:
    from neurenix import _cpu

    return _cpu.compiler_options()


def _lowerings() -> list[str]:
    """Return the modules of the rules that lower convolutions, products and pooling now."""
    from neurenix import _jax

    primitives = (
        _jax.convolution_primitive, _jax.product_primitive, _jax.max_pool_gradient_primitive
    )  # fmt: skip
    return [str(getattr(_jax.cpu_lowering(p), "__module__", None)) for p in primitives]


def forked(name: str, hidden: list[str], folder: Path) -> dict[str, Any]:
    """Return what ``case`` returns in a process of its own, or its error."""
    out = folder / "case.json"
    process = os.fork()
    if process == 0:
        try:
            result = case(name, hidden)
        except BaseException:
            result = {"error": traceback.format_exc()}
        out.write_text(json.dumps(result))
        os._exit(0)
    os.waitpid(process, 0)
    result = json.loads(out.read_text()) if out.exists() else {"error": "the process ended"}
    out.unlink(missing_ok=True)
    return result


def main(names: list[str], out: Path) -> None:
    warnings.simplefilter("ignore")
    for name in names:  # JAX's own modules are loaded before one of their names is hidden
        with contextlib.suppress(ImportError):
            if not name.startswith(("jax.experimental.pallas", "libtpu")):
                pkgutil.resolve_name(name.partition(":")[0] + ":")
    # Names that no training looks up cannot stop one, so they are hidden together. Each of the
    # others has a fallback of its own, except those of lowerings, which share one.
    found = {"nothing": forked("nothing", [], out.parent)}
    needed = {*found["nothing"].get("looked_up", [])} & {*names}
    lowerings = {name for name in needed if name.startswith("jax.interpreters.mlir:")}
    found["one by one"] = forked("one by one", sorted(needed - lowerings), out.parent)
    found["lowerings"] = forked("lowerings", sorted(lowerings), out.parent)
    found["all"] = forked("all", sorted({*names} - {FALLBACK}), out.parent)
    found["tunings"] = forked("tunings", [], out.parent)
    out.write_text(json.dumps(found))


if __name__ == "__main__":
    assert jax.__name__ and flax.nnx.__name__
    main(json.loads(sys.argv[1]), Path(sys.argv[2]))
