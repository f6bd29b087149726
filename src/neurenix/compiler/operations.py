"""What one instruction of the optimised program works: FLOPs, bytes in HBM, matrix products.

Owns reading these from the instruction and the computations that it calls. It does not own how
long they take (``time``) or what should be said of them (``findings``).
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from itertools import repeat

from neurenix.compiler.hlo import Computation, Instruction, Module
from neurenix.compiler.shapes import Shape

_COST_ESTIMATE = re.compile(r'"cost_estimate":\{"flops":"?(\d+)"?.*?"bytes_accessed":"?(\d+)')

FREE = frozenset(
    "parameter constant tuple get-tuple-element bitcast after-all partition-id replica-id iota "
    "opt-barrier add-dependency domain bitcast-convert".split()
)
COLLECTIVES = frozenset(
    "all-reduce all-gather reduce-scatter all-to-all collective-permute ragged-all-to-all "
    "collective-broadcast".split()
)


@dataclass(frozen=True)
class MatrixProduct:
    """One product on the matrix unit: rows × depth times depth × columns, ``batch`` times.

    For a convolution rows are output positions, depth is the kernel's inputs. ``highest`` is
    whether it was asked for at float32 precision, which takes several passes.
    """

    batch: int
    rows: int
    depth: int
    columns: int
    dtypes: tuple[str, ...]
    highest: bool
    instruction: Instruction

    @property
    def flops(self) -> float:
        """Two for each multiply and add."""
        return 2.0 * self.batch * self.rows * self.depth * self.columns


def base_opcode(instruction: Instruction) -> str:
    """Return the opcode without the ``-start`` or ``-done`` of its asynchronous halves.

    Example:
        >>> base_opcode(Instruction("a", "all-reduce-start", (), (), "", "", False))
        'all-reduce'
    """
    return instruction.opcode.removesuffix("-start").removesuffix("-done")


def inner_instructions(module: Module, instruction: Instruction) -> list[Instruction]:
    """Return the instruction and all that it calls, however deep, loops left out."""
    found = [instruction]
    if instruction.opcode in ("while", "conditional"):
        return found
    for name in instruction.called:
        computation = module.computations.get(name)
        for inner in computation.instructions if computation else ():
            found.extend(inner_instructions(module, inner))
    return found


def matrix_products(module: Module, instruction: Instruction) -> list[MatrixProduct]:
    """Return the products on the matrix unit that an instruction contains."""
    found: list[MatrixProduct] = []
    for name in instruction.called if instruction.opcode == "fusion" else ():
        computation = module.computations.get(name)
        for inner in computation.instructions if computation else ():
            found.extend(matrix_products(module, inner))
            product = _product(computation, inner) if computation else None
            if product:
                found.append(product)
    return found


def top_level_products(
    module: Module, computation: Computation, instruction: Instruction
) -> list[MatrixProduct]:
    """Like ``matrix_products``, for an instruction that may itself be a product."""
    own = _product(computation, instruction)
    return [own] if own else matrix_products(module, instruction)


def _product(computation: Computation, instruction: Instruction) -> MatrixProduct | None:
    if instruction.opcode not in ("convolution", "dot"):
        return None
    operands = [computation.by_name.get(name) for name in instruction.operands[:2]]
    if len(operands) < 2 or operands[0] is None or operands[1] is None:
        return None
    left, right = operands[0].shapes[0], operands[1].shapes[0]
    out = instruction.shapes[0]
    precision = instruction.attribute("operand_precision") or ""
    if instruction.opcode == "dot":
        batch, depth = _dot_sizes(instruction, left)
        columns = math.prod(right.sizes) // max(1, batch * depth)
    else:
        batch, depth, columns = _convolution_sizes(instruction, right)
    rows = math.prod(out.sizes) // max(1, batch * columns)
    return MatrixProduct(
        batch=batch,
        rows=rows,
        depth=depth,
        columns=columns,
        dtypes=(left.dtype, right.dtype),
        highest="highest" in precision,
        instruction=instruction,
    )


def _dot_sizes(instruction: Instruction, left: Shape) -> tuple[int, int]:
    def product(name: str) -> int:
        text = instruction.attribute(name) or ""
        return math.prod(left.sizes[int(axis)] for axis in re.findall(r"\d+", text))

    return product("lhs_batch_dims"), product("lhs_contracting_dims")


def _convolution_sizes(instruction: Instruction, kernel: Shape) -> tuple[int, int, int]:
    """Return batch, depth and columns of a convolution, the form of every product on a TPU.

    The zeros of a dilated operand are no work. XLA writes the batch dimensions of a matrix product
    as spatial ones, dilated by their own size and slid over with a stride of it, so that only the
    diagonal is left: that is told from the gradient of a strided convolution by its stride.
    """
    labels = instruction.attribute("dim_labels") or ""
    kernel_labels = labels.partition("_")[2].partition("->")[0]
    if len(kernel_labels) != len(kernel.sizes):
        return 1, 1, 1
    columns = kernel.sizes[kernel_labels.index("o")]
    depth = math.prod(kernel.sizes) // max(1, columns)
    batch = 1
    window = instruction.attribute("window") or ""
    fields = {name: _numbers(window, name) for name in ("size", "stride", "lhs_dilate")}
    for size, stride, factor in zip(
        fields["size"], fields["stride"] or repeat(1), fields["lhs_dilate"], strict=False
    ):
        if stride > 1 and factor >= size - 1:
            batch *= size
            depth //= size
        elif factor > 1:
            depth //= factor
    return batch, max(1, depth), columns


def _numbers(window: str, name: str) -> list[int]:
    found = re.search(rf"\b{name}=([\dx]+)", window)
    return [int(part) for part in found[1].split("x")] if found else []


def moved_bytes(computation: Computation, instruction: Instruction) -> tuple[int, int]:
    """Bytes of operands and results that lie in HBM and in VMEM, padding included.

    Upper limits: an operand that is only sliced is counted whole.
    """
    shapes = list(instruction.shapes)
    for name in instruction.operands:
        operand = computation.by_name.get(name)
        if operand is not None:
            shapes.extend(operand.shapes)
    hbm = sum(shape.padded_bytes for shape in shapes if shape.memory_space == 0)
    vmem = sum(shape.padded_bytes for shape in shapes if shape.memory_space == 1)
    return hbm, vmem


def kernel_cost(instruction: Instruction) -> tuple[float, float] | None:
    """Return FLOPs and bytes that the author of a Pallas kernel states, if he states them."""
    found = _COST_ESTIMATE.search(instruction.attributes)
    return (float(found[1]), float(found[2])) if found else None


def is_kernel(instruction: Instruction) -> bool:
    """Whether this is a Pallas kernel."""
    return (
        instruction.opcode == "custom-call"
        and instruction.attribute("custom_call_target") == "tpu_custom_call"
    )


def collective_inside(module: Module, instruction: Instruction) -> Instruction | None:
    """Return the collective that a fusion carries, or the instruction itself when it is one."""
    for inner in inner_instructions(module, instruction):
        if base_opcode(inner) in COLLECTIVES:
            return inner
    return None
