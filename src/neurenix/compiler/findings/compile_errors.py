"""Findings about programs that the compiler refused.

Parses the compiler's messages: the missing memory, and the kernel. ``compile`` decides whether an
answer is a refusal, and its kind.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from neurenix._core.source_files import SourceLine
from neurenix._core.units import bytes_text
from neurenix.chips import Slice
from neurenix.compiler.compile import Refusal
from neurenix.compiler.findings.evidence import Finding
from neurenix.compiler.findings.precision import has_roomier, is_narrow
from neurenix.compiler.findings.whole_state import whole_state
from neurenix.compiler.peak_memory import Buffer
from neurenix.compiler.program import Program
from neurenix.compiler.training import is_training_step

REFUSALS = {
    "hbm": "Take a smaller batch, recompute activations (jax.checkpoint), compute in bfloat16, "
    "divide the optimizer's state over the devices, or take chips with more memory.",
    "vmem": "Make the kernel's blocks smaller; they must fit into VMEM together, each twice where "
    "the grid has more than one step. A larger limit can be asked for, up "
    "to what the chip has: pltpu.CompilerParams(vmem_limit_bytes=…).",
    "crash": "Try another slice or another version of jax and libtpu, and report it.",
    "timeout": "Allow more time with CompileOptions(timeout_seconds=…), or compile fewer layers.",
    "error": "The compiler's message names the operation.",
}
"""Fix for each kind of refusal."""

_SCOPED = re.compile(
    r"Scoped allocation with size ([\d.]+[KMG]?) and limit ([\d.]+[KMG]?) exceeded"
)
_STACK_NAME = re.compile(r"on stack for %?([\w.\-]+?)(?:\.\d+)? =")
_WINDOW = re.compile(
    r"Allocation \(size=(\d+)\) would exceed memory \(size=(\d+)\).*space=vmem.*:: ([\w.\-]+?)"
    r"(?:\.\d+)?\s*$",
    re.DOTALL,
)
_PROGRAM = re.compile(r"memory space vmem\. Used ([\d.]+[KMG]?) of ([\d.]+[KMG]?) vmem")
_OPERATOR = re.compile(r'Operator: op_name="(?:[^"]*/)?([^"/]+)"')
_LABEL = re.compile(r"XLA label: %?([\w\-]+)(?:\.\d+)? = custom-call")
_TAG = re.compile(r"Tag: ((?:\w+ )+window) allocation.*? shape is (\w+\[[\d,]*\])")
_BLOCK = re.compile(r"tag = '([^']*)'")
_MUCH = 0.05  # smallest share of the memory of an array named as the cause
_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30}


@dataclass(frozen=True)
class KernelMemory:
    """VMEM of a refused kernel: bytes needed, bytes allowed, and the block, if it was one."""

    name: str
    needed_bytes: int
    limit_bytes: int
    block: str = ""


def kernel_memory(message: str) -> KernelMemory | None:
    """Parse the compiler's three messages about VMEM; else return ``None``.

    Example:
        >>> kernel_memory("allocating on stack for %add_one.1 = f32[8]{0} custom-call(%a). Scoped "
        ...               "allocation with size 128.00M and limit 16.00M exceeded scoped")
        KernelMemory(name='add_one', needed_bytes=134217728, limit_bytes=16777216, block='')
    """
    window = _WINDOW.search(message)
    if window:
        block = _BLOCK.search(message)
        return KernelMemory(
            window[3], int(window[1]), int(window[2]), block[1].strip() if block else ""
        )
    whole = _PROGRAM.search(message)
    if whole:
        operator = _OPERATOR.search(message) or _LABEL.search(message)
        block = _TAG.search(message)
        return KernelMemory(
            operator[1] if operator else "a kernel",
            _bytes(whole[1]),
            _bytes(whole[2]),
            f"{block[1]} of {block[2]}" if block else "",
        )
    scoped, name = _SCOPED.search(message), _STACK_NAME.search(message)
    if scoped is None:
        return None
    return KernelMemory(name[1] if name else "a kernel", _bytes(scoped[1]), _bytes(scoped[2]))


def _line_of(name: str, program: Program) -> SourceLine | None:
    """Return the line that calls a kernel: by its name, or that of the only kernel."""
    kernels = program.traits.kernels
    named = [kernel.source for kernel in kernels if kernel.name == name]
    places = named or list(dict.fromkeys(kernel.source for kernel in kernels))
    return places[0] if named or len(places) == 1 else None


def _out_of_hbm(program: Program, where: Slice) -> str:
    """Return fixes for a program that does not fit, without those that it already uses."""
    if is_training_step(program):
        ways = ["take a smaller batch", "recompute activations (jax.checkpoint)"]
        last = "divide it over more devices"
        if program.num_devices > 1 and not _state_is_divided(program):
            last = "divide the optimizer's state over the devices"
    else:
        ways = ['divide arrays over more devices (nx.spec(shape, dtype, partition=("data",)))']
        ways += [] if program.donated else [f"donate arguments that the results replace {_DONATE}"]
        last = ""
    ways += [] if is_narrow(program) else ["compute in bfloat16"]
    ways += [last] if last else []
    ways += ["take chips with more memory"] if has_roomier(where.generation) else []
    *others, final = ways
    text = f"{', '.join(others)}{',' * (len(ways) > 2)} or {final}" if others else final
    return f"{text[0].upper()}{text[1:]}."


def _state_is_divided(program: Program) -> bool:
    """Return whether the largest array of optimizer state is sharded."""
    state = [leaf for leaf in program.leaves if leaf.role == "optimizer"]
    largest = max(state, key=lambda leaf: math.prod(leaf.shape), default=None)
    return largest is not None and math.prod(largest.device_shape) < math.prod(largest.shape)


def _to_blame(made: Sequence[Buffer], needed_bytes: int) -> Buffer | None:
    """Return the largest array that a program creates, unless it is a small share."""
    first = made[0] if made else None
    return first if first and first.padded_bytes >= _MUCH * needed_bytes else None


def _because_of(first: Buffer | None) -> str:
    """Name the first array to look at."""
    if first is None:
        return ""
    return (
        f"The largest that it makes is {first.path}, {first.shape} of "
        f"{bytes_text(first.padded_bytes)} ({first.role}). "
    )


_DONATE = "(jax.jit(f, donate_argnums=…))"


def _bytes(text: str) -> int:
    unit = text[-1] if text[-1] in _UNITS else ""
    return int(float(text.removesuffix(unit)) * _UNITS[unit])


def of_refusal(
    program: Program, where: Slice, answer: Refusal, made: Sequence[Buffer] = ()
) -> Finding:
    """Return the single finding of a refused program: an error with its fix.

    Args:
        program: the refused program.
        where: the slice.
        answer: the compiler's answer.
        made: arrays that the program creates and holds at its peak, largest first, if known.
    """
    message = answer.message.strip()
    source: SourceLine | None = None
    missing = 0
    if answer.kind == "hbm" and answer.needed_bytes:
        limit = where.generation.hbm_bytes_per_device
        missing = max(0, answer.needed_bytes - limit)
        first = _to_blame(made, answer.needed_bytes)
        message = (
            f"It needs {bytes_text(answer.needed_bytes)} of HBM on each device, and "
            f"{where.name} has {bytes_text(limit)}. {_because_of(first)}"
            f"The compiler said: {message}"
        )
        source = first.source if first else None
    if answer.kind == "vmem":
        kernel = kernel_memory(message)
        if kernel:
            missing = max(0, kernel.needed_bytes - kernel.limit_bytes)
            block = f" ({kernel.block})" if kernel.block else ""
            message = (
                f"The kernel {kernel.name} needs {kernel.needed_bytes / 2**20:.1f} MiB of VMEM on "
                f"{where.name}, and may have {kernel.limit_bytes / 2**20:.1f} MiB{block}. The "
                f"compiler said: {message}"
            )
            source = _line_of(kernel.name, program)
    fix = REFUSALS.get(answer.kind, REFUSALS["error"])
    if answer.kind == "hbm":
        fix = _out_of_hbm(program, where)
    if answer.kind == "hbm" and (whole := whole_state(program)):
        message += f"\n{whole.text}"
    return Finding(f"refused-{answer.kind}", "error", message, fix, source, effect_bytes=missing)
