"""What a program takes of a device's HBM, and where it goes.

Owns the sums over the compiler's own counts and the padding of each argument. It does not decide
whether a program fits: the compiler did, by compiling it.

``peak_bytes`` is the smaller of two counts of the compiler's (libtpu 0.0.42.1): arguments + outputs
− aliased + temporaries + code, which for loops counts more than HBM has although the program was
accepted, and ``peak_memory_in_bytes``, which for small programs counts VMEM as well.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from neurenix.compiler.hlo import Module
from neurenix.compiler.program import Leaf, Program


@dataclass(frozen=True)
class Buffer:
    """An argument as it lies in one device's memory: bytes without and with padding."""

    path: str
    role: str
    shape: str
    logical_bytes: int
    padded_bytes: int


@dataclass(frozen=True)
class Memory:
    """Bytes of HBM on one device.

    ``roles`` divides the arguments: parameters, optimizer, batch, …, padding included. For a
    program that does not fit only ``peak_bytes`` (where the compiler said it), ``limit_bytes`` and
    the arguments are known; ``temporaries_bytes`` is then the difference.
    """

    peak_bytes: int
    limit_bytes: int
    arguments_bytes: int
    outputs_bytes: int
    aliased_bytes: int
    temporaries_bytes: int
    code_bytes: int
    padding_bytes: int
    roles: dict[str, int]
    buffers: tuple[Buffer, ...]

    @property
    def headroom_bytes(self) -> int:
        """What is left; negative when it does not fit."""
        return self.limit_bytes - self.peak_bytes


def of_compiled(
    program: Program, module: Module, stats: dict[str, int], *, limit_bytes: int
) -> Memory:
    """Return the memory of a compiled program from ``memory_analysis`` counts."""
    buffers = _buffers(program, module)
    outputs = stats["output_size_in_bytes"]
    aliased = stats["alias_size_in_bytes"]
    arguments = stats["argument_size_in_bytes"]
    temporaries = stats["temp_size_in_bytes"]
    code = stats["generated_code_size_in_bytes"]
    fixed = arguments + outputs - aliased + code
    peak = min(fixed + temporaries, max(fixed, stats.get("peak_memory_in_bytes", 0) or math.inf))
    return Memory(
        peak_bytes=int(peak),
        limit_bytes=limit_bytes,
        arguments_bytes=arguments,
        outputs_bytes=outputs,
        aliased_bytes=aliased,
        temporaries_bytes=int(peak - fixed),
        code_bytes=code,
        padding_bytes=sum(b.padded_bytes - b.logical_bytes for b in buffers),
        roles=_roles(buffers),
        buffers=buffers,
    )


def of_refused(program: Program, needed_bytes: int | None, *, limit_bytes: int) -> Memory:
    """Return what is known of a program that ran out of memory: arguments without padding."""
    buffers = tuple(_buffer(leaf, leaf.device_bytes) for leaf in program.leaves)
    arguments = sum(buffer.padded_bytes for buffer in buffers)
    peak = max(needed_bytes or arguments, arguments)
    return Memory(
        peak_bytes=peak,
        limit_bytes=limit_bytes,
        arguments_bytes=arguments,
        outputs_bytes=0,
        aliased_bytes=0,
        temporaries_bytes=peak - arguments,
        code_bytes=0,
        padding_bytes=0,
        roles=_roles(buffers),
        buffers=buffers,
    )


def _buffers(program: Program, module: Module) -> tuple[Buffer, ...]:
    """Match the leaves with the entry's parameters, which keep their order."""
    parameters = sorted(
        (i for i in module.entry.instructions if i.opcode == "parameter"),
        key=lambda i: int(i.argument),
    )
    if len(parameters) != len(program.leaves):
        return tuple(_buffer(leaf, leaf.device_bytes) for leaf in program.leaves)
    return tuple(
        _buffer(leaf, sum(shape.padded_bytes for shape in parameter.shapes))
        for leaf, parameter in zip(program.leaves, parameters, strict=True)
    )


def _buffer(leaf: Leaf, padded_bytes: int) -> Buffer:
    shape = f"{leaf.dtype}[{','.join(map(str, leaf.device_shape))}]"
    return Buffer(leaf.path, leaf.role, shape, leaf.device_bytes, padded_bytes)


def _roles(buffers: tuple[Buffer, ...]) -> dict[str, int]:
    totals: dict[str, int] = {}
    for buffer in buffers:
        totals[buffer.role] = totals.get(buffer.role, 0) + buffer.padded_bytes
    return totals
