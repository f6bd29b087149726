"""One function for each operator of PyTorch that ``torch.export`` leaves: importing registers them.

Arguments have the names of the operator's schema (``self`` is ``x``); dtypes are JAX's. What takes
an argument that changes nothing here swallows it in ``_``.
"""

from neurenix.interop.torch.operators import (
    attention,
    control,
    convolution,
    creation,
    elementwise,
    fourier,
    indexing,
    losses,
    normalization,
    pooling,
    products,
    random,
    recurrent,
    reductions,
    sampling,
    shapes,
    sorting,
    special,
)


def load() -> None:
    """Fill the table of operators, which importing this package has done."""


__all__ = [
    "load",
    "attention",
    "control",
    "convolution",
    "creation",
    "elementwise",
    "fourier",
    "indexing",
    "losses",
    "normalization",
    "pooling",
    "products",
    "random",
    "recurrent",
    "reductions",
    "sampling",
    "shapes",
    "sorting",
    "special",
]
