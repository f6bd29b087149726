"""Count the FLOPs and bytes of Pallas TPU kernels that state no cost.

For JAX's splash attention it uses the kernel's name and shapes; for other kernels, the products and
blocks in their compiled program. ``calibration`` owns the speed of kernels.

Splash attention computes products of a block of queries with a block of keys, each of 2 T S D
FLOPs, or 2 T S C for values of another size: two in the forward pass (scores, output), three for
the gradient of queries (scores, weights, queries), four for the gradient of keys and values, and
five in the kernel that computes all gradients. The last one returns the gradient of queries in
parts, one for each block of keys, with an extra leading axis. ``nn.splash`` calls kernels with a
sliding window in a scope named ``window_…``. (``jax/experimental/pallas/ops/tpu/splash_attention``,
jax 0.10.2.)
"""

from __future__ import annotations

import base64
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from neurenix._jax import mlir_ir, register_kernel_dialect
from neurenix.compiler.hlo import Computation, Instruction
from neurenix.compiler.shapes import parse_shapes

# Numbers of products of 2 T S D and of 2 T S C FLOPs.
_PRODUCTS = {"fwd": (1, 1), "dq": (2, 1), "dkv": (2, 2), "all": (3, 2)}
# The same for model FLOPs: without recomputed scores, the backward pass is twice the forward.
_MODEL_PRODUCTS = {"fwd": (1, 1), "dq": (1, 0), "dkv": (1, 2), "all": (2, 2)}
_NAME = re.compile(r"splash_m[hq]a_(fwd|dq|dkv)")
_WINDOW = re.compile(r"\bwindow_(\d+)\b")
_BODY = re.compile(r'"body":"([A-Za-z0-9+/=]+)"')
_DEPTH = re.compile(r"dot_dimension_numbers<\[([\d, ]+)\]")
_ARRAY = re.compile(r"(?:vector|memref)<((?:\d+x)*)(\w+)")
_BLOCK = re.compile(r'block_(q|kv)(?:_dkv|_dq)?\\?\\?": (\d+)')


def attention_cost(
    computation: Computation, instruction: Instruction, moved_bytes: int
) -> tuple[float, float] | None:
    """Return FLOPs and bytes of a splash attention kernel; None for any other kernel.

    If the mask is computed from positions, which are then int32 operands of rank 2, only blocks
    with unmasked scores count.
    """
    found = _NAME.search(instruction.name) or _NAME.search(instruction.op_name)
    if found is None:
        return None
    operands = [
        shape
        for name in instruction.operands
        if (operand := computation.by_name.get(name)) is not None
        for shape in operand.shapes[:1]
    ]
    arrays = [shape.sizes for shape in operands if len(shape.sizes) >= 3 and "s" != shape.dtype[0]]
    if len(arrays) < 3:
        return None
    query, key = arrays[0], arrays[1]
    kernel = _kernel(found[1], query, [shape.sizes for shape in instruction.shapes])
    share = 1.0
    if any(shape.dtype == "s32" and len(shape.sizes) == 2 for shape in operands):
        blocks = {axis: int(size) for axis, size in _BLOCK.findall(instruction.attributes)}
        sizes = blocks.get("q", 128), blocks.get("kv", 128)
        share = _causal_share(query[-2], key[-2], *sizes, window_of(instruction.op_name))
    return _flops(_PRODUCTS[kernel], arrays) * share, float(moved_bytes)


