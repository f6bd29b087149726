"""Every name of JAX that is private, experimental or unstable (``jax._src``, ``jax.extend``).

Each is looked up at run time (``neurenix._core.unstable_names``), so that a version of JAX without
it stops only what needs it:

- A name that serves speed has a fallback in public names: the results are the same.
- A name that a feature needs raises ``IncompatibleVersionError`` when the feature is used.

Nothing here imports Pallas before a kernel is called. Names of Flax are in ``_nnx``; the compiler
without JAX is in ``_jaxlib``.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import jax
import numpy as np

from neurenix._core.unstable_names import find, missing, need, need_attribute

_PREFLIGHT = "Compiling for devices that are not attached"
_SIMULATION = "Simulating a slice"
_NUMERICS = 'Simulating a slice with numerics="tpu"'
_JITTED = "Preflight of a function that jax.jit compiled"
_PROCESSES = "Training with several processes"
_JIT_TYPE = type(jax.jit(len))

# Primitives, to lower them differently on the CPU; None where JAX has no such name.
convolution_primitive = find("jax.lax:conv_general_dilated_p")
product_primitive = find("jax.lax:dot_general_p")
max_pool_gradient_primitive = find("jax._src.lax.windowed_reductions:select_and_scatter_add_p")

_backends_are_initialized = find("jax._src.xla_bridge:backends_are_initialized")


def _public_trace_state_clean() -> Callable[[], bool]:
    """Return a slower ``trace_state_clean``: compares with the state of a new thread."""
    state = need("jax.extend.core:get_opaque_trace_state", "nx.jit")
    clean: list[Any] = []
    thread = threading.Thread(target=lambda: clean.append(state()))
    thread.start()
    thread.join()
    return lambda: state() == clean[0]


trace_state_clean: Callable[[], bool] = (
    find("jax._src.core:trace_state_clean") or _public_trace_state_clean()
)
"""Whether nothing is traced around a call. Buffers are donated only then."""


# Backends and devices


def backends_are_started() -> bool:
    """Return whether JAX has started its backends; afterwards no device can be added.

    ``jax.devices`` would start them.
    """
    if _backends_are_initialized is not None:
        return _backends_are_initialized()
    before = jax.config.jax_num_cpu_devices  # pyright: ignore[reportAttributeAccessIssue]
    try:
        jax.config.update("jax_num_cpu_devices", before + 1)  # JAX refuses a change after the start
    except RuntimeError:
        return True
    jax.config.update("jax_num_cpu_devices", before)
    return False


def backend_error(platform: str) -> str | None:
    """Return why JAX could not start a backend, such as ``"cuda"``; None where it did."""
    errors = find("jax._src.xla_bridge:_backend_errors")
    if errors is not None:
        return errors.get(platform)
    try:
        jax.devices(platform)
    except RuntimeError as error:
        return str(error)
    return None


def devices_of_platform(platform: str) -> list[Any]:
    """Return the devices of a backend, none where JAX has no such backend. Starts the backends.

    Raises:
        RuntimeError: JAX cannot start a backend that ``JAX_PLATFORMS`` asks for.
    """
    backends = find("jax.extend.backend:backends")
    if backends is not None:
        return list(jax.devices(platform)) if platform in backends() else []
    jax.devices()
    try:
        return list(jax.devices(platform))
    except RuntimeError:  # no such backend
        return []


def clear_backends() -> None:
    """Shut the backends of this process down."""
    need("jax.extend.backend:clear_backends", "Shutting down a TPU")()


def register_backend(
    platform: str, factory: Callable[[], Any], *, priority: int, fail_quietly: bool
) -> None:
    """Have JAX make the devices of ``platform`` with ``factory``, a function that returns a client.

    Does nothing where JAX has no such function; ``check_simulation`` raises then.
    """
    register = find("jax.extend.backend:register_backend_factory")
    if register is not None:
        register(platform, factory, priority=priority, fail_quietly=fail_quietly)


def cpu_client(num_devices: int) -> Any:
    """Return a client of CPU devices, to be registered under the name ``"tpu"``.

    The public ``jax_num_cpu_devices`` makes devices that are named ``"cpu"``.
    """
    make = need("jaxlib.xla_client:make_cpu_client", _SIMULATION)
    return make(asynchronous=True, num_devices=num_devices)


def check_simulation() -> None:
    """Raise where a slice cannot be simulated with this version of JAX.

    Raises:
        IncompatibleVersionError: a name that simulation needs does not exist.
    """
    need("jax.extend.backend:register_backend_factory", _SIMULATION)
    need("jaxlib.xla_client:make_cpu_client", _SIMULATION)


def device_list(devices: Iterable[Any]) -> Any:
    """Return devices in the order of a mesh, as PJRT's ``deserialize_executable`` takes them.

    ``jax.experimental.serialize_executable`` unpickles Python objects, which is unsafe for files.
    """
    return need("jaxlib.xla_client:DeviceList", "nx.load_compiled")(tuple(devices))


def process_allgather(array: Any, *, tiled: bool = False) -> Any:
    """Return ``array`` of every process, stacked; with ``tiled``, concatenated."""
    gather = need("jax.experimental.multihost_utils:process_allgather", _PROCESSES)
    return gather(array, tiled=tiled)


def create_device_mesh(sizes: tuple[int, ...], devices: list[Any]) -> Any:
    """Return an array of devices in which neighbours on an axis are linked, where JAX knows how.

    Any order gives the same results.
    """
    create = find("jax.experimental.mesh_utils:create_device_mesh")
    if create is None:
        return np.asarray(devices, dtype=object).reshape(sizes)
    return create(sizes, devices=devices)


# Lowering for the CPU


def cpu_lowering(primitive: Any) -> Callable[..., Any] | None:
    """Return the rule that lowers ``primitive`` for the CPU now; None where it is unknown.

    ``jax.interpreters.mlir.register_lowering`` sets a rule, and no public name returns one.
    """
    by_platform = find("jax.interpreters.mlir:_platform_specific_lowerings")
    by_default = find("jax.interpreters.mlir:_lowerings")
    if by_platform is None or by_default is None:
        return None
    entry = by_platform["cpu"].get(primitive) or by_default.get(primitive)
    return getattr(entry, "rule", None)


def needed_cpu_lowering(primitive: Any) -> Callable[..., Any]:
    """Return ``cpu_lowering(primitive)``.

    Raises:
        IncompatibleVersionError: it is unknown.
    """
    rule = cpu_lowering(primitive)
    if rule is None:
        raise missing("jax.interpreters.mlir:_lowerings", _NUMERICS)
    return rule


def replace_cpu_lowering(
    primitive: Any, standard: Callable[..., Any] | None, rule: Callable[..., Any]
) -> None:
    """Lower ``primitive`` for the CPU by ``rule``, if ``standard`` is what lowers it now.

    Does nothing where somebody has set another rule, or where a name of JAX is missing.
    """
    is_standard = standard is not None and cpu_lowering(primitive) is standard
    register = find("jax.interpreters.mlir:register_lowering")
    lower_fun = find("jax.interpreters.mlir:lower_fun")  # which the rule itself needs
    if is_standard and register is not None and lower_fun is not None:
        register(primitive, rule, platform="cpu")


def lowering_of(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the lowering rule of a function of arrays with one result."""
    lower = need("jax.interpreters.mlir:lower_fun", "A rule that lowers for the CPU")
    return lower(function, multiple_results=False)


