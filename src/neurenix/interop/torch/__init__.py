"""PyTorch models, converted by way of ``torch.export``: ``nx.from_torch`` and ``nx.to_torch``."""

from neurenix.interop.check_report import CheckReport
from neurenix.interop.torch.check import check
from neurenix.interop.torch.convert import from_torch, to_torch
from neurenix.interop.torch.module import TorchModule
from neurenix.interop.torch.registry import register_torch_op
from neurenix.interop.torch.structure import Outputs
from neurenix.interop.torch.verify import Verification

__all__ = [
    "CheckReport",
    "Outputs",
    "TorchModule",
    "Verification",
    "check",
    "from_torch",
    "register_torch_op",
    "to_torch",
]
