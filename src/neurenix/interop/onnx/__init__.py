"""Models of ONNX: ``nx.from_onnx`` computes them in JAX, ``nx.to_onnx`` writes them."""

from neurenix.interop.onnx.convert import from_onnx
from neurenix.interop.onnx.export import to_onnx
from neurenix.interop.onnx.module import OnnxModule
from neurenix.interop.onnx.registry import register_onnx_op
from neurenix.interop.onnx.verify import Verification

__all__ = ["OnnxModule", "Verification", "from_onnx", "register_onnx_op", "to_onnx"]