def set_cpu_lowering(primitive: Any, rule: Callable[..., Any]) -> None:
    """Lower ``primitive`` for the CPU by ``rule``, whatever lowers it now."""
    register = need("jax.interpreters.mlir:register_lowering", _NUMERICS)
    register(primitive, rule, platform="cpu")


def round_operand(operand: Any, exponent_bits: int, mantissa_bits: int) -> Any:
    """Return an operand of a lowering rule rounded to a narrower float."""
    integer = need("jax.interpreters.mlir:i32_attr", _NUMERICS)
    reduce = need("jax.extend.mlir.dialects.stablehlo:reduce_precision", _NUMERICS)
    return reduce(operand, integer(exponent_bits), integer(mantissa_bits))


# Programs and functions


def compile_options(num_devices: int, options: Mapping[str, Any]) -> Any:
    """Return XLA's options for a program divided over ``num_devices``."""
    return need("jax.extend.backend:get_compile_options", _PREFLIGHT)(
        num_replicas=1, num_partitions=num_devices, env_options_overrides=dict(options)
    )


def with_shardy() -> AbstractContextManager[Any]:
    """Lower for the partitioner Shardy in this thread, whatever the process uses.

    ``jax.config.update`` is public and holds for all threads.
    """
    name = "jax._src.config:use_shardy_partitioner"
    use = find(name)
    if use is not None:
        return use(True)
    if getattr(jax.config, "jax_use_shardy_partitioner", True):  # or JAX has no other partitioner
        return nullcontext()
    raise missing(name, _PREFLIGHT)


def jit_info(function: Any) -> Any:
    """Return the static arguments, shardings and options of a compiled function.

    None for a function that neither ``jax.jit``, ``nnx.jit`` nor ``nx.jit`` compiled.

    Raises:
        IncompatibleVersionError: ``jax.jit`` compiled it, and does not say how.
    """
    jitted = getattr(function, "jitted_fn", function)  # of nnx.jit
    if isinstance(jitted, _JIT_TYPE):
        return need_attribute(jitted, "jax.jit:_jit_info", _JITTED)
    return getattr(jitted, "_jit_info", None)


def without_compiler_options(jitted: Any) -> Any:
    """Return a function of ``jax.jit`` without its ``compiler_options``.

    JAX does not trace a function with options inside another one.
    """
    compile_again = need("jax._src.pjit:_cpp_pjit", _JITTED)
    function = need_attribute(jitted, "jax.jit:_fun", _JITTED)
    return compile_again(function, jit_info(jitted)._replace(compiler_options_kvs=()))


