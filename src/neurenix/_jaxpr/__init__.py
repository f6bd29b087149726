"""Read jaxprs: the jaxprs inside an equation, loops, calls and source lines.

A jaxpr is JAX's program before it is compiled, as ``jax.make_jaxpr`` returns it: equations, some of
which run further jaxprs (a call, a loop, a conditional, a kernel). Owns the structure of jaxprs. It
does not own what a primitive computes or costs (``neurenix.compiler``).

=================  ================================================================================
``walk``           every equation, with the number of its runs and the equations around it
``subjaxprs``      the jaxprs that one equation runs
``called_jaxpr``   the jaxpr of a call, whose inputs and results are those of the equation
``repetitions``    how often an equation runs its jaxprs
``source_line``    the user's line behind an equation
``inline_calls``   the same program without calls
=================  ================================================================================
"""

from neurenix._jaxpr.inlining import inline_calls
from neurenix._jaxpr.loops import kernel_grid, repetitions
from neurenix._jaxpr.source_lines import frames, source_line
from neurenix._jaxpr.structure import (
    CALLS,
    CHECKPOINTS,
    called_jaxpr,
    is_jaxpr,
    map_subjaxprs,
    open_jaxpr,
    subjaxprs,
)
from neurenix._jaxpr.traversal import Site, walk

__all__ = [
    "CALLS",
    "CHECKPOINTS",
    "Site",
    "called_jaxpr",
    "frames",
    "inline_calls",
    "is_jaxpr",
    "kernel_grid",
    "map_subjaxprs",
    "open_jaxpr",
    "repetitions",
    "source_line",
    "subjaxprs",
    "walk",
]
