"""Rules about bytes that are moved without compute, held twice, padded or compiled in.

They cover copies, donation, optimizer state, padded arguments and captured arrays. ``attention``
has the rule about scores in memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from neurenix._core.units import bytes_text
from neurenix.compiler.donation import donate_text
from neurenix.compiler.findings.evidence import NOTABLE_SHARE, Evidence, Finding, Nearest
from neurenix.compiler.findings.whole_state import whole_state
from neurenix.compiler.operations import Operation

_UNDONATED_SHARE = 0.05
"""Smallest share of HBM of a missing donation: a judgement. Less rarely decides what fits."""
_PADDING_SHARE = 0.02
"""Smallest share of HBM of padding: a judgement. It is below that of donation, because padding is
often in one array, whose axes one line changes."""
_WHOLE_SHARE = 0.02
"""Smallest share of HBM that sharding optimizer state saves: a judgement, as for padding."""
_CAPTURED_SHARE = 0.01
"""Smallest share of HBM for a warning about captured arrays: a judgement. It is below that of
padding, because they are replicated and unnecessary."""
_LEFT = 1 / 16
"""Remaining share of captured bytes below which they were folded; 4 of 64 bits is the narrowest."""
_CAPTURED_BYTES = 16 * 2**20
"""Size from which an array takes the compiler seconds: 0.1 s per MiB with libtpu 0.0.42.1."""


def moves(evidence: Evidence) -> Iterator[Finding]:
    """Find transposes and copies that take time; one finding per source line.

    Each line must take 2 % of the step. A copy that the compiler inserted has no line; it gets the
    line of its input or of its reader.
    """
    lines: dict[object, list[tuple[Operation, Nearest]]] = {}
    for operation in evidence.operations:
        is_move = operation.opcode in ("copy", "transpose") or (
            operation.opcode == "fusion"
            and operation.name.startswith(("copy", "transpose"))
            and not operation.products
        )
        if is_move:
            near = evidence.nearest(operation)
            line = (near.source.file, near.source.line) if near.source else operation.name
            lines.setdefault(line, []).append((operation, near))
    for found in lines.values():
        seconds = sum(o.seconds for o, _ in found)
        if evidence.share(seconds) < NOTABLE_SHARE:
            continue
        largest, near = max(found, key=lambda pair: pair[0].seconds)
        others = f" and {len(found) - 1} more of this line" if len(found) > 1 else ""
        put = f"; the compiler put it {near.where} this line" if near.where else ""
        carried, fix = _of_the_move(evidence, largest)
        said = evidence.finding(
            "copy",
            f"A {largest.opcode} of {largest.shape}{others} moves data without computing "
            f"({sum(o.count for o, _ in found)}× a step){put}{carried}.",
            fix,
            seconds,
            largest,
        )
        yield replace(said, source=near.source)


_ONE_ORDER = (
    "Keep one axis order from layer to layer, so that no transpose is left between them{donate}."
)


def _of_the_move(evidence: Evidence, operation: Operation) -> tuple[str, str]:
    """Return the description and the fix of a move."""
    if _is_carried(evidence, operation):
        return "; it is what a loop carries from turn to turn", (
            "A turn reads it while it writes the next one, so there are two, and one is copied. "
            "Let a turn do two steps, with unroll=2 of jax.lax.fori_loop or jax.lax.scan, or carry "
            "less. Donation does not change it."
        )
    if _is_overwritten(evidence, operation):
        return "; it is an argument that a loop writes over", (
            "If the argument is not needed afterwards, donate it: jax.jit(f, donate_argnums=…). "
            "The loop then works in its memory."
        )
    in_loop = "/while/" in operation.op_name
    moved = operation.opcode != "copy" or in_loop or evidence.memory.aliased_bytes > 0
    return "", _ONE_ORDER.format(
        donate="" if moved else "; for state that is carried from call to call, donate it"
    )


def _is_carried(evidence: Evidence, operation: Operation) -> bool:
    """Return whether a copy in a loop body is of the loop state at its start or end."""
    place = evidence.place(operation)
    if place is None or evidence.module is None or operation.opcode != "copy":
        return False
    computation, instruction = place
    if computation.name not in evidence.loop_bodies:
        return False
    begins = computation.by_name.get(instruction.operands[0])
    return begins is not None and (
        begins.opcode == "get-tuple-element" or instruction.name in computation.root.operands
    )


def _is_overwritten(evidence: Evidence, operation: Operation) -> bool:
    """Return whether a copy is of an argument, as the initial state of a loop."""
    place = evidence.place(operation)
    if place is None or evidence.module is None or operation.opcode != "copy":
        return False
    computation, instruction = place
    copied = computation.by_name.get(instruction.operands[0])
    if computation is not evidence.module.entry or copied is None or copied.opcode != "parameter":
        return False
    others = computation.instructions
    tuples = {other.name for other in others if instruction.name in other.operands}
    return any(other.opcode == "while" and tuples & set(other.operands) for other in others)


def missing_donation(evidence: Evidence) -> Iterator[Finding]:
    """Find arguments whose memory results could reuse: 5 % of HBM or more.

    It reports nothing if any argument is donated.
    """
    memory, program = evidence.memory, evidence.program
    names = list(program.replaceable)
    leaves = [program.leaves[i] for found in program.replaceable.values() for i in found]
    results = memory.outputs_bytes - memory.aliased_bytes
    spare = min(memory.arguments_bytes, results, sum(leaf.device_bytes for leaf in leaves))
    if memory.aliased_bytes or spare <= _UNDONATED_SHARE * memory.limit_bytes:
        return
    largest = max(leaves, key=lambda leaf: leaf.device_bytes)
    sizes = ",".join(map(str, largest.device_shape))
    several = len(names) > 1
    yield Finding(
        "donation",
        "warning",
        f"The results take {bytes_text(results)} beside the arguments, and no argument's memory "
        f"is given to them. Argument{'s' * several} {', '.join(map(str, names))} "
        f"ha{'ve' if several else 's'} the shapes and types of {bytes_text(spare)} of them; the "
        f"largest array is {largest.path}, {largest.dtype}[{sizes}].",
        f"If the results replace {'them' if several else 'it'}, donate "
        f"{'these' if several else 'this'}: jax.jit(…, {donate_text(names)}).",
        None,
        0.0,
        spare,
    )


def undivided_state(evidence: Evidence) -> Iterator[Finding]:
    """Find optimizer state that is less sharded than its parameters, by 2 % of HBM or more."""
    whole = whole_state(evidence.program)
    if whole is None or whole.spare_bytes <= _WHOLE_SHARE * evidence.memory.limit_bytes:
        return
    yield Finding(
        "undivided-state",
        "warning",
        whole.text,
        "Divide it as they are, when it is made: jax.jit(optimizer.init, out_shardings=…)"
        "(parameters), or jax.device_put(state, …) afterwards.",
        None,
        0.0,
        whole.spare_bytes,
    )


def padded_arguments(evidence: Evidence) -> Iterator[Finding]:
    """Find arguments whose tiles add 2 % of HBM or more in all."""
    padding = evidence.memory.padding_bytes
    if padding > _PADDING_SHARE * evidence.memory.limit_bytes:
        worst = max(evidence.memory.buffers, key=lambda b: b.padded_bytes - b.logical_bytes)
        yield Finding(
            "padded-arguments",
            "warning",
            f"Padding to tiles of 8 × 128 takes {bytes_text(padding)}; most for {worst.path} "
            f"{worst.shape}: {bytes_text(worst.logical_bytes)} → "
            f"{bytes_text(worst.padded_bytes)}.",
            "Make the last axis a multiple of 128, or put a long axis last.",
            None,
            0.0,
            padding,
        )


def captured_constants(evidence: Evidence) -> Iterator[Finding]:
    """Find arrays captured by closure: 16 MiB or more; a warning from 1 % of HBM.

    They are compiled into the program, replicated on every device, and read by the compiler each
    time. The optimised program shows what remains: an array of one repeated number disappears.
    """
    arrays = evidence.program.captured
    total = evidence.program.constant_bytes
    if total < _CAPTURED_BYTES:
        return
    largest, several = arrays[0], len(arrays) > 1
    held = f"an array of {bytes_text(total)}, {largest.shape},"
    if several:
        held = f"{len(arrays)} arrays of {bytes_text(total)}, the largest {largest.shape},"
    left = evidence.memory.roles.get("constants", 0)
    verb, became = "holds", "compiled in, and whole on every device"
    fix = (
        "Give it to the function as an argument, which can be divided over the devices and changed "
        "without compiling again; of a module, give the module."
    )
    if left < total * _LEFT:
        verb = "was written with"
        remains = f"{bytes_text(left)} are left" if left else "nothing is left"
        became = f"the compiler folded {'them' if several else 'it'} away, and {remains}"
        fix = (
            "If its numbers are all alike, make it inside of the function, with jnp.zeros for "
            "example; if they may change, give it as an argument: the program has the old ones."
        )
    took = ""
    if evidence.compile_seconds >= 1:
        took = f" Compiling took {evidence.compile_seconds:.0f} s, part of it for that."
    yield Finding(
        "captured-constants",
        "warning" if left >= _CAPTURED_SHARE * evidence.memory.limit_bytes else "note",
        f"The program {verb} {held} that it was not given: {became}.{took}",
        fix,
        largest.source,
        0.0,
        left,
    )
