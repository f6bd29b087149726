"""Programs as the rules of findings see them, made by hand."""

from __future__ import annotations

from dataclasses import replace

from neurenix import chips
from neurenix._core.source_files import SourceLine
from neurenix.compiler.argument_arrays import Leaf
from neurenix.compiler.findings import Evidence, find
from neurenix.compiler.hlo import Instruction
from neurenix.compiler.jaxpr_facts import Traits, WrittenProduct
from neurenix.compiler.operations import MatrixProduct, Operation
from neurenix.compiler.peak_memory import Memory
from neurenix.compiler.program import Program
from neurenix.compiler.step_time import StepTime

LINE = SourceLine("/home/me/train.py", 7, "loss")


GIB = 2**30


NOTHING = Instruction("c", "convolution", (), (), "", "", False)


def product(depth: int = 512, columns: int = 512, dtype: str = "bf16", highest: bool = False):
    flops = 2.0 * 1024 * depth * columns
    return MatrixProduct(1, 1024, depth, columns, (dtype, dtype), highest, NOTHING, flops)


def operation(kind: str = "compute", seconds: float = 0.01, name: str = "fusion.1", **fields):
    base = Operation(
        name=name,
        opcode="fusion",
        kind=kind,
        seconds=seconds,
        floor_seconds=0,
        busy_seconds=seconds,
        count=1,
        flops=1e9,
        bytes=10**9,
        shape="f32[1024,512]",
        op_name="",
        source=LINE,
    )
    return replace(base, **fields)


def evidence(*operations: Operation, slice_name: str = "v5e-8", **memory) -> Evidence:
    where = chips.resolve(slice_name)
    leaf = Leaf("x", "batch", (64,), "float32", ("data",), (8,))
    program = Program("step", "", {"data": where.num_devices}, (leaf,), (0,), 1e12, 0)
    limit = where.generation.hbm_bytes_per_device
    known = {"arguments_bytes": GIB, "outputs_bytes": GIB, "aliased_bytes": GIB, **memory}
    base = Memory(2 * GIB, limit, 0, 0, 0, 0, 0, 0, {}, ())
    raw = sum(o.seconds for o in operations) or 0.01
    time = StepTime(raw * 1.1, raw, raw * 2, raw * 1.1, 5e-5, "compute", {"compute": 1.0}, "")
    return Evidence(program, where, replace(base, **known), operations, time, raw)


def undonated(found: Evidence, *sizes: int) -> Evidence:
    """Return the evidence with arguments of which a device holds so many bytes, like results."""
    leaves = tuple(
        Leaf(f"{n}.w", "argument", (2 * size,), "float32", ("data",), (size // 4,))
        for n, size in enumerate(sizes)
    )
    taken = {n: (n,) for n in range(len(sizes))}
    program = replace(found.program, leaves=leaves, donated=(), replaceable=taken)
    return replace(found, program=program)


def rules(found: Evidence) -> list[str]:
    return [finding.rule for finding in find(found)]


def waiting(name: str, device: float, host: float, *, steps: int = 1, dtype: str = "float32"):
    """Return the host-bound finding of a program so called, with such times in seconds."""
    found = evidence(operation(products=(product(),)))
    leaf = Leaf("1.x", "batch", (64, 8), dtype, ("data",), (8, 8))
    traits = Traits(steps_per_call=steps)
    program = replace(found.program, name=name, leaves=(leaf,), traits=traits)
    time = replace(found.time, bound="host", device_seconds=device, host_seconds=host)
    (finding,) = find(replace(found, program=program, time=time))
    assert finding.rule == "host-bound"
    return finding


def written(depth: int, rows: int, columns: int, **fields: object) -> WrittenProduct:
    base = WrittenProduct(8, rows, depth, columns, ("bfloat16",) * 2, 1, False, 0, "", LINE)
    return replace(base, **fields)


def with_traits(found: Evidence, **traits: object) -> Evidence:
    return replace(found, program=replace(found.program, traits=Traits(**traits)))


def reduces(name: str, shape: str, op_name: str) -> Operation:
    return operation("ici", opcode="all-reduce", name=name, shape=shape, op_name=op_name)
