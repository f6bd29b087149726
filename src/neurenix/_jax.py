"""The one place that uses names of JAX and jaxlib which are not public.

Owns those names and what is told of each: why it is needed, and which public one is missing. All of
them are loaded by ``import jax`` itself, so this module costs nothing beside it. It owns nothing of
Flax (``_nnx``), and not the compiler without JAX (``_jaxlib``).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import AbstractContextManager
from typing import Any

from jax._src import compiler, config, pjit, xla_bridge
from jax._src.core import trace_state_clean
from jax._src.lax.windowed_reductions import select_and_scatter_add_p as select_and_scatter_add
from jax.interpreters import mlir
from jaxlib.mlir import ir
from jaxlib.mosaic.python.tpu import register_dialect as register_kernel_dialect
from jaxlib.xla_client import DeviceList, make_cpu_client

__all__ = [
    "DeviceList",
    "backend_error",
    "backends_are_started",
    "compile_options",
    "cpu_lowering",
    "divided_over",
    "kept_arguments",
    "lowered",
    "make_cpu_client",
    "num_partitions",
    "register_kernel_dialect",
    "scan_counts",
    "select_and_scatter_add",
    "trace_state_clean",
    "with_shardy",
    "without_compiler_options",
]

# ``trace_state_clean``: whether nothing is being traced around a call; ``nx.jit`` gives buffers
# away then only. No public name says it: ``jax.core`` tells it of a value alone (``Tracer``).

# ``make_cpu_client``: a client of as many CPU devices as a simulated slice has, to be registered
# under the name "tpu". ``jax_num_cpu_devices`` is public and makes devices that are called "cpu".

# ``DeviceList``: the devices of a compiled program in the order of its mesh, as PJRT's
# ``deserialize_executable`` takes them. ``jax.experimental.serialize_executable`` takes them too,
# with a pickle of Python objects, which a file from elsewhere must not bring.

# ``register_kernel_dialect``: makes the body of a Pallas kernel readable, in which its products
# stand. ``jax.extend.mlir.dialects`` has the dialects of programs, and not this one.

# ``select_and_scatter_add``: the gradient of max pooling as JAX traces it, to lower it differently.
# ``jax.lax`` has the primitives of most operations, and not this one.


def backends_are_started() -> bool:
    """Return whether JAX has started its backends; afterwards no device can be added.

    ``jax.devices`` and ``jax.extend.backend.backends`` start them when asked.
    """
    return xla_bridge.backends_are_initialized()


def backend_error(platform: str) -> str | None:
    """Return why JAX could not start a backend, such as that of ``"cuda"``.

    The public names raise it where this backend was asked for by name, and drop it otherwise.
    """
    return xla_bridge._backend_errors.get(platform)


def compile_options(num_devices: int, options: Mapping[str, Any]) -> Any:
    """Return XLA's options for a program divided over ``num_devices``, as JAX makes them.

    ``jax.stages.Lowered.compile`` makes them for devices that are here, and keeps them to itself.
    """
    return compiler.get_compile_options(
        num_replicas=1, num_partitions=num_devices, env_options_overrides=dict(options)
    )


def with_shardy() -> AbstractContextManager[Any]:
    """Have this thread lower for the partitioner Shardy, whatever the process was told.

    ``jax.config.update`` is public and tells all threads.
    """
    return config.use_shardy_partitioner(True)


def without_compiler_options(jitted: Any) -> Any:
    """Return a function of ``jax.jit`` as it is, but for its ``compiler_options``.

    JAX refuses to trace one that has them inside of another, and tells nowhere in public how a
    function was compiled, so that it could be once more.
    """
    return pjit._cpp_pjit(jitted._fun, jitted._jit_info._replace(compiler_options_kvs=()))


def cpu_lowering(primitive: Any) -> Any:
    """Return the rule by which JAX lowers ``primitive`` for the CPU at present.

    ``jax.interpreters.mlir.register_lowering`` sets a rule; none of its neighbours returns the one
    that was there, which a rule around it has to call.
    """
    entry = mlir._platform_specific_lowerings["cpu"].get(primitive) or mlir._lowerings[primitive]
    return entry.rule


def scan_counts(equation: Any) -> tuple[int, int]:
    """Return how many operands of a scan are constants, and how many it carries.

    What is scanned over, and what is stacked, has one axis more outside of the body than inside:
    versions of JAX do not agree on how an equation says it otherwise.
    """
    body = equation.params["jaxpr"].jaxpr

    def as_inside(outer: Any, inner: Any) -> int:
        return sum(a.aval.shape == b.aval.shape for a, b in zip(outer, inner, strict=True))

    carried = as_inside(equation.outvars, body.outvars)
    return as_inside(equation.invars, body.invars) - carried, carried


def lowered(traced: Any, platform: str) -> Any:
    """Lower a ``jax.stages.Traced`` for a platform that is not here, as ``jax.export`` does.

    ``Traced.lower`` takes kernels for what is here at hand, and may write them in a version of
    Mosaic that it then cannot turn into the one that it serializes.
    """
    parameters = mlir.LoweringParameters(for_export=True, hoist_constants_as_args=False)
    return traced.lower(lowering_platforms=(platform,), _private_parameters=parameters)


def kept_arguments(lowered: Any) -> tuple[int, ...]:
    """Return which of the arguments of a ``jax.stages.Lowered`` its module has as parameters.

    Those that nothing uses are none. ``jax.export`` says the same, of what it lowers again.
    """
    return tuple(sorted(lowered._lowering.compile_args["kept_var_idx"]))


def num_partitions(module: Any) -> int:
    """Return for how many devices JAX has lowered a program to a module: 1 if it was not told."""
    return _attribute(module, "mhlo.num_partitions", ir.IntegerAttr) or 1


def divided_over(module: Any, num_devices: int, donated: Collection[int]) -> None:
    """Make a module that was lowered for one device one for several.

    JAX learns for how many, none of which is here, from the sharding of an argument, and here none
    has one. What is given away may be written over as the compiler divides it.

    Args:
        module: operation of StableHLO that JAX has lowered a program to.
        num_devices: that it is to be compiled for.
        donated: its parameters that are given away.
    """
    with module.context:
        count = ir.IntegerAttr.get(ir.IntegerType.get_signless(32), num_devices)
        module.attributes["mhlo.num_partitions"] = count
        functions = module.regions[0].blocks[0].operations
        (main,) = (f for f in functions if _attribute(f, "sym_name", ir.StringAttr) == "main")
        if num_devices == 1 or not donated:
            return
        told = []
        for index, own in enumerate(ir.ArrayAttr(main.attributes["arg_attrs"])):
            named = {entry.name: entry.attr for entry in ir.DictAttr(own)}
            named.pop("tf.aliasing_output", None)
            if index in donated:
                named["jax.buffer_donor"] = ir.BoolAttr.get(True)
            told.append(ir.DictAttr.get(named))
        main.attributes["arg_attrs"] = ir.ArrayAttr.get(told)


def _attribute(operation: Any, name: str, kind: Any) -> Any:
    return kind(operation.attributes[name]).value if name in operation.attributes else None
