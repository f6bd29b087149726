"""Parse the text of an optimised HLO module into computations and instructions.

Owns the grammar: logical lines (an attribute may span several), shapes with tiles and memory
spaces, operands, called computations, source positions, and the trip counts of loops.
``neurenix.compiler.schedule`` owns the cost of instructions.

It parses text because the protocol buffer has no reader without TensorFlow.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import cached_property

from neurenix._core.errors import CompilationError
from neurenix._core.source_files import SourceLine, is_entrance, is_on_the_way, users
from neurenix._core.trip_count import MIRRORED, trip_count
from neurenix.compiler.shapes import Shape, parse_shapes

_QUOTED = re.compile(r'"(?:[^"\\]|\\.)*"', re.DOTALL)
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[()]')
_COMMENT = re.compile(r"/\*.*?\*/")
_HEADER = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\{$")
_END = re.compile(r"^\}(?:, execution_thread=\S+)?$")  # of a computation, possibly for a SparseCore
_INSTRUCTION = re.compile(r"^\s+(ROOT )?%?([\w.\-]+) = ")
_OPCODE = re.compile(r"\s*([\w\-]+)\(")
_NAME = re.compile(r"%([\w.\-]+)")
_CALLED = re.compile(r"(?:calls|body|condition|to_apply)=%?([\w.\-]+)")
_BRANCHES = re.compile(r"branch_computations=\{([^}]*)\}")
_CYCLES = re.compile(r'"estimated_cycles":"?(-?\d+)')
_OVERFLOW = 2**63 - 1
_KNOWN_TRIPS = re.compile(r'"known_trip_count":\{"n":"?(\d+)')
_FRAME = re.compile(r"stack_frame_id=(\d+)")
_OP_NAME = re.compile(r'op_name="((?:[^"\\]|\\.)*)"')
_FILE_LINE = re.compile(r'source_file="((?:[^"\\]|\\.)*)" source_line=(\d+)')
_FIELD = re.compile(r"(\w+)=(\d+)")
_ESCAPE = re.compile(rb"\\(?:([0-3][0-7]{2})|(.))", re.DOTALL)
_LETTERS = {b"n": b"\n", b"r": b"\r", b"t": b"\t"}


def unescaped(text: str) -> str:
    r"""Return a text with XLA's C escapes decoded: quotes, backslashes and octal bytes.

    Example:
        >>> print(unescaped(r"exp \303\251/it\'s.py"))
        exp é/it's.py
    """
    if "\\" not in text:
        return text

    def plain(found: re.Match[bytes]) -> bytes:
        octal, letter = found.groups()
        return bytes([int(octal, 8)]) if octal else _LETTERS.get(letter, letter)

    return _ESCAPE.sub(plain, text.encode()).decode(errors="replace")


@dataclass(frozen=True)
class Instruction:
    """One instruction: opcode, result shapes, operands, and the text of its attributes."""

    name: str
    opcode: str
    shapes: tuple[Shape, ...]
    operands: tuple[str, ...]
    argument: str
    attributes: str
    is_root: bool

    @cached_property
    def estimated_cycles(self) -> int | None:
        """The scheduler's cycles for this instruction; ``None`` if absent.

        -1 and an overflow (``cycles_overflow``) count as absent.
        """
        found = _CYCLES.search(self.attributes)
        return int(found[1]) if found and 0 <= int(found[1]) < _OVERFLOW else None

    @cached_property
    def cycles_overflow(self) -> bool:
        """Whether the compiler's count overflowed to 2⁶³ - 1 (libtpu 0.0.42.1)."""
        found = _CYCLES.search(self.attributes)
        return found is not None and int(found[1]) >= _OVERFLOW

    @cached_property
    def called(self) -> tuple[str, ...]:
        """Names of the called computations, in the order of the attributes."""
        names = _CALLED.findall(self.attributes)
        branches = _BRANCHES.search(self.attributes)
        if branches:
            names.extend(_NAME.findall(branches[1]))
        return tuple(names)

    @cached_property
    def op_name(self) -> str:
        """The path of the instruction's JAX names, or an empty string."""
        found = _OP_NAME.search(self.attributes)
        return unescaped(found[1]) if found else ""

    def attribute(self, name: str) -> str | None:
        """Return the text of an attribute without spaces, or ``None`` if it is absent.

        Example:
            >>> i = Instruction("a", "fusion", (), (), "", "kind=kLoop, calls=%f.1", False)
            >>> i.attribute("kind")
            'kLoop'
        """
        found = re.search(
            rf"(?:^|[ ,]){re.escape(name)}=((?:\{{[^}}]*\}})|\"[^\"]*\"|[^\s,]+)", self.attributes
        )
        return found[1].strip('"') if found else None


