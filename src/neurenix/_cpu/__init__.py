"""Make XLA's programs for the CPU faster. By default this changes the whole process.

On the first call of a compiled function on a CPU, Neurenix

- changes how JAX lowers convolutions, products and the gradient of max pooling for the CPU
  (``convolution``, ``weight_gradient``, ``max_pool_gradient``), so that programs of Flax and plain
  JAX in this process change too; results differ by float32 rounding at most;
- gives XLA options for its own programs (``tuning``);
- sets the C library to keep up to 1 GiB of freed memory (``allocator``).

``NEURENIX_CPU_TUNING=0`` in the environment turns all three off. ``random_bits`` changes nothing
outside Neurenix: it draws the same numbers with fewer compilations.
"""

from neurenix._cpu.random_bits import drawn
from neurenix._cpu.tuning import compiled, compiler_options, is_tuned, use_fast_lowerings

__all__ = [
    "compiled",
    "compiler_options",
    "drawn",
    "is_tuned",
    "use_fast_lowerings",
]
