"""Rules about matrix products: sizes, types and the batch.

``movement`` has the rules about data movement, ``attention`` those about heads.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import replace

import jax.numpy as jnp

from neurenix._core.source_files import is_neurenix
from neurenix.chips.tiles import LANES
from neurenix.compiler.argument_arrays import Leaf
from neurenix.compiler.findings.attention import head_products, with_scores
from neurenix.compiler.findings.evidence import (
    NOTABLE_SHARE,
    WARNING_SHARE,
    WELL_FILLED,
    Evidence,
    Finding,
    fill,
    in_order_of_time,
    longest,
    many,
    sizes_text,
)
from neurenix.compiler.findings.precision import is_narrow, takes_bfloat16
from neurenix.compiler.jaxpr_facts import WrittenProduct
from neurenix.compiler.operations import MatrixProduct, Operation
from neurenix.compiler.training import is_trainers_step

_MODELS = "/models/"  # files of Neurenix that choose the types of their products
_FOURIER = re.compile(r"(?:^|[/(])[ir]?r?fftn?\)*$")
_BADLY_TILED = 20.0
"""Smallest reported ratio of time to lower bound. By the cycles of libtpu 0.0.42.1, products of 36
sizes in bfloat16 and fp8 on tpu7x took 1.2 to 1.8, except three that took 71; small products of
ResNet-50 that are fused with sums took up to 13."""
_BESIDE = 1.5
"""Largest ratio of a kernel to its average part inside the image."""


def padded_products(evidence: Evidence) -> Iterator[Finding]:
    """Find matrix products whose sizes do not fill the matrix unit; one finding per source line.

    Products that the user did not write are ignored: those of a Fourier transform, and all products
    of a program written without any.

    Depth and columns correspond to the two sides of the unit. ``head_dimension`` handles attention
    heads. Padding is charged with the time beyond the lower bound of FLOPs and bytes, at most the
    unused share; the padding of a line must cost 2 % of the step.
    """
    if not evidence.program.model_flops:
        return
    unit = evidence.where.generation.mxu[1]
    heads = {head for _, head in head_products(evidence)}
    lines: dict[object, list[tuple[Operation, MatrixProduct, float]]] = {}
    for operation in in_order_of_time(evidence.operations):
        if not operation.products or _FOURIER.search(operation.op_name):
            continue
        product = _nominal(evidence, max(operation.products, key=lambda p: p.flops))
        if product.batch > 1 and heads & {product.depth, product.columns}:
            continue
        used = _used(evidence, product)
        if used <= WELL_FILLED and operation.kind != "overhead":
            line = (operation.source or operation.name, product.depth, product.columns)
            beyond = operation.seconds - operation.floor_seconds
            wasted = min(operation.seconds * (1 - used), beyond)
            lines.setdefault(line, []).append((operation, product, wasted))
    for found in lines.values():
        wasted = sum(seconds for _, _, seconds in found)
        if evidence.share(wasted) < NOTABLE_SHARE:
            continue
        operation, product, _ = found[0]
        used = _used(evidence, product)
        sizes = {"depth": product.depth, "columns": product.columns}
        what = f"A product of {sizes_text(product)}"
        if _is_average(evidence, product):
            del sizes["depth"]
            what = f"A convolution of {product.columns} columns"
        small = [f"{name} {size}" for name, size in sizes.items() if fill(size, unit) < 0.9]
        these = "these sizes multiples" if len(small) > 1 else "this size a multiple"
        yield evidence.finding(
            "padded-matmul",
            f"{what} fills {used:.0%} of the {unit}×{unit} matrix unit "
            f"({', '.join(small)}){_of_the_line(len(found))}.",
            f"Make {these} of {unit}" + (f", or of {LANES} at least." if unit > LANES else "."),
            wasted,
            operation,
        )


def _nominal(evidence: Evidence, product: MatrixProduct) -> MatrixProduct:
    """Return a convolution with the depth of its whole kernel, as written.

    The compiled depth is an average over positions, some of which overlap padding. A depth far from
    the written one, such as of a kernel that slides over zeros, is returned unchanged.
    """
    kernel = evidence.kernel_of(product)
    if product.instruction.opcode != "convolution" or kernel is None:
        return product
    letters, shape = kernel
    depth = math.prod(
        size for letter, size in zip(letters, shape.sizes, strict=False) if letter != "o"
    )
    near = product.depth < depth <= _BESIDE * product.depth
    return replace(product, depth=depth) if near else product


def grouped_gradients(evidence: Evidence) -> Iterator[Finding]:
    """Find gradients of ``jax.lax.ragged_dot``'s matrices that multiply all rows for every group.

    The compiler writes them as one product with a batch of the number of groups, unless it has a
    kernel for them. The wasted share of its time is charged; it must be 2 % of the step.
    """
    written = [product for product in evidence.program.traits.products if product.groups > 1]
    seen: set[str] = set()
    for product in written:
        wasted, about = 0.0, None
        for operation in in_order_of_time(evidence.operations):
            if operation.name in seen or not any(_is_of(p, product) for p in operation.products):
                continue
            seen.add(operation.name)
            wasted += operation.seconds * (1 - 1 / product.groups)
            about = about or operation
        if about is None or evidence.share(wasted) < NOTABLE_SHARE:
            continue
        generation = evidence.where.generation
        only = "" if takes_bfloat16(generation) else f"; on TPU {generation.name} in float32 only"
        found = evidence.finding(
            "grouped-gradient",
            f"The gradient of ragged_dot's matrices takes {product.groups} times the work that it "
            f"is: all rows are multiplied once for each of {product.groups} groups, and masked.",
            "Take a libtpu that has a kernel for it (0.0.50 has), or give ragged_dot a gradient of "
            "its own (jax.custom_vjp), by the kernel tgmm of "
            f"jax.experimental.pallas.ops.tpu.megablox, as neurenix.models do{only}.",
            wasted,
            about,
        )
        yield replace(found, source=product.source)


def badly_tiled_products(evidence: Evidence) -> Iterator[Finding]:
    """Find products that fill the matrix unit but are far above their lower bound; one per line.

    The compiler cuts products into tiles, and at some sizes and types into very small ones: with
    libtpu 0.0.42.1 some fp8 products on tpu7x, which are 40 times slower than neighbouring sizes.
    The time beyond the lower bound of FLOPs and bytes is charged, if it is 2 % of the step.
    """
    lines: dict[object, list[Operation]] = {}
    for operation in in_order_of_time(evidence.operations):
        need = operation.floor_seconds
        if not operation.products or not 0 < _BADLY_TILED * need < operation.seconds:
            continue
        product = _nominal(evidence, max(operation.products, key=lambda p: p.flops))
        if not product.highest and _used(evidence, product) > WELL_FILLED:
            lines.setdefault(operation.source or operation.name, []).append(operation)
    for found in lines.values():
        wasted = sum(operation.seconds - operation.floor_seconds for operation in found)
        if evidence.share(wasted) < NOTABLE_SHARE:
            continue
        product = max(found[0].products, key=lambda p: p.flops)
        yield evidence.finding(
            "badly-tiled",
            f"A product of {sizes_text(product)} fills the matrix unit and takes "
            f"{found[0].seconds / found[0].floor_seconds:.0f} times what its FLOPs need: the "
            f"compiler cuts it into very small tiles{_of_the_line(len(found))}.",
            "Change its rows or its depth a little (8,320 in place of 8,192), or take another "
            "libtpu: which sizes are concerned differs from release to release.",
            wasted,
            found[0],
        )


def _is_of(product: MatrixProduct, written: WrittenProduct) -> bool:
    """Return whether a compiled product is a written one for all groups, or a device's share."""
    shares = ((written.rows, written.columns), (written.columns, written.rows))
    return product.batch == written.groups and any(
        rows % product.rows == 0 and columns % product.columns == 0 for rows, columns in shares
    )