@dataclass(frozen=True)
class Computation:
    """A named list of instructions in scheduled order."""

    name: str
    instructions: tuple[Instruction, ...]

    @cached_property
    def by_name(self) -> dict[str, Instruction]:
        """Instructions by name."""
        return {instruction.name: instruction for instruction in self.instructions}

    @cached_property
    def parameters(self) -> dict[int, Instruction]:
        """The parameters by number."""
        return {int(i.argument): i for i in self.instructions if i.opcode == "parameter"}

    @cached_property
    def users(self) -> dict[str, list[tuple[Instruction, int]]]:
        """For each instruction name, its users and the operand positions."""
        found: dict[str, list[tuple[Instruction, int]]] = {}
        for user in self.instructions:
            for position, name in enumerate(user.operands):
                found.setdefault(name, []).append((user, position))
        return found

    @property
    def root(self) -> Instruction:
        """The instruction that the computation returns."""
        for instruction in reversed(self.instructions):
            if instruction.is_root:
                return instruction
        return self.instructions[-1]


@dataclass(frozen=True)
class Module:
    """An optimised HLO module.

    Example:
        >>> text = '''HloModule m
        ...
        ... ENTRY %main (p: f32[8]) -> f32[8] {
        ...   %p = f32[8]{0:T(128)} parameter(0)
        ...   ROOT %n = f32[8]{0:T(128)} negate(%p)
        ... }
        ... '''
        >>> [i.opcode for i in parse(text).entry.instructions]
        ['parameter', 'negate']
    """

    name: str
    header: str
    computations: dict[str, Computation]
    entry: Computation
    _frames: dict[int, SourceLine] = field(default_factory=dict, repr=False)

    def source(self, instruction: Instruction) -> SourceLine | None:
        """Return the innermost line of the user's program for an instruction, if known."""
        found = _FRAME.search(instruction.attributes)
        if found:
            return self._frames.get(int(found[1]))
        found = _FILE_LINE.search(instruction.attributes)
        return SourceLine(unescaped(found[1]), int(found[2])) if found else None

    def trip_count(self, computation: Computation, loop: Instruction) -> int | None:
        """Return how often the body of ``loop`` runs; ``None`` if that depends on data.

        A loop of ``lax.scan`` ends in ``compare(counter, constant), direction=LT``. The counter
        starts at a constant of the loop's tuple. It grows by more than 1 if the compiler unrolled
        the body. Counters that decrease, are multiplied, or are compared in another direction are
        handled too.
        """
        known = _KNOWN_TRIPS.search(loop.attributes)
        if known:
            return int(known[1])
        condition = self.computations.get(called_as(loop, "condition"))
        if condition is None:
            return None
        compare = condition.root
        if compare.opcode != "compare" or len(compare.operands) != 2:
            return None
        direction = compare.attribute("direction")
        left, right = (condition.by_name.get(name) for name in compare.operands)
        if left is None or right is None:
            return None
        if left.opcode == "constant":
            left, right = right, left
            direction = MIRRORED.get(direction or "", direction)
        bound = _integer(right)
        if bound is None or left.opcode != "get-tuple-element":
            return None
        start = self._start(computation, loop, left)
        growth = self._growth(loop, left)
        if start is None or growth is None:
            return None
        return trip_count(start, bound, direction or "", *growth)

    def _growth(self, loop: Instruction, counter: Instruction) -> tuple[int, int] | None:
        """Return the factor and the summand by which one run of the body changes the counter.

        Returns ``(1, 1)``, the form of ``lax.scan``, if the change cannot be found, and ``None`` if
        it has another form.
        """
        body = self.computations.get(called_as(loop, "body"))
        index = counter.attribute("index")
        if body is None or index is None or body.root.opcode != "tuple":
            return 1, 1
        value = body.by_name.get(body.root.operands[int(index)])
        factor, growth = 1, 0
        for _ in range(64):
            if value is None:
                return 1, 1
            if value.opcode == "get-tuple-element" and value.attribute("index") == index:
                return (factor, growth) if (factor, growth) != (1, 0) else (1, 1)
            if value.opcode in ("copy", "bitcast", "convert"):
                value = body.by_name.get(value.operands[0])
                continue
            if value.opcode not in ("add", "subtract", "multiply", "shift-left"):
                return None
            left, right = (body.by_name.get(name) for name in value.operands)
            step = _integer(right)
            if step is None and value.opcode in ("add", "multiply"):
                left, step = right, _integer(left)
            if step is None:
                return None
            if value.opcode == "shift-left":
                step = 2**step
            if value.opcode in ("multiply", "shift-left"):
                factor *= step
            else:  # later factors multiply this summand
                growth += factor * (step if value.opcode == "add" else -step)
            value = left
        return None

    def _start(
        self, computation: Computation, loop: Instruction, counter: Instruction
    ) -> int | None:
        """Return the counter's initial value: 0 if a loop carries it, None if data decides.

        In the entry computation, a value that is not a constant depends on data. Inside a loop XLA
        carries a constant 0 through the tuple of the enclosing loop.
        """
        unseen = None if computation is self.entry else 0
        state = computation.by_name.get(loop.operands[0])
        index = counter.attribute("index")
        if state is None or state.opcode != "tuple" or index is None:
            return unseen
        value = computation.by_name.get(state.operands[int(index)])
        for _ in range(8):
            if value is None or value.opcode not in ("copy", "bitcast", "convert"):
                break
            value = computation.by_name.get(value.operands[0])
        start = _integer(value)
        return unseen if start is None else start


