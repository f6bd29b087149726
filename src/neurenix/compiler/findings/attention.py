"""Rules about attention: scores that are written to HBM, and narrow heads.

Distinguishes attention from other batched products. Sizes are not enough: the layers of an ensemble
or of a mixture of experts have the sizes of scores and values too. Attention also has a softmax,
the sums of exponentials of the scores (``flow``).
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterator
from dataclasses import replace

from neurenix._core.units import bytes_text
from neurenix.chips.tiles import LANES
from neurenix.compiler.findings.evidence import (
    NOTABLE_SHARE,
    WELL_FILLED,
    Evidence,
    Finding,
    fill,
    many,
)
from neurenix.compiler.findings.precision import takes_bfloat16
from neurenix.compiler.jaxpr_facts import WrittenProduct
from neurenix.compiler.operations import MatrixProduct, Operation


def materialised_attention(evidence: Evidence) -> Iterator[Finding]:
    """Find attention scores (T × S for each head) that are written to HBM and read back.

    The optimised program must have a product ``(T × D) · (D × S)`` and one that sums over T or S,
    with the same batch, T and S at least twice D, a softmax over as many elements, and arrays of
    that size in HBM. Scores that XLA or a kernel keeps in VMEM are not reported. The effect is the
    time of the bytes of these arrays; it must be 2 % of the step.
    """
    scores = _score_sizes(evidence)
    if not scores:
        return
    rate = evidence.where.generation.hbm_bandwidth_bytes_per_second_per_device
    found: list[tuple[Operation, float]] = []
    largest = 0
    for operation in evidence.operations:
        moved = _score_bytes(evidence, operation, scores)
        if moved:
            largest = max(largest, *moved)
            seconds = min(operation.seconds, sum(moved) * operation.count / rate)
            found.append((operation, seconds))
    seconds = sum(part for _, part in found)
    if not found or evidence.share(seconds) < NOTABLE_SHARE:
        return
    operation = max((o for o, _ in found if o.products), key=lambda o: o.seconds, default=None)
    batch, rows, columns, depth = max(scores.values(), key=lambda sizes: math.prod(sizes[:3]))
    yield evidence.finding(
        "materialised-attention",
        f"Attention scores of {batch} × {rows} × {columns} ({bytes_text(largest)}) go through "
        f"HBM in {len(found)} operations.",
        _fused(evidence, rows, columns, depth),
        seconds,
        operation or found[0][0],
    )


def _fused(evidence: Evidence, rows: int, columns: int, depth: int) -> str:
    """Return how to use fused attention: the requirements of its kernel that the program misses."""
    generation = evidence.where.generation
    layers = "nx.nn.MultiHeadAttention or nx.nn.dot_product_attention without a mask array"
    if not takes_bfloat16(generation) and "float32" not in _score_types(evidence):
        return (
            f"The fused kernel takes float32 only on TPU {generation.name}: {layers} keeps writing "
            "scores of other types. Cast query, key and value to float32 for it, or compute the "
            "scores for one block of queries after the other (jax.lax.map under jax.checkpoint). "
            "Both take less memory, and not always less time; from v4 on the kernel takes bfloat16."
        )
    needs = []
    if rows % LANES or columns % LANES:
        needs.append(f"lengths that are multiples of {LANES} (here {rows} and {columns})")
    if depth > LANES and depth % (LANES // 2):
        needs.append(f"heads of up to {LANES} or a multiple of {LANES // 2} (here {depth})")
    if not takes_bfloat16(generation):
        needs.append(f"float32 on TPU {generation.name}, so leave attention out of bfloat16")
    also = f" Its kernel needs {'; and '.join(needs)}." if needs else ""
    return (
        f"Use fused attention, which never writes them: {layers} and without dropout, or "
        f"jax.experimental.pallas.ops.tpu.{also}"
    )


def _score_types(evidence: Evidence) -> set[str]:
    """Return the types of the attention products as written."""
    return {dtype for product, _ in head_products(evidence) for dtype in product.dtypes}


def with_scores(evidence: Evidence) -> list[Operation]:
    """Return the operations that read or write attention scores in HBM."""
    scores = _score_sizes(evidence)
    return [o for o in evidence.operations if scores and _score_bytes(evidence, o, scores)]


def _score_sizes(evidence: Evidence) -> dict[int, tuple[int, int, int, int]]:
    """Return elements → (batch, T, S, D) of products that feed a softmax.

    Their result is larger than their operands.
    """
    products = [p for o in evidence.operations for p in o.products if p.batch > 1]
    summed = {(p.batch, p.depth) for p in products}
    return {
        p.batch * p.rows * p.columns: (p.batch, p.rows, p.columns, p.depth)
        for p in products
        if min(p.rows, p.columns) >= 2 * p.depth
        and {(p.batch, p.rows), (p.batch, p.columns)} & summed
        and _under_softmax(evidence, p)
    }


def _under_softmax(
    evidence: Evidence, product: MatrixProduct | WrittenProduct, devices: int = 1
) -> bool:
    """Return whether the program has a softmax over arrays of the size of a product's result.

    A written product is global, over all ``devices``; a softmax in the optimised program belongs to
    one device. The scores may be sharded, and their sums by the same factor, or by less if the
    summed axis is sharded too. Without the program's text, sizes alone decide.
    """
    if evidence.flow is None:
        return True
    elements = product.batch * product.rows * product.columns
    sums = (product.batch * product.rows, product.batch * product.columns)
    for part, summed in evidence.flow.softmaxes:
        divided = _times(elements, part)
        if _times(devices, divided) and any(
            _times(divided, _times(whole, summed)) for whole in sums
        ):
            return True
    return False


def _times(whole: int, part: int) -> int:
    """Return the quotient, or 0 if there is a remainder."""
    return whole // part if part and whole % part == 0 else 0


def _score_bytes(evidence: Evidence, operation: Operation, scores: Container[int]) -> list[int]:
    """Return the bytes of each score array in HBM that an operation reads or writes."""
    place = evidence.place(operation)
    if place is None:
        return []
    computation, instruction = place
    shapes = list(instruction.shapes)
    for name in instruction.operands:
        operand = computation.by_name.get(name)
        shapes.extend(operand.shapes if operand else ())
    return [s.padded_bytes for s in shapes if s.in_hbm and math.prod(s.sizes) in scores]


def head_dimension(evidence: Evidence) -> Iterator[Finding]:
    """Find attention heads narrower than the matrix unit: 64 fills half of 128, a quarter of 256.

    It reads the program as written, because the compiler and Pallas fuse attention into kernels
    without sizes: a product ``(T × D) · (D × S)`` and one ``(T × S) · (S × D)`` with the same
    batch, T and S at least twice D, and a softmax between them in the optimised program; or both
    inside a kernel. The effect is computed: the time of these products at the peak, times the
    padding.
    """
    unit = evidence.where.generation.mxu[1]
    peak = evidence.where.generation.peak_flops_per_second["bfloat16"]
    by_head: dict[int, list[WrittenProduct]] = {}
    for product, head in head_products(evidence):
        by_head.setdefault(head, []).append(product)
    for head, products in by_head.items():
        used = fill(head, unit)
        if used > WELL_FILLED:
            continue
        flops = sum(p.flops for p in products) / evidence.program.num_devices
        wasted = flops / peak * (1 / used - 1)
        if evidence.share(wasted) < NOTABLE_SHARE:
            continue
        first = max(products, key=lambda p: p.flops)
        found = evidence.finding(
            "head-dimension",
            f"Attention heads of {head} fill {used:.0%} of the {unit}-wide matrix unit in "
            f"{many(len(products), 'product')}; at the peak this padding takes "
            f"{wasted * 1e6:,.0f} µs of a step.",
            f"Use fewer heads of {unit if unit > LANES and head >= LANES else LANES}: the same "
            "parameters and the same FLOPs.",
            min(wasted, evidence.raw_seconds),
        )
        # Most published models have heads of 128, so on a unit of 256 it is only a note.
        severity = "note" if head >= LANES else found.severity
        yield replace(found, source=first.source, severity=severity)


def head_products(evidence: Evidence) -> list[tuple[WrittenProduct, int]]:
    """Return the products of attention, each with its head dimension."""
    products = [p for p in evidence.program.traits.products if p.batch > 1 or p.in_kernel]
    inwards = {
        (p.batch, p.depth)
        for p in products
        if _longer(p.rows, p.columns, p.depth)
        and (p.in_kernel or _under_softmax(evidence, p, evidence.program.num_devices))
    }
    outwards = {
        (p.batch, side)
        for p in products
        for side, other in ((p.columns, p.rows), (p.rows, p.columns))
        if _longer(p.depth, other, side)
    }
    heads = inwards & outwards
    return [
        (p, side)
        for p in products
        for side in {p.depth, p.columns, p.rows}
        if (p.batch, side) in heads and side == min(p.depth, p.columns, p.rows)
    ]


def _longer(one: int, other: int, head: int) -> bool:
    return min(one, other) >= 2 * head
