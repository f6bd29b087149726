"""What makes XLA's programs for the CPU faster; results differ by float32 rounding at most.

``convolution``, ``pooling`` and ``product`` lower operations to forms that are fast on a CPU,
``memory`` keeps the C library from giving back what the next step needs, ``tuning`` sets these up:
programs of Flax and plain JAX gain as ours do. ``drawing`` spares our random numbers a program for
each shape. Owns nothing of other devices, and no layer.
"""

from neurenix._cpu.convolution import channels_last
from neurenix._cpu.random_bits import drawn
from neurenix._cpu.tuning import compiled, compiler_options, use_fast_lowerings

__all__ = ["channels_last", "compiled", "compiler_options", "drawn", "use_fast_lowerings"]