def parse(text: str) -> Module:
    """Parse the text of an optimised HLO module.

    Raises:
        CompilationError: the text is not an HLO module with an entry computation.
    """
    lines = text.split("\n")
    if not lines or not lines[0].startswith("HloModule"):
        raise CompilationError("The compiler's output is not an HLO module; it cannot be read.")
    computations: dict[str, Computation] = {}
    entry: Computation | None = None
    tables: list[str] = []
    index = 1
    while index < len(lines):
        header = _HEADER.match(lines[index])
        if header is None:
            tables.append(lines[index])
            index += 1
            continue
        index, computation = _read_computation(lines, index + 1, header[2])
        computations[computation.name] = computation
        if header[1]:
            entry = computation
    if entry is None:
        raise CompilationError("The HLO module has no entry computation; it cannot be read.")
    name = re.match(r"HloModule ([\w.\-]+)", lines[0])
    return Module(name[1] if name else "", lines[0], computations, entry, _read_frames(tables))


def _read_computation(lines: list[str], index: int, name: str) -> tuple[int, Computation]:
    instructions: list[Instruction] = []
    while index < len(lines) and not _END.match(lines[index]):
        if not _INSTRUCTION.match(lines[index]):
            index += 1
            continue
        logical = lines[index]
        while not _is_whole(logical) and index + 1 < len(lines):
            index += 1
            logical = f"{logical}\n{lines[index]}"
        instructions.append(_read_instruction(logical))
        index += 1
    return index + 1, Computation(name, tuple(instructions))


def _is_whole(line: str) -> bool:
    bare = _QUOTED.sub("", line) if '"' in line else line
    return '"' not in bare and bare.count("{") <= bare.count("}")


