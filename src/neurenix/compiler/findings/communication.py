"""Rules about communication between devices, and about devices that share no work."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Any

from neurenix.compiler.findings.evidence import (
    NOTABLE_SHARE,
    Evidence,
    Finding,
    longest,
)
from neurenix.compiler.findings.flow import count
from neurenix.compiler.findings.precision import moves_wide
from neurenix.compiler.hlo import Instruction
from neurenix.compiler.operations import Operation
from neurenix.compiler.training import is_trainers_step, is_training_step

_LINKS = {"ici": "the slice's own links", "dcn": "the network between slices"}
_VECTOR = re.compile(r"f32\[(\d+)\]|bf16\[(\d+)\]")
_SHAPE = re.compile(r"\w+\[[\d,]*\]")
_MARKS = ("u32[]", "token[]")
_AROUND_SENDS = ("all-reduce", "reduce-scatter", "all-gather")
_FORMS = frozenset("bitcast copy copy-start convert reshape transpose slice".split())
_STATISTICS = 4
"""Smallest number of all-reduces of channel statistics of a global BatchNorm: mean and variance,
forward and backward."""


def exposed_collectives(evidence: Evidence) -> Iterator[Finding]:
    """Find communication that compute does not hide, with its cause; from 2 % of the step.

    ``sync-batchnorm`` and ``collective-matmul`` report theirs.
    """
    explained = {o.name for o in (*_statistics(evidence), *_rotations(evidence))}
    for kind, links in _LINKS.items():
        exposed = [
            o
            for o in evidence.operations
            if o.kind == kind and o.seconds > 0 and o.name not in explained
        ]
        seconds = sum(o.seconds for o in exposed)
        if not exposed or evidence.share(seconds) < NOTABLE_SHARE:
            continue
        largest = longest(exposed)
        cause, fix = _cause(evidence, largest)
        together = "" if largest.opcode.endswith("-start") else " Nothing is computed beside it."
        yield evidence.finding(
            "exposed-collective",
            f"{evidence.share_of_step(seconds):.0%} of the step waits for {links}; most for "
            f"{_opcode(largest)} of {_shapes(largest)}: {cause}.{together}",
            fix,
            seconds,
            largest,
        )


def _shapes(operation: Operation) -> str:
    """Return the arrays of an exchange, without the compiler's own flags."""
    shapes = [shape for shape in _SHAPE.findall(operation.shape) if shape not in _MARKS]
    return ", ".join(shapes) or operation.shape


def _sums_between_slices(evidence: Evidence, operation: Operation) -> bool:
    """Return whether an exchange is part of the compiler's sum of gradients over slices.

    The compiler reduces within each slice, sends the sums between slices, and gathers them. These
    exchanges have no operation name. Nothing else crosses slices in a training step whose
    parameters are replicated in each slice. Unnamed exchanges within a slice can be others, such as
    those of FSDP: they belong to the sum if their value is sent or was received.
    """
    program = evidence.program
    if evidence.where.num_slices < 2 or operation.op_name or not is_training_step(program):
        return False
    if _across(evidence) in _dividing_parameters(evidence):
        return False
    return _opcode(operation) in ("send", "recv") or _meets_network(evidence, operation)


def _meets_network(evidence: Evidence, operation: Operation) -> bool:
    """Return whether a collective's value is sent to another slice, or was received from it."""
    place, flow = evidence.place(operation), evidence.flow
    if place is None or flow is None or _opcode(operation) not in _AROUND_SENDS:
        return False

    def is_form(instruction: Instruction) -> bool:
        return instruction.opcode in _FORMS or instruction.opcode.endswith("-done")

    computation, instruction = place
    received = ((computation, i) for i in computation.instructions if i.opcode == "recv")
    return any(reader.opcode == "send" for _, reader in flow.reached(place, is_form)) or any(
        reader is instruction for start in received for _, reader in flow.reached(start, is_form)
    )


def _across(evidence: Evidence) -> str:
    """Return the mesh axis across slices: the compiler takes the first."""
    return next(iter(evidence.program.axes))


def _dividing_parameters(evidence: Evidence) -> set[str]:
    """Return the mesh axes that shard parameters."""
    parameters = (leaf for leaf in evidence.program.leaves if leaf.role == "parameters")
    return {name for leaf in parameters for entry in leaf.partition for name in _named(entry)}