def jaxpr_as_fun(jaxpr: Any) -> Callable[..., list[Any]]:
    """Return the function that a closed jaxpr computes."""
    return need("jax.extend.core:jaxpr_as_fun", "A program that is traced twice")(jaxpr)


def live_equations(jaxpr: Any) -> Any:
    """Return a jaxpr of the same arguments with only the equations that a result needs."""
    eliminate = need("jax.interpreters.partial_eval:dce_jaxpr", _PREFLIGHT)
    return eliminate(jaxpr, [True] * len(jaxpr.outvars), instantiate=True)[0]


def scan_counts(equation: Any) -> tuple[int, int]:
    """Return how many operands of a scan are constants, and how many are carried.

    What is scanned or stacked has one axis more outside the body than inside. The parameters of the
    equation that say it otherwise depend on the version of JAX.
    """
    body = equation.params["jaxpr"].jaxpr

    def as_inside(outer: Any, inner: Any) -> int:
        return sum(a.aval.shape == b.aval.shape for a, b in zip(outer, inner, strict=True))

    carried = as_inside(equation.outvars, body.outvars)
    return as_inside(equation.invars, body.invars) - carried, carried


def lowered(traced: Any, platform: str) -> Any:
    """Lower a ``jax.stages.Traced`` for a platform that is not attached, as ``jax.export`` does.

    ``Traced.lower`` writes kernels for the attached devices, in a version of Mosaic that it may not
    be able to serialize.
    """
    if "_private_parameters" not in inspect.signature(traced.lower).parameters:
        raise missing("jax.stages:Traced.lower._private_parameters", _PREFLIGHT)
    parameters = need("jax.interpreters.mlir:LoweringParameters", _PREFLIGHT)(
        for_export=True, hoist_constants_as_args=False
    )
    return traced.lower(lowering_platforms=(platform,), _private_parameters=parameters)


def kept_arguments(lowered: Any) -> tuple[int, ...]:
    """Return which arguments of a ``jax.stages.Lowered`` are parameters of its module.

    Unused arguments are not.
    """
    lowering = need_attribute(lowered, "jax.stages:Lowered._lowering", _PREFLIGHT)
    return tuple(sorted(lowering.compile_args["kept_var_idx"]))


def num_partitions(module: Any) -> int:
    """Return for how many devices JAX has lowered a program to a module; 1 if unknown."""
    return _attribute(module, "mhlo.num_partitions", mlir_ir().IntegerAttr) or 1


def set_num_partitions(module: Any, num_devices: int, donated: Collection[int]) -> None:
    """Change a module that was lowered for one device to one for several.

    JAX takes the number from the sharding of an argument, and no argument has one here. A donated
    argument may be overwritten however the compiler divides it.

    Args:
        module: operation of StableHLO.
        num_devices: the number of devices to compile for.
        donated: its parameters that are donated.
    """
    ir = mlir_ir()
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


def mlir_ir() -> Any:
    """Return the module that parses and builds operations of MLIR."""
    return need("jaxlib.mlir.ir:", _PREFLIGHT)


def _attribute(operation: Any, name: str, kind: Any) -> Any:
    return kind(operation.attributes[name]).value if name in operation.attributes else None


# Kernels of Pallas

_SPLASH_KERNEL = "jax.experimental.pallas.ops.tpu.splash_attention.splash_attention_kernel:"
_SPLASH_MASK = "jax.experimental.pallas.ops.tpu.splash_attention.splash_attention_mask:"


def has_splash_attention() -> bool:
    """Return whether JAX has the TPU's attention kernel. Loads Pallas."""
    return find(_SPLASH_KERNEL) is not None and find(_SPLASH_MASK) is not None


def splash_attention() -> tuple[Any, Any]:
    """Return the modules of the TPU's attention kernel and of its masks."""
    feature = "Attention by the TPU's kernel"
    return need(_SPLASH_KERNEL, feature), need(_SPLASH_MASK, feature)


def grouped_products() -> tuple[Callable[..., Any], Callable[..., Any]] | None:
    """Return ``gmm`` and ``tgmm``, the TPU's products of groups of rows; None without them."""
    gmm = find("jax.experimental.pallas.ops.tpu.megablox.gmm:gmm")
    tgmm = find("jax.experimental.pallas.ops.tpu.megablox.gmm:tgmm")
    return None if gmm is None or tgmm is None else (gmm, tgmm)


def register_kernel_dialect(context: Any) -> bool:
    """Make the body of a Pallas kernel readable in a context; return whether it can be.

    ``jax.extend.mlir.dialects`` has the dialects of programs, and not this one.
    """
    register = find("jaxlib.mosaic.python.tpu:register_dialect")
    if register is not None:
        register(context)
    return register is not None