def _used(evidence: Evidence, product: MatrixProduct) -> float:
    """Return the share of the matrix unit that a product fills, by its written sizes."""
    unit = evidence.where.generation.mxu[1]
    depth = 1.0 if _is_average(evidence, product) else fill(product.depth, unit)
    return depth * fill(product.columns, unit)


def _is_average(evidence: Evidence, product: MatrixProduct) -> bool:
    """Return whether the depth is an average over positions.

    That is so for the gradient of a strided convolution, whose kernel slides over zeros. A written
    depth is the channels times whole kernel sides.
    """
    kernel = evidence.kernel_of(product)
    if product.instruction.opcode != "convolution" or kernel is None:
        return False
    letters, shape = kernel
    sizes = dict(zip(letters, shape.sizes, strict=False))
    written = {sizes.pop("i", 1)}
    sizes.pop("o", None)
    for size in sizes.values():
        written |= {size * depth for depth in written}
    return product.depth not in written


def _of_the_line(count: int) -> str:
    return f"; {count} operations of this line" if count > 1 else ""


def float32_products(evidence: Evidence) -> Iterator[Finding]:
    """Find products of float32 operands: extra passes if requested, and more bytes always.

    The first is reported if the extra passes take 2 % of the step, the second if half of the bytes
    would save 2 % of it. A program written without products is ignored: its products are the
    compiler's way to sum along an axis. In a program in bfloat16, gradients of attention scores are
    float32 because the softmax is; ``materialised-attention`` reports these.
    """
    if not evidence.program.model_flops:
        return
    explained = with_scores(evidence) if is_narrow(evidence.program) else []
    exact = [o for o in evidence.operations if any(p.highest for p in o.products)]
    wide = [
        o
        for o in evidence.operations
        if o not in exact
        and o.products
        and all("f32" in p.dtypes for p in o.products)
        and o not in explained
    ]
    # Six passes instead of one.
    saved = sum(o.seconds for o in exact) * 5 / 6
    if evidence.share(saved) >= NOTABLE_SHARE:
        yield evidence.finding(
            "float32-matmul",
            f'{many(len(exact), "operation")} at precision "highest": each product takes six '
            "passes of the matrix unit.",
            'Use the default precision, or "high" (three passes), where training allows it.',
            saved,
            longest(exact),
        )
    saved = sum(_half_the_bytes(o, evidence) for o in wide)
    if evidence.share(saved) >= NOTABLE_SHARE:
        one = [o for o in wide if _float32_operands(o) == 1]
        mixed = f", {len(one)} of them with one" if one else ""
        which = "one float32 operand" if len(one) == len(wide) else f"float32 operands{mixed}"
        rounds = "it" if len(one) == len(wide) else "them"
        dearest = longest(wide)
        yield evidence.finding(
            "float32-matmul",
            f"{many(len(wide), 'operation')} with {which}. The matrix unit rounds {rounds} to "
            "bfloat16 anyway, after twice the bytes were moved.",
            _narrower(evidence, dearest),
            saved,
            dearest,
        )