def _sum_between_slices(evidence: Evidence, operation: Operation) -> tuple[str, str]:
    """Return cause and fix of the time of the gradient sum over slices."""
    where, axes = evidence.where, evidence.program.axes
    inside = where.num_devices // where.num_slices
    cause = "the gradients are summed between slices"
    fix = "Exchange less often, with gradient accumulation or a larger batch per device"
    if moves_wide(operation):
        fix += "; or less: bfloat16 gradients"
    if inside == 1:
        return cause, f"{fix}."
    if _dividing_parameters(evidence):
        return f"{cause}, by each device those of its share of the parameters", f"{fix}."
    cause += (
        ", which the compiler does in parts: it adds them within each slice, sends the sums to the "
        "other slices, and gathers the result"
    )
    if any(size > 1 for name, size in axes.items() if name != _across(evidence)):
        return cause, f"{fix}."
    mesh = f'{{"data": {where.num_slices}, "fsdp": {inside}}}'
    return cause, f"{fix}, or parameters divided within a slice (FSDP: mesh={mesh})."


def _named(entry: Any) -> tuple[str, ...]:
    return (entry,) if isinstance(entry, str) else tuple(entry or ())


def _cause(evidence: Evidence, operation: Operation) -> tuple[str, str]:
    """Return the cause of an exchange, by its kind and by whether it is in the backward pass."""
    opcode = _opcode(operation)
    if _sums_between_slices(evidence, operation):
        return _sum_between_slices(evidence, operation)
    backward = "transpose(" in operation.op_name
    merged = len(_SHAPE.findall(operation.shape)) > 1
    if opcode in ("all-reduce", "reduce-scatter") and (backward or merged):
        return (
            "the gradients of a divided batch are summed"
            if backward
            else "sums over a divided batch, such as loss and gradients, merged into one exchange",
            "A larger batch per device or gradient accumulation give the same exchange more "
            f"computing to hide behind{'; bfloat16 gradients halve it' * moves_wide(operation)}.",
        )
    if opcode in ("all-reduce", "reduce-scatter"):
        return (
            "partial results of an array that is divided along a summed axis",
            "Divide along an axis that is not summed over (the batch, or the columns of a weight), "
            "or keep this reduction out of the step.",
        )
    if opcode == "all-gather":
        narrower = "gather them in bfloat16, or " if moves_wide(operation) else ""
        return (
            "an array that is divided is needed whole",
            f"Weights: {narrower}keep them whole if they fit. Activations: give the result a "
            "partition with jax.lax.with_sharding_constraint.",
        )
    if opcode in ("all-to-all", "ragged-all-to-all"):
        return (
            "an array changes the axis along which it is divided",
            "Keep one partition from operation to operation, or change it where the array is "
            "smallest.",
        )
    if opcode == "collective-permute":
        return (
            "neighbours pass arrays on",
            "Let each device compute on one part while the next one is on its way.",
        )
    if opcode in ("send", "recv"):
        return (
            "slices exchange arrays",
            "Divide over the slices by the batch only, which needs one exchange a step, or give it "
            "more computing to hide behind.",
        )
    return ("devices exchange data", "Give it more computing to hide behind.")


def synchronised_statistics(evidence: Evidence) -> Iterator[Finding]:
    """Find all-reduces of channel means and variances: BatchNorm over the global batch.

    They are all-reduces of float vectors only, one of which comes from a sum in the forward pass
    and goes, through a square root, into a larger array: a variance that normalises activations.
    Gradients belong to the backward pass, losses and norms are scalars, and the load of experts has
    no root. Those of equal lengths are counted: at least four, and 2 % of the step.
    """
    found = _statistics(evidence)
    seconds = sum(o.seconds for o in found)
    count = sum(o.count for o in found)
    if evidence.share(seconds) < NOTABLE_SHARE:
        return
    forward = [o for o in found if "transpose(" not in o.op_name]
    yield evidence.finding(
        "sync-batchnorm",
        f"{count} all-reduces of channel statistics a step, one after the other, since each layer "
        "waits for its own: BatchNorm normalises over the batch of all devices.",
        "Use GroupNorm or LayerNorm, or normalise each device's share on its own (shard_map); "
        "with 32 examples or more per device the accuracy is usually the same.",
        seconds,
        longest(forward),
    )


