"""Classify instructions of the optimised program: matrix products, collectives, kernels, copies.

Reads an instruction and the computations that it calls, and records what it adds to a step.
``traffic`` owns its bytes, ``instruction_cost`` its lower bound, ``schedule`` its time, and
``findings`` the advice.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from neurenix._core.source_files import SourceLine
from neurenix.chips import Generation
from neurenix.compiler.calibration import product_well_used
from neurenix.compiler.hlo import Computation, Instruction, Module
from neurenix.compiler.shapes import Shape

_COST_ESTIMATE = re.compile(r'"cost_estimate":\{"flops":"?(\d+)"?.*?"bytes_accessed":"?(\d+)')

_RATES = {  # by prefix of the dtype name: XLA's, then JAX's
    "f8": "float8", "s8": "int8", "u8": "int8", "s4": "int4", "u4": "int4",
    "float8": "float8", "int8": "int8", "uint8": "int8", "int4": "int4", "uint4": "int4",
}  # fmt: skip
FREE = frozenset(
    "parameter constant tuple get-tuple-element bitcast after-all partition-id replica-id iota "
    "opt-barrier add-dependency domain bitcast-convert".split()
)
COLLECTIVES = frozenset(
    "all-reduce all-gather reduce-scatter all-to-all collective-permute ragged-all-to-all "
    "collective-broadcast".split()
)

_TRANSFORM = re.compile(r"jit\(.*\)|(?:jvp|transpose|vmap|remat)\((.*)\)")
_STRUCTURE = frozenset(
    "call_exported while body cond closed_call checkpoint rematted_computation scan branch_0_fun "
    "branch_1_fun shard_map custom_jvp_call custom_vjp_call pallas_call".split()
)


@dataclass(frozen=True)
class MatrixProduct:
    """One product on the matrix unit: (rows × depth) · (depth × columns), ``batch`` times.

    For a convolution, rows are output positions and depth is the kernel's inputs; depth is an
    average where the kernel overlaps padding. ``flops`` counts two for each multiply-add.
    ``highest`` is whether float32 precision was requested, which takes several passes.
    """

    batch: int
    rows: int
    depth: int
    columns: int
    dtypes: tuple[str, ...]
    highest: bool
    instruction: Instruction
    flops: float


@dataclass
class Operation:
    """An instruction with all its repetitions in one step.

    ``seconds`` is its contribution to the step before the generation's factor; for a collective or
    a transfer, the part that compute does not hide. ``floor_seconds`` is the time of its FLOPs and
    bytes at the device's peak. ``cycles_seconds`` is the time by the compiler's cycles: zero if
    there are none, and ``uncounted`` if the time is otherwise unknown. ``unstated`` marks a Pallas
    kernel of which only products and blocks are known, ``attention`` a kernel that occurs in
    published runs. ``kind`` is what bounds it:

    - ``"compute"``: the matrix unit;
    - ``"hbm"``: memory traffic;
    - ``"vector"``: element-wise work whose cycles exceed twice the time of its bytes;
    - ``"overhead"``: the fixed cost of a small operation;
    - ``"ici"`` and ``"dcn"``: collectives inside a slice and between slices;
    - ``"host"``: values offloaded to host memory and fetched from it.
    """

    name: str
    opcode: str
    kind: str
    seconds: float
    floor_seconds: float
    busy_seconds: float
    count: int
    flops: float
    bytes: int
    shape: str
    op_name: str
    source: SourceLine | None
    products: tuple[MatrixProduct, ...] = ()
    cycles_seconds: float = 0.0
    uncounted: bool = False
    unstated: bool = False
    attention: bool = False

    def add(self, other: Operation, count: int = 1) -> None:
        """Add ``other``, the same operation, this many times."""
        self.seconds += other.seconds * count
        self.floor_seconds += other.floor_seconds * count
        self.busy_seconds += other.busy_seconds * count
        self.cycles_seconds += other.cycles_seconds * count
        self.flops += other.flops * count
        self.bytes += other.bytes * count
        self.count += other.count * count
        self.products = other.products
        self.uncounted = other.uncounted
        self.unstated = other.unstated
        self.attention = other.attention

    def divide(self, steps: int) -> None:
        """Keep the share of one of several steps."""
        if steps == 1:
            return
        self.seconds /= steps
        self.floor_seconds /= steps
        self.busy_seconds /= steps
        self.cycles_seconds /= steps
        self.flops /= steps
        self.bytes //= steps
        self.count = max(1, self.count // steps)

    @property
    def well_used_product(self) -> bool:
        """Whether its time is as certain as the published runs make it.

        They consist of well-used products; attention kernels count among them.
        """
        if not self.products:
            return self.kind == "compute" and self.attention
        return product_well_used(self.cycles_seconds, self.floor_seconds)

    @property
    def transfer(self) -> bool:
        """Whether it overlaps others, so that ``busy_seconds`` are those of its bytes."""
        return self.opcode.endswith("-start") or self.opcode in ("send", "recv")

    @property
    def scope(self) -> str:
        """The ``jax.named_scope`` around the operation, or an empty string."""
        parts = (_untransformed(part) for part in _parts(self.op_name)[:-1])
        return "/".join(part for part in parts if part and part not in _STRUCTURE)


def _parts(path: str) -> list[str]:
    """Return the parts of a path; slashes within parentheses belong to a name."""
    depth, parts = 0, [""]
    for letter in path:
        depth += (letter == "(") - (letter == ")")
        if letter == "/" and depth <= 0:
            parts.append("")
        else:
            parts[-1] += letter
    return parts


def _untransformed(part: str) -> str:
    """Return a name without JAX's transformations around it; keep its own parentheses."""
    while found := _TRANSFORM.fullmatch(part):
        part = found[1] or ""
    return part


