"""The CPU's programs, set up: fast forms of operations, XLA's options, memory that is kept.

Owns what is set up when: forms before a program is traced, options when it is compiled, memory once
it is. What depends on the device is asked no earlier than a call of a compiled function, which
starts a backend anyway.
"""

from __future__ import annotations

import jax

from neurenix._cpu.convolution import use_channels_last
from neurenix._cpu.memory import keep_freed_memory
from neurenix._cpu.pooling import use_elementwise_gradient

# What XLA leaves to the library YNNPACK: products and sums, but not convolutions as by default.
# Those of float32 take 1.3 to 2 times as long there as in XLA's own kernel (two cores, jax 0.10.2,
# kernels of 3 x 3 on images of 6 to 56 with 32 to 256 channels, forward and for both gradients).
_OPTIONS = {
    "xla_cpu_experimental_ynn_fusion_type": (
        "LIBRARY_FUSION_TYPE_INDIVIDUAL_DOT,LIBRARY_FUSION_TYPE_REDUCE"
    )
}


def use_fast_lowerings() -> None:
    """Lower convolutions and gradients of pooling for the CPU so that they are fast."""
    use_channels_last()
    use_elementwise_gradient()


def compiler_options() -> dict[str, str] | None:
    """Return XLA's options for a program of this process.

    None where it has other devices than CPUs; a simulated slice is made of CPUs. Starts JAX's
    backends.
    """
    return dict(_OPTIONS) if jax.default_backend() == "cpu" else None


def compiled() -> None:
    """Give back what compiling took, and have steps keep their memory from now on."""
    if jax.default_backend() == "cpu":
        keep_freed_memory()