def _read_instruction(line: str) -> Instruction:
    found = _INSTRUCTION.match(line)
    if found is None:
        raise CompilationError(f"An HLO instruction cannot be read: {line[:120]!r}")
    rest = line[found.end() :]
    if rest.startswith("("):
        end = _closing(rest, 0) + 1
    else:
        end = rest.index(" ")
    shapes = parse_shapes(_COMMENT.sub("", rest[:end]))
    opcode = _OPCODE.match(rest, end)
    if opcode is None:
        raise CompilationError(f"An HLO instruction has no operation: {line[:120]!r}")
    close = _closing(rest, opcode.end() - 1)
    argument = rest[opcode.end() : close]
    return Instruction(
        name=found[2],
        opcode=opcode[1],
        shapes=shapes,
        operands=tuple(_NAME.findall(argument)),
        argument=argument,
        attributes=rest[close + 1 :].lstrip(", "),
        is_root=bool(found[1]),
    )


def _closing(text: str, start: int) -> int:
    """Return the position of the parenthesis that closes the one at ``start``."""
    plain = text.find(")", start)
    if plain > 0 and text.find("(", start + 1, plain) < 0 and text.find('"', start, plain) < 0:
        return plain
    depth = 0
    for token in _TOKEN.finditer(text, start):
        if token[0] == "(":
            depth += 1
        elif token[0] == ")":
            depth -= 1
            if depth == 0:
                return token.start()
    raise CompilationError(f"Unbalanced parentheses in the HLO: {text[:120]!r}")


def called_as(instruction: Instruction, role: str) -> str:
    """Return the name of the computation with this role, such as ``"body"``; else ``""``."""
    found = re.search(rf"{role}=%?([\w.\-]+)", instruction.attributes)
    return found[1] if found else ""


def _integer(instruction: Instruction | None) -> int | None:
    if instruction is None or instruction.opcode != "constant":
        return None
    return int(instruction.argument) if re.fullmatch(r"-?\d+", instruction.argument) else None


def _read_frames(lines: list[str]) -> dict[int, SourceLine]:
    """Resolve the header tables to one source line per stack frame."""
    section = ""
    text: dict[str, dict[int, str]] = {"FileNames": {}, "FunctionNames": {}}
    fields: dict[str, dict[int, dict[str, int]]] = {"FileLocations": {}, "StackFrames": {}}
    for line in lines:
        if line in text or line in fields:
            section = line
            continue
        number, _, rest = line.partition(" ")
        if not number.isdigit():
            section = "" if line else section
            continue
        if section in text:
            text[section][int(number)] = unescaped(rest.removeprefix('"').removesuffix('"'))
        elif section in fields:
            fields[section][int(number)] = {k: int(v) for k, v in _FIELD.findall(rest)}
    places = {
        number: SourceLine(
            text["FileNames"].get(place.get("file_name_id", 0), ""),
            place.get("line", 0),
            text["FunctionNames"].get(place.get("function_name_id", 0), ""),
        )
        for number, place in fields["FileLocations"].items()
    }
    stack = fields["StackFrames"]
    return {number: line for number in stack if (line := _user_line(number, stack, places))}


def _user_line(
    number: int, stack: dict[int, dict[str, int]], places: dict[int, SourceLine]
) -> SourceLine | None:
    """Return the innermost line of a stack frame in user code, else the innermost line.

    Lines outside the traced function, such as the call of preflight, do not count. The text has the
    caller's frame number plus one; the outermost frame is its own caller.
    """
    innermost: SourceLine | None = None
    while number in stack:
        line = places.get(stack[number].get("file_location_id", 0))
        if line is not None and (is_entrance(line.file) or is_on_the_way(line.file)):
            break
        if line is not None and (own := users(line)) is not None:
            return own
        innermost = innermost or line
        caller = stack[number].get("parent_frame_id", 0) - 1
        if caller >= number:
            break
        number = caller
    return innermost