def _narrower(evidence: Evidence, operation: Operation) -> str:
    """Return how the operands of a product can become bfloat16, where they are written.

    If an operand is float32 only in the optimised program, the compiler cast it.
    """
    written = [set(product.dtypes) for product in evidence.program.traits.products]
    mixed = any("float32" in dtypes and len(dtypes) > 1 for dtypes in written)
    one = mixed and _float32_operands(operation) == 1
    file = operation.source.file if operation.source else ""
    if one and is_neurenix(file) and _MODELS in file:
        return (
            'Let the model make logits of bfloat16, logits_dtype="bfloat16" of its configuration: '
            "what is float32 is their gradient, which precision= of a Trainer leaves as it is."
        )
    if one:
        return (
            "The other operand is narrower already: cast this one too, x.astype(jnp.bfloat16). The "
            "gradient of a product is float32 where the product was asked for as float32 "
            "(preferred_element_type)."
        )
    if is_narrow(evidence.program):
        return (
            "Most products of the program are bfloat16 already: cast both operands of this one, "
            "x.astype(jnp.bfloat16), if its accuracy allows it."
        )
    if is_trainers_step(evidence.program):
        return (
            'Compute in bfloat16 and keep the parameters in float32: precision="bfloat16".'
            f"{_but_kernels(evidence)}"
        )
    return (
        "Cast both operands, x.astype(jnp.bfloat16), and keep parameters that are trained in "
        "float32. precision= of a product does not: its operands stay float32 in memory."
    )


def _but_kernels(evidence: Evidence) -> str:
    """State what must stay float32 where kernels support nothing else."""
    generation = evidence.where.generation
    if takes_bfloat16(generation) or not evidence.program.traits.kernels:
        return ""
    return (
        f" Kernels, such as that of attention, take float32 only on TPU {generation.name}: cast "
        "what they are given to float32."
    )


def _float32_operands(operation: Operation) -> int:
    """Return the most float32 operands of an operation's products: 1 or 2."""
    return max(product.dtypes.count("f32") for product in operation.products)


def _half_the_bytes(operation: Operation, evidence: Evidence) -> float:
    """Return the seconds that half of the bytes would save, down to the time of the FLOPs.

    If one operand is float32, only its bytes count.
    """
    generation = evidence.where.generation
    above = operation.seconds - operation.flops / generation.peak_flops_per_second["bfloat16"]
    rate = generation.hbm_bandwidth_bytes_per_second_per_device
    moved = operation.bytes
    if _float32_operands(operation) == 1:
        operands = [s for p in operation.products for s in evidence.operands_of(p)]
        wide = sum(shape.padded_bytes for shape in operands if shape.dtype == "f32")
        moved = min(moved, wide * operation.count) if operands else moved // 2
    return max(0.0, min(above, moved / 2 / rate))


