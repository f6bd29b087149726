"""The CPU's programs, set up: fast forms of operations, XLA's options, memory that is kept.

Owns what is set up when: forms before a program is traced, options when it is compiled, memory once
it is. What depends on the device is asked no earlier than a call of a compiled function, which
starts a backend anyway.
"""

from __future__ import annotations

import jax

from neurenix._cpu.allocator import keep_freed_memory
from neurenix._cpu.convolution import use_channels_last
from neurenix._cpu.max_pool_gradient import use_elementwise_gradient
from neurenix._cpu.weight_gradient import use_turned_products

# What XLA leaves to the library YNNPACK: products and sums, but not convolutions as by default.
# Those of float32 take longer there than in XLA's own kernel: 1.25 to 2 times forward, 1.2 to 1.9
# for the kernel's gradient, and as long for the input's (two cores, jax 0.10.2, images of 6 to 56
# with 32 to 1,024 channels). One of a single input channel is faster there: 130 µs against 365.
_OPTIONS = {
    "xla_cpu_experimental_ynn_fusion_type": (
        "LIBRARY_FUSION_TYPE_INDIVIDUAL_DOT,LIBRARY_FUSION_TYPE_REDUCE"
    )
}


def use_fast_lowerings() -> None:
    """Lower convolutions and gradients of weights and pooling for the CPU so that they are fast."""
    use_channels_last()
    use_elementwise_gradient()
    use_turned_products()


def compiler_options() -> dict[str, str] | None:
    """Return XLA's options for a program of this process.

    None where its default devices are no CPUs; those of a simulated slice are. Starts JAX's
    backends.
    """
    return dict(_OPTIONS) if jax.default_backend() == "cpu" else None


def compiled() -> None:
    """Give back what compiling took, and have steps keep their memory from now on."""
    if jax.default_backend() == "cpu":
        keep_freed_memory()
