"""Parse shapes of the optimised program: element type, sizes, tiles and memory space.

Owns the bytes of a tiled buffer. ``neurenix.compiler.peak_memory`` owns live ranges.
"""

from __future__ import annotations

import functools
import math
import re
from dataclasses import dataclass

_SHAPE = re.compile(r"([a-z]\w*)\[([^\]]*)\](?:\{([^{}]*)\})?")
_TILE = re.compile(r"T\(([\d,*]+)\)(?:\(([\d,]+)\))?")
_SPACE = re.compile(r"S\((\d+)\)")

_BITS = {
    "pred": 8, "s2": 2, "u2": 2, "s4": 4, "u4": 4, "s8": 8, "u8": 8, "s16": 16, "u16": 16,
    "s32": 32, "u32": 32, "s64": 64, "u64": 64, "f16": 16, "bf16": 16, "f32": 32, "f64": 64,
    "c64": 64, "c128": 128, "token": 0, "opaque": 0,
}  # fmt: skip


@dataclass(frozen=True)
class Shape:
    """One array of the optimised program.

    ``memory_space`` is 0 for HBM, 1 for VMEM, 5 for host memory, and another for smaller memories.
    """

    dtype: str
    sizes: tuple[int, ...]
    minor_to_major: tuple[int, ...] = ()
    tile: tuple[int, ...] = ()
    memory_space: int = 0

    @property
    def bits(self) -> int:
        """Bits of one element."""
        if self.dtype in _BITS:
            return _BITS[self.dtype]
        found = re.match(r"f(\d+)e", self.dtype)
        return int(found[1]) if found else 32

    @property
    def logical_bytes(self) -> int:
        """Bytes of the elements, without padding."""
        return -(-math.prod(self.sizes) * self.bits // 8)

    @functools.cached_property
    def padded_bytes(self) -> int:
        """Bytes of the buffer, including the padding of its tiles.

        Example:
            >>> parse_shapes("f32[7,1000]{1,0:T(8,128)}")[0].padded_bytes
            32768
        """
        if not self.tile or not self.sizes:
            return self.logical_bytes
        order = self.minor_to_major or tuple(reversed(range(len(self.sizes))))
        physical = [self.sizes[axis] for axis in reversed(order)]
        tile = self.tile
        if len(tile) > len(physical):
            physical = [1] * (len(tile) - len(physical)) + physical
        lead = len(physical) - len(tile)
        rounded = [-(-size // t) * t for size, t in zip(physical[lead:], tile, strict=True)]
        return -(-math.prod(physical[:lead]) * math.prod(rounded) * self.bits // 8)

    @property
    def in_hbm(self) -> bool:
        """Whether the buffer is in the accelerator's main memory."""
        return self.memory_space == 0

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.sizes))}]"


def parse_shapes(text: str) -> tuple[Shape, ...]:
    """Return every array of a shape, with tuples flattened in order.

    Example:
        >>> [str(s) for s in parse_shapes("(f32[8,128]{1,0:T(8,128)S(1)}, s32[]{:T(128)})")]
        ['f32[8,128]', 's32[]']
    """
    return tuple(_read(*found.groups()) for found in _SHAPE.finditer(text))


@functools.lru_cache(maxsize=2**14)
def _read(dtype: str, sizes: str, layout: str | None) -> Shape:
    layout = layout or ""
    order, _, rest = layout.partition(":")
    tile = _TILE.search(rest)
    space = _SPACE.search(rest)
    numbers = tuple(int(part) for part in re.findall(r"\d+", sizes))
    tile_sizes: tuple[int, ...] = ()
    if tile and "*" not in tile[1]:
        tile_sizes = tuple(int(part) for part in tile[1].split(","))
    return Shape(
        dtype=dtype,
        sizes=numbers,
        minor_to_major=tuple(int(part) for part in order.split(",") if part),
        tile=tile_sizes,
        memory_space=int(space[1]) if space else 0,
    )