def _statistics(evidence: Evidence) -> list[Operation]:
    sums = [
        o
        for o in evidence.operations
        if _opcode(o) == "all-reduce"
        and o.op_name.endswith(("reduce_sum", "psum", "reduce_mean"))
        and all(_length(shape) > 1 for shape in _SHAPE.findall(o.shape))
    ]
    lengths: set[int] = set()
    for operation in sums:
        if "transpose(" not in operation.op_name and _normalises(evidence, operation):
            lengths |= _lengths(operation)
    found = [o for o in sums if _lengths(o) & lengths]
    forward = [o for o in found if "transpose(" not in o.op_name]
    backward = len(found) - len(forward)
    enough = forward and sum(o.count for o in found) >= _STATISTICS
    # Gradients of biases are vectors too, so a forward statistic is required.
    return found if enough and backward <= 2 * len(forward) else []


def _normalises(evidence: Evidence, operation: Operation) -> bool:
    """Return whether the root of an all-reduced vector meets a larger array.

    Its first axis does not count: one number per row is LayerNorm with sharded features. Without
    the program's text every vector may.
    """
    place, flow = evidence.place(operation), evidence.flow
    if place is None or flow is None:
        return True
    lengths = _lengths(operation)

    def is_vector(instruction: Instruction) -> bool:
        return count(instruction) in lengths

    roots = (p for p in flow.reached(place, is_vector) if p[1].opcode in ("rsqrt", "sqrt"))
    return any(
        reader.opcode == "broadcast"
        and not is_vector(reader)
        and reader.attribute("dimensions") != "{0}"
        for root in roots
        for _, reader in flow.reached(root, is_vector)
    )


def _lengths(operation: Operation) -> set[int]:
    return {_length(shape) for shape in _SHAPE.findall(operation.shape)}


def _length(shape: str) -> int:
    """Return the length of a float vector, 0 for anything else."""
    matched = _VECTOR.fullmatch(shape)
    return int(matched[1] or matched[2]) if matched else 0


def collective_matmul(evidence: Evidence) -> Iterator[Finding]:
    """Find products that XLA cut into pieces that circulate in a ring: collective matmul.

    They are permutations with the name of a matrix product; a ``ppermute`` of the program has its
    own name. They are reported if the step waits 2 % for them. The additions and copies of the
    pieces cost more than is counted.
    """
    found = _rotations(evidence)
    seconds = sum(o.seconds for o in found)
    if not found or evidence.share(seconds) < NOTABLE_SHARE:
        return
    yield evidence.finding(
        "collective-matmul",
        f"XLA turned matrix products into loops of {sum(o.count for o in found)} exchanges a step, "
        "and computing does not hide them.",
        'Compile once with compiler_options={"xla_jf_spmd_threshold_for_windowed_einsum_mib": '
        "1000000}, which gathers first and multiplies once, and keep the faster program.",
        seconds,
        longest(found),
    )


def _rotations(evidence: Evidence) -> list[Operation]:
    return [
        o
        for o in evidence.operations
        if _opcode(o) == "collective-permute" and o.op_name.endswith("dot_general")
    ]


def undivided_work(evidence: Evidence) -> Iterator[Finding]:
    """Find devices that repeat the same work: a mesh axis that shards nothing.

    It shards neither an argument nor an array of a ``shard_map`` or a sharding constraint. The
    effect is the time that the devices would save by sharing the work.
    """
    program = evidence.program
    parts = [entry for leaf in program.leaves for entry in leaf.partition if entry is not None]
    used = {name for part in parts for name in ((part,) if isinstance(part, str) else part)}
    used |= set(program.traits.divided_axes)
    idle = {name: size for name, size in program.axes.items() if size > 1 and name not in used}
    copies = math.prod(idle.values())
    if copies == 1 or not program.leaves:
        return
    named = " and ".join(f'"{name}"' for name in idle)
    along = f"mesh {'axis' if len(idle) == 1 else 'axes'} {named}: the {copies} devices along it"
    found = f"No argument is divided over the {along} all do the same work."
    if is_trainers_step(program):
        found = f"Neither the batch nor a parameter is divided over the {along} all do the same."
    elif copies == program.num_devices:
        found = f"No argument is divided over the {copies} devices: each of them does all the work."
    fix = (
        f'Divide the batch: nx.spec(shape, dtype, partition=("{next(iter(idle))}",)), or train '
        "inside of strategy.scope()."
    )
    if is_trainers_step(program):
        fix = (
            'Give these devices to "data" or "fsdp", which divide the batch; or give the strategy '
            f"rules that divide parameters over {named}: nx.distribute.ShardingRules."
        )
    yield evidence.finding(
        "undivided",
        found,
        fix,
        evidence.raw_seconds * (1 - 1 / copies),
    )


def _opcode(operation: Operation) -> str:
    return operation.opcode.removesuffix("-start").removesuffix("-done")
