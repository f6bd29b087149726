"""Compute the work of an instruction, and its lower bound on time.

The bounds are products at the matrix unit's peak, and bytes at HBM and VMEM bandwidth. For a Pallas
kernel they come from its stated cost, its name and shapes, or its program. ``schedule`` owns the
time beyond the bounds.
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
    """FLOPs and bytes of one instruction on one device, and their time at the published rates.

    Attributes:
        flops: on the matrix unit.
        bytes: HBM traffic, padding included.
        compute_seconds: of all products at the peak of their types, with every branch of a kernel
            taken.
        sure_seconds: the same without products inside branches.
        transfer_seconds: of the HBM traffic.
        vmem_seconds: of the VMEM traffic.
        products: on the matrix unit, except those in a kernel.
        kernel: whether it is a Pallas kernel.
        stated: whether it is a kernel of known cost: stated, or JAX's attention.
        attention: whether it is JAX's attention, which published runs use.
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
        """Lower bound on the time of the instruction."""
        return max(self.sure_seconds, self.transfer_seconds, self.vmem_seconds)


def work_of(
    module: Module, computation: Computation, instruction: Instruction, generation: Generation
) -> Work:
    """Return the work of an instruction on a device of a generation.

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
        moved = moved if inside else max(moved, shown.bytes)  # blocks in VMEM cost no HBM traffic
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
