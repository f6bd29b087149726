"""What an instruction has to do, and the least time of it on a device: its floors.

Owns these for one instruction: its products at the peak of the matrix unit, its bytes at the
rates of HBM and of VMEM; of a Pallas kernel what its author states, what its name and shapes say,
or what its program shows. It does not own how long the instruction takes beyond them
(``schedule``).
"""

from __future__ import annotations

from dataclasses import dataclass

from neurenix.chips import VMEM_BANDWIDTH_OVER_HBM, Generation
from neurenix.compiler.attention_kernels import attention_cost, kernel_work
from neurenix.compiler.hlo import Computation, Instruction, Module
from neurenix.compiler.operations import (
    MatrixProduct,
    is_kernel,
    kernel_cost,
    peak_of,
    top_level_products,
)
from neurenix.compiler.traffic import moved_bytes


@dataclass(frozen=True)
class Work:
    """FLOPs and bytes of one instruction on one device, and what they take at the published rates.

    Attributes:
        flops: on the matrix unit.
        bytes: from and to HBM, padding included.
        compute_seconds: of all products at the peak of their types, with every branch of a kernel
            taken.
        sure_seconds: the same of those outside of branches.
        transfer_seconds: of the bytes from and to HBM.
        vmem_seconds: of the bytes from and to VMEM.
        products: on the matrix unit, but for those in a kernel.
        kernel: whether it is a Pallas kernel.
        stated: whether it is one whose cost is known as a whole: stated, or an attention of JAX.
        attention: whether it is JAX's attention, which published runs have.
    """

    flops: float
    bytes: int
    compute_seconds: float
    sure_seconds: float
    transfer_seconds: float
    vmem_seconds: float
    products: tuple[MatrixProduct, ...] = ()
    kernel: bool = False
    stated: bool = False
    attention: bool = False

    @property
    def floor_seconds(self) -> float:
        """The least time of the instruction."""
        return max(self.sure_seconds, self.transfer_seconds, self.vmem_seconds)


def work_of(
    module: Module, computation: Computation, instruction: Instruction, generation: Generation
) -> Work:
    """Return what an instruction of a computation has to do on a device of a generation.

    Example:
        >>> from neurenix.chips import generation
        >>> from neurenix.compiler.hlo import parse
        >>> module = parse('''HloModule m
        ...
        ... ENTRY %main (p: f32[1024,1024]) -> f32[1024,1024] {
        ...   %p = f32[1024,1024]{1,0} parameter(0)
        ...   ROOT %n = f32[1024,1024]{1,0} negate(%p)
        ... }
        ... ''')
        >>> work = work_of(module, module.entry, module.entry.root, generation("v5e"))
        >>> work.bytes, round(work.floor_seconds * 1e6, 1)
        (8388608, 10.2)
    """
    moved, inside = moved_bytes(module, computation, instruction)
    products = tuple(top_level_products(module, computation, instruction))
    kernel = is_kernel(instruction)
    stated = kernel_cost(instruction) if kernel else None
    attention = attention_cost(computation, instruction, moved) if kernel else None
    stated = stated or attention
    shown = kernel_work(instruction) if kernel and not stated else None
    if stated:
        flops, moved = stated[0], int(stated[1])
        compute = sure = flops / generation.peak_flops_per_second["bfloat16"]
    elif shown:
        flops = shown.flops
        moved = moved if inside else max(moved, shown.bytes)  # blocks of VMEM cost nothing
        compute, sure = (
            sum(part / peak_of(dtypes, generation) for part, dtypes in parts)
            for parts in (shown.products, shown.sure_products)
        )
    else:
        flops = sum(product.flops for product in products)
        compute = sure = sum(
            product.flops / peak_of(product.dtypes, generation) for product in products
        )
    rate = generation.hbm_bandwidth_bytes_per_second_per_device
    return Work(
        flops=flops,
        bytes=moved,
        compute_seconds=compute,
        sure_seconds=sure,
        transfer_seconds=moved / rate,
        vmem_seconds=inside / (rate * VMEM_BANDWIDTH_OVER_HBM),
        products=products,
        kernel=kernel,
        stated=bool(stated),
        attention=bool(attention),
    )
