"""What one instruction of the optimised program is: matrix products, collectives, kernels, copies.

Owns reading these from the instruction and the computations that it calls. It does not own how
many bytes it moves (``traffic``), how long it takes (``time``) or what should be said of it
(``findings``).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass

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

    For a convolution rows are output positions, depth is the kernel's inputs: on average, where
    some of the kernel lies beside the operand. ``flops`` are two for each multiply and add that
    there is. ``highest`` is whether it was asked for at float32
    precision, which takes several passes.
    """

    batch: int
    rows: int
    depth: int
    columns: int
    dtypes: tuple[str, ...]
    highest: bool
    instruction: Instruction
    flops: float


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
        batch, depth, columns = _convolution_sizes(instruction, left, right)
    rows = math.prod(out.sizes) // max(1, batch * columns)
    return MatrixProduct(
        batch=batch,
        rows=rows,
        depth=max(1, round(depth)),
        columns=columns,
        dtypes=(left.dtype, right.dtype),
        highest="highest" in precision,
        instruction=instruction,
        flops=2.0 * batch * rows * depth * columns,
    )


def _dot_sizes(instruction: Instruction, left: Shape) -> tuple[int, int]:
    def product(name: str) -> int:
        text = instruction.attribute(name) or ""
        return math.prod(left.sizes[int(axis)] for axis in re.findall(r"\d+", text))

    return product("lhs_batch_dims"), product("lhs_contracting_dims")


def _convolution_sizes(
    instruction: Instruction, left: Shape, kernel: Shape
) -> tuple[int, float, int]:
    """Return batch, depth and columns of a convolution, the form of every product on a TPU.

    Only the positions of the kernel that meet a number of the operand are work. XLA writes batch
    dimensions of a matrix product as spatial ones, either dilated by their own size and slid over
    with a stride of it, so that only the diagonal is left, or as a kernel that slides over a
    single number between zeros.
    """
    labels = re.fullmatch(r"(\w+)_(\w+)->(\w+)", instruction.attribute("dim_labels") or "")
    if labels is None or len(labels[2]) != len(kernel.sizes):
        return 1, 1, 1
    columns = kernel.sizes[labels[2].index("o")]
    depth: float = kernel.sizes[labels[2].index("i")]
    batch = 1
    window = instruction.attribute("window") or ""
    for axis, (size, step, low, left_gap, gap) in enumerate(_windows(window)):
        places = left.sizes[labels[1].index(str(axis))]
        outputs = instruction.shapes[0].sizes[labels[3].index(str(axis))]
        met = _met(places, outputs, size, step, low, left_gap, gap)
        depth *= met / max(1, outputs)
        if step > 1 and left_gap >= size - 1:
            batch *= size
    return batch, max(1.0, depth), columns


def _windows(window: str) -> Iterator[tuple[int, int, int, int, int]]:
    """Yield size, stride, padding before, dilation of the operand and of the kernel, by axis."""
    sizes = _numbers(window, "size")
    rest = [_numbers(window, name) for name in ("stride", "pad", "lhs_dilate", "rhs_dilate")]
    defaults = (1, 0, 1, 1)
    for axis, size in enumerate(sizes):
        step, low, left_gap, gap = (
            part[axis] if axis < len(part) else default
            for part, default in zip(rest, defaults, strict=True)
        )
        yield size, step, low, left_gap, gap


def _met(places: int, outputs: int, size: int, step: int, low: int, left_gap: int, gap: int) -> int:
    """Return how many pairs of an output and a kernel's position meet a number of the operand."""
    last = (places - 1) * left_gap
    met = 0
    for position in range(size):
        offset = position * gap - low
        # outputs o with 0 <= o * step + offset <= last, on a multiple of the dilation
        first = max(0, -(offset // step)) if offset < 0 else 0
        end = min(outputs - 1, (last - offset) // step)
        if end < first:
            continue
        if left_gap == 1:
            met += end - first + 1
        else:
            met += sum((o * step + offset) % left_gap == 0 for o in range(first, end + 1))
    return met


def _numbers(window: str, name: str) -> list[int]:
    """Return one number for each axis; of a pair such as the padding's, the first."""
    found = re.search(rf"\b{name}=([-\dx_]+)", window)
    return [int(part.split("_")[0]) for part in found[1].split("x")] if found else []


HOST_MEMORY = 5
"""XLA's memory space of pinned host memory."""


def touches_host(instruction: Instruction) -> bool:
    """Whether a transfer has an end in the host's memory."""
    return any(shape.memory_space == HOST_MEMORY for shape in instruction.shapes)


def leaves_device(instruction: Instruction) -> bool:
    """Whether a transfer between device and host goes to the host.

    An update of a slice does; of a copy and of the fetch of a slice the first shape is what is
    written.

    Example:
        >>> from neurenix.compiler.shapes import parse_shapes
        >>> shapes = parse_shapes("(f32[8]{0:S(5)}, f32[8]{0}, u32[]{:S(2)})")
        >>> leaves_device(Instruction("c", "copy-start", shapes, (), "", "", False))
        True
    """
    if instruction.opcode.startswith("dynamic-slice"):
        return False
    if instruction.opcode.startswith("dynamic-update-slice"):
        return True
    return instruction.shapes[0].memory_space == HOST_MEMORY


def host_bytes(instruction: Instruction) -> int:
    """Return the bytes that a transfer moves between device and host: its end on the device."""
    return max(
        (s.padded_bytes for s in instruction.shapes if s.memory_space != HOST_MEMORY), default=0
    )


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