def attention_model_flops(
    name: str,
    operands: Sequence[tuple[str, tuple[int, ...]]],
    results: Sequence[tuple[int, ...]] = (),
    window: int | None = None,
) -> float | None:
    """Return the FLOPs of a splash attention kernel as MFU counts them; None for other kernels.

    A causal mask halves the products, a window keeps those inside it, and recomputation in the
    backward pass does not count.

    Args:
        name: of the kernel.
        operands: dtype and shape of each.
        results: shape of each.
        window: number of keys that a query sees; None for all earlier keys.

    Example:
        >>> operands = [("bfloat16", (8, 512, 128)), ("bfloat16", (2, 512, 128)),
        ...             ("bfloat16", (2, 512, 128)), ("int32", (512, 128))]
        >>> attention_model_flops("splash_mha_fwd", operands)
        536870912.0
    """
    found = _NAME.search(name)
    arrays = [shape for dtype, shape in operands if "int" not in dtype]
    if found is None or len(arrays) < 3:
        return None
    kernel = _kernel(found[1], arrays[0], results)
    share = 0.5 if any("int" in dtype and len(shape) == 2 for dtype, shape in operands) else 1.0
    if window is not None:
        share = _causal_share(arrays[0][-2], arrays[1][-2], 1, 1, window)
    return _flops(_MODEL_PRODUCTS[kernel], arrays) * share


def window_of(scope: str) -> int | None:
    """Return the window in the name of a scope, or None.

    Example:
        >>> window_of("jit(step)/window_1024/splash_mha_fwd")
        1024
    """
    found = _WINDOW.search(scope)
    return None if found is None else int(found[1])


@dataclass(frozen=True)
class KernelWork:
    """The work that a Pallas kernel's program shows: FLOPs by operand type, and bytes.

    ``products`` are all products on the matrix unit, with every branch taken; ``sure_products``
    exclude those inside branches. ``bytes`` are the blocks that the grid fetches and writes back,
    if their position is a plain index of the grid.
    """

    products: tuple[tuple[float, tuple[str, ...]], ...]
    sure_products: tuple[tuple[float, tuple[str, ...]], ...]
    bytes: int

    @property
    def flops(self) -> float:
        """FLOPs of all products."""
        return sum(flops for flops, _ in self.products)


def kernel_work(instruction: Instruction) -> KernelWork | None:
    """Parse the program of a Pallas kernel; return ``None`` if that fails."""
    found = _BODY.search(instruction.attributes)
    return _read_kernel(found[1]) if found else None


@lru_cache(maxsize=64)
def _read_kernel(body: str) -> KernelWork | None:
    ir = mlir_ir()
    context = ir.Context()
    context.allow_unregistered_dialects = True
    if not register_kernel_dialect(context):
        return None
    with context, ir.Location.unknown():
        try:
            module = ir.Module.parse(base64.b64decode(body))
            functions = {_text(f, "sym_name"): f for f in module.body.operations}
            kernel = next((f for f in functions.values() if _attribute(f, "window_params")), None)
            kernel = kernel or next(iter(functions.values()))
            grid = [max(1, n) for n in _integers(_attribute(kernel, "iteration_bounds"))]
            found: list[tuple[float, tuple[str, ...], bool]] = []
            _add_products(kernel, float(math.prod(grid)), True, found)
            moved = sum(_block_bytes(kernel, functions, grid))
        except (ValueError, KeyError, IndexError, StopIteration, ir.MLIRError):
            return None
    return KernelWork(
        tuple((flops, dtypes) for flops, dtypes, _ in found),
        tuple((flops, dtypes) for flops, dtypes, sure in found if sure),
        moved,
    )


