"""One function for each operator of ONNX, opset versions side by side: importing registers them.

Inputs come by position, None for one that is left out; attributes come by name.
"""

import importlib

__all__ = ["load"]

_FILES = (
    "activations attention control convolution elementwise image indexing losses microsoft ml "
    "normalization pooling products quantization random recurrent reductions regions resize shapes "
    "signal trees"
).split()


def load() -> None:
    """Fill the table of operators."""
    for name in _FILES:
        importlib.import_module(f"{__name__}.{name}")