def peak_of(dtypes: Sequence[str], generation: Generation) -> float:
    """Return the FLOP/s at which operands are multiplied: that of the slower type.

    Args:
        dtypes: by XLA's or JAX's name, ``"s8"`` or ``"int8"``.
        generation: of the device.

    Example:
        >>> from neurenix.chips import generation
        >>> v5e = generation("v5e")
        >>> peak_of(("int8", "int8"), v5e) / 1e12, peak_of(("f32", "s8"), v5e) / 1e12
        (393.0, 197.0)
    """
    peaks = generation.peak_flops_per_second
    kinds = (
        next((kind for name, kind in _RATES.items() if dtype.startswith(name)), "bfloat16")
        for dtype in dtypes
    )
    rates = [peaks.get(kind, 0.0) for kind in kinds]
    return max(min(rates, default=0.0), peaks["bfloat16"])


def base_opcode(instruction: Instruction) -> str:
    """Return the opcode without the suffix ``-start`` or ``-done``.

    Example:
        >>> base_opcode(Instruction("a", "all-reduce-start", (), (), "", "", False))
        'all-reduce'
    """
    return instruction.opcode.removesuffix("-start").removesuffix("-done")


def inner_instructions(module: Module, instruction: Instruction) -> list[Instruction]:
    """Return the instruction and everything that it calls, recursively, without loops."""
    found = [instruction]
    if instruction.opcode in ("while", "conditional"):
        return found
    for name in instruction.called:
        computation = module.computations.get(name)
        for inner in computation.instructions if computation else ():
            found.extend(inner_instructions(module, inner))
    return found


def matrix_products(module: Module, instruction: Instruction) -> list[MatrixProduct]:
    """Return the products on the matrix unit inside an instruction."""
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
    """Return batch, depth and columns of a convolution, the form of every TPU product.

    Only kernel positions that meet an element of the operand are work. XLA writes the batch
    dimensions of a matrix product as spatial ones: either dilated by their size with a stride of
    it, so that only the diagonal remains, or as a kernel that slides over one element between
    zeros.
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
    """Yield size, stride, leading padding, and dilation of operand and kernel, by axis."""
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
    """Return the number of pairs of output and kernel positions that meet an operand's element."""
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
    """Return one number per axis; of a pair such as padding, the first."""
    found = re.search(rf"\b{name}=([-\dx_]+)", window)
    return [int(part.split("_")[0]) for part in found[1].split("x")] if found else []


HOST_MEMORY = 5
"""XLA's memory space for pinned host memory."""


def touches_host(instruction: Instruction) -> bool:
    """Return whether one end of a transfer is in host memory."""
    return any(shape.memory_space == HOST_MEMORY for shape in instruction.shapes)


def leaves_device(instruction: Instruction) -> bool:
    """Return whether a transfer between device and host goes to the host.

    An update of a slice does. For a copy or the fetch of a slice, the first shape is the
    destination.

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
    """Return the bytes of a transfer between device and host, at the device end."""
    return max(
        (s.padded_bytes for s in instruction.shapes if s.memory_space != HOST_MEMORY), default=0
    )


def kernel_cost(instruction: Instruction) -> tuple[float, float] | None:
    """Return the FLOPs and bytes that a Pallas kernel states, if any."""
    found = _COST_ESTIMATE.search(instruction.attributes)
    return (float(found[1]), float(found[2])) if found else None


def is_kernel(instruction: Instruction) -> bool:
    """Return whether this is a Pallas kernel."""
    return (
        instruction.opcode == "custom-call"
        and instruction.attribute("custom_call_target") == "tpu_custom_call"
    )


def reduces_and_scatters(module: Module, instruction: Instruction) -> bool:
    """Return whether a fusion is an all-reduce and each device's slice of it."""
    return any(
        "reduce-scatter" in name
        for inner in inner_instructions(module, instruction)
        for name in inner.called
    )


def collective_inside(module: Module, instruction: Instruction) -> Instruction | None:
    """Return the collective inside a fusion, or the instruction itself if it is one."""
    for inner in inner_instructions(module, instruction):
        if base_opcode(inner) in COLLECTIVES:
            return inner
    return None