def _add_products(
    operation: Any, times: float, sure: bool, found: list[tuple[float, tuple[str, ...], bool]]
) -> None:
    """Collect the products inside an operation: FLOPs, types, and whether a branch encloses it."""
    name = _name(operation)
    if name == "tpu.matmul":
        left, right = (_array(value) for value in list(operation.operands)[:2])
        contracted = _DEPTH.search(str(_attribute(operation, "dimension_numbers") or ""))
        axes = [int(axis) for axis in contracted[1].split(",")] if contracted else [-1]
        depth = math.prod(left[0][axis] for axis in axes)
        flops = 2.0 * math.prod(_array(operation.results[0])[0]) * depth
        found.append((times * flops, (left[1], right[1]), sure))
    if name == "scf.for":
        start, end, step = (_constant(value) for value in list(operation.operands)[:3])
        if start is None or end is None or not step:
            sure = False
        else:
            times *= max(0, -(-(end - start) // step))
    for region in operation.regions:
        for block in region:
            for inner in block.operations:
                _add_products(inner, times, sure and name not in ("scf.if", "scf.while"), found)


def _block_bytes(kernel: Any, functions: dict[str, Any], grid: list[int]) -> Iterator[int]:
    """Yield the bytes of all fetches of each operand's block and of all writes of results.

    A block is fetched again when its indices change; the last grid axis changes fastest.
    """
    arguments = list(kernel.regions[0].blocks[0].arguments)[len(grid) :]
    prefetched = _attribute(kernel, "scalar_prefetch")
    arguments = arguments[prefetched.value if prefetched is not None else 0 :]
    windows: Any = _attribute(kernel, "window_params") or ()
    for window, argument in zip(windows, arguments, strict=False):
        fields = {entry.name: entry.attr for entry in window}
        if "transform_indices" not in fields or "window_bounds" not in fields:
            continue
        block = functions[fields["transform_indices"].value].regions[0].blocks[0]
        chosen = list(list(block.operations)[-1].operands)
        places = list(block.arguments)[: len(grid)]
        if any(value not in places and _constant(value) is None for value in chosen):
            continue
        last = max((places.index(value) for value in chosen if value in places), default=-1)
        sizes = _integers(fields["window_bounds"])
        bits = parse_shapes(f"{_array(argument)[1]}[1]")[0].bits
        yield math.prod(grid[: last + 1]) * math.prod(sizes) * bits // 8


def _name(operation: Any) -> str:
    return operation.operation.name.removeprefix("stable_mosaic.")


def _attribute(operation: Any, name: str) -> Any:
    attributes = operation.operation.attributes
    return attributes[name] if name in attributes else None


def _text(operation: Any, name: str) -> str:
    return _attribute(operation, name).value


def _integers(attribute: Any) -> list[int]:
    return [] if attribute is None else [int(n) for n in attribute]


def _constant(value: Any) -> int | None:
    """Return the value of an integer constant, else None."""
    ir, owner = mlir_ir(), value.owner
    if isinstance(owner, ir.Block) or _name(owner) != "arith.constant":
        return None
    number = _attribute(owner, "value")
    return number.value if isinstance(number, ir.IntegerAttr) else None


def _array(value: Any) -> tuple[tuple[int, ...], str]:
    """Return the sizes of a vector or buffer, and the XLA name of its element type."""
    shaped = _ARRAY.search(str(value.type))
    if shaped is None:
        raise ValueError(f"{value.type} is no array.")
    dtype = shaped[2].lower()
    dtype = f"s{dtype[1:]}" if dtype.startswith("i") else dtype
    return tuple(int(size) for size in shaped[1].split("x") if size), dtype


def _flops(products: tuple[int, int], arrays: Sequence[Sequence[int]]) -> float:
    """Return the FLOPs of products of whole queries, keys and values, the first three arrays."""
    query, key, value = arrays[:3]
    of_scores, of_values = products
    depth = of_scores * query[-1] + of_values * value[-1]
    return 2.0 * math.prod(query[:-1]) * key[-2] * depth


def _kernel(named: str, query: Sequence[int], results: Sequence[Sequence[int]]) -> str:
    parts = any(len(shape) > len(query) for shape in results)
    return "all" if named == "dkv" and parts else named


def _causal_share(
    queries: int, keys: int, block_q: int, block_kv: int, window: int | None = None
) -> float:
    """Return the share of blocks that contain an unmasked score.

    Example:
        >>> _causal_share(1024, 1024, 512, 256)
        0.75
        >>> _causal_share(1024, 1024, 512, 256, window=256)
        0.625
    """
    first = np.arange(0, queries, block_q)
    last = np.minimum(first + block_q, queries)  # one past the last, as for the keys below
    columns = math.ceil(keys / block_kv)
    end = np.minimum(columns, -(-last // block_kv))
    start = 0 if window is None else np.maximum(first - window + 1, 0) // block_kv
    return float(np.sum(np.maximum(end - start, 0))) / (len(first) * columns)