_NARROW = {
    "s8": "int8", "u8": "uint8", "s4": "int4", "u4": "uint4", "f8e4m3fn": "float8_e4m3fn",
    "f8e5m2": "float8_e5m2", "f8e4m3b11fnuz": "float8_e4m3b11fnuz", "f8e4m3": "float8_e4m3",
}  # fmt: skip


def unsupported_types(evidence: Evidence) -> Iterator[Finding]:
    """Find operands of 8 or 4 bits that the matrix unit does not support natively, and float64.

    Measured with libtpu 0.0.42.1, 4096³: int8 on tpu7x has the cycles of bfloat16, fp8 half of
    them; float8_e4m3fn on v5p and v6e has the cycles of bfloat16. The effect is that half. TPUs
    have no hardware for float64 and complex128.
    """
    generation = evidence.where.generation
    native = set(generation.matmul_types)
    by_type: dict[str, list[Operation]] = {}
    for operation in evidence.operations:
        types = {_NARROW[d] for p in operation.products for d in p.dtypes if d in _NARROW}
        for name in types - native:
            by_type.setdefault(name, []).append(operation)
    instead = [t for t in generation.matmul_types if t.startswith(("int8", "float8"))]
    for name, operations in by_type.items():
        seconds = sum(o.seconds for o in operations)
        if evidence.share(seconds) < NOTABLE_SHARE:
            continue
        yield evidence.finding(
            "unsupported-type",
            f"{many(len(operations), 'operation')} of {name}, which the matrix unit of "
            f"{generation.name} does not multiply: they run at the rate of bfloat16 at best.",
            f"Use {' or '.join(instead)} here." if instead else "Use bfloat16 here.",
            seconds / 2 if instead else 0.0,
            longest(operations),
        )
    for leaf in evidence.program.leaves:
        if leaf.dtype in ("float64", "complex128"):
            yield Finding(
                "unsupported-type",
                "warning",
                f"Argument {leaf.path} is {leaf.dtype}, and a TPU has no arithmetic for it: each "
                "operation becomes many in float32.",
                "Use float32, and leave jax_enable_x64 off.",
            )
            break


def small_batch(evidence: Evidence) -> Iterator[Finding]:
    """Find products that spend their time reading weights because few examples share them.

    A product of B rows does 2·B FLOPs with every weight of two bytes (bfloat16), so it needs B ≥
    peak ÷ bandwidth (240 on v5e) to be bound by the matrix unit. It is reported if a device's
    examples or tokens are below half of that and below a quarter of the product's other sizes, and
    such products take 10 % of the step. The effect is the time in which the missing rows would be
    free.
    """
    generation = evidence.where.generation
    rate = generation.hbm_bandwidth_bytes_per_second_per_device
    wanted = generation.peak_flops_per_second["bfloat16"] / rate
    batches = _batch_sizes(evidence.program.leaves)
    found: list[tuple[Operation, int]] = []
    for operation in evidence.operations:
        if operation.kind != "hbm" or not operation.products:
            continue
        product = max(operation.products, key=lambda p: p.flops)
        least, second, _ = sorted((product.rows, product.depth, product.columns))
        if product.batch == 1 and least in batches and least * 4 <= second and least < wanted / 2:
            found.append((operation, least))
    seconds = sum(o.seconds for o, _ in found)
    if not found or evidence.share(seconds) < WARNING_SHARE:
        return
    operation, rows = max(found, key=lambda pair: pair[0].seconds)
    fewer = ", or fewer devices for the same batch" if evidence.program.num_devices > 1 else ""
    reads = "reads its weights" if len(found) == 1 else "read their weights"
    yield evidence.finding(
        "small-batch",
        f"{many(len(found), 'operation')} {reads} for {rows} rows on each device; "
        f"{generation.name} needs about {wanted:.0f} to be as busy computing as reading.",
        f"Take a larger batch{fewer}: the step hardly gets longer up to about {wanted:.0f} rows "
        "per device.",
        sum(o.seconds * (1 - least / wanted) for o, least in found),
        operation,
    )


def _batch_sizes(leaves: Iterable[Leaf]) -> set[int]:
    """Return the possible row counts of one device's share of the batch: examples, tokens."""
    sizes: set[int] = set()
    for leaf in leaves:
        divided = bool(leaf.partition) and bool(leaf.partition[0])
        if not leaf.device_shape or not (leaf.role == "batch" or divided):
            continue
        sizes.add(leaf.device_shape[0])
        if len(leaf.device_shape) > 1 and jnp.issubdtype(leaf.dtype, jnp.integer):
            sizes.add(leaf.device_shape[0] * leaf.device_shape[1])
    return sizes
