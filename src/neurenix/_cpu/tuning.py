"""Apply the tunings of the CPU: lowerings, XLA's options, and the C library's memory.

Lowerings are set before a program is traced, options when it is compiled, memory after it was
compiled. Whether the device is a CPU is checked when a compiled function is called, which starts a
backend anyway.
"""

from __future__ import annotations

import os
from functools import cache

import jax

from neurenix._cpu import convolution, max_pool_gradient, weight_gradient
from neurenix._cpu.allocator import keep_freed_memory
from neurenix._jax import replace_cpu_lowering

VARIABLE = "NEURENIX_CPU_TUNING"

# What XLA gives to the library YNNPACK: products and sums, but not convolutions as by default.
# Those of float32 take longer there than in XLA's own kernel: 1.25 to 2 times forward, 1.2 to 1.9
# for the kernel's gradient, and as long for the input's (two cores, jax 0.10.2, images of 6 to 56
# with 32 to 1,024 channels). One of a single input channel is faster there: 130 µs against 365.
_OPTIONS = {
    "xla_cpu_experimental_ynn_fusion_type": (
        "LIBRARY_FUSION_TYPE_INDIVIDUAL_DOT,LIBRARY_FUSION_TYPE_REDUCE"
    )
}


def is_tuned() -> bool:
    """Return whether programs of the CPU are tuned: unless ``NEURENIX_CPU_TUNING`` is ``0``."""
    return os.environ.get(VARIABLE, "") != "0"


def use_fast_lowerings() -> None:
    """Lower convolutions and the gradients of weights and pooling for the CPU by fast rules."""
    if is_tuned():
        for lowering in (
            convolution.LOWERING,
            max_pool_gradient.LOWERING,
            weight_gradient.LOWERING,
        ):
            replace_cpu_lowering(*lowering)


def compiler_options() -> dict[str, str] | None:
    """Return XLA's options for a program of this process. Starts JAX's backends.

    None if the default devices are not CPUs (those of a simulated slice are), or this version of
    XLA does not have the options.
    """
    if not is_tuned() or jax.default_backend() != "cpu" or not _are_known():
        return None
    return dict(_OPTIONS)


def compiled() -> None:
    """Release the memory of compilation to the system, and keep freed memory from then on."""
    if is_tuned() and jax.default_backend() == "cpu":
        keep_freed_memory()


@cache
def _are_known() -> bool:
    """Return whether XLA has the options, which are experimental; found by compiling a program."""
    lowered = jax.jit(_nothing).lower()
    try:
        lowered.compile(compiler_options={**_OPTIONS})
    except RuntimeError as error:
        if not any(name in str(error) for name in _OPTIONS):
            raise
        return False
    return True


def _nothing() -> None:
    """Compute nothing: the program that tests the options."""
