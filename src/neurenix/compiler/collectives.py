"""Model the time of collectives over ICI and DCN from bytes, hops and links.

The compiler gives no cycles for collectives. ``schedule`` decides when they run and what hides
them.

A ring moves ``bytes (n - 1) / n`` through each device for a gather or a scatter, and twice that for
an all-reduce (scaling-book, ``sharding.md``). Two links carry it for every slice axis that the
group spans and that closes into a ring; one link for every other axis, because the device at the
end of a line has one link. Link rates are per direction.

An all-to-all is as slow as the middle of the longest axis, which half of the data crosses. A
permutation routes each array the shortest way, one slice axis after another, and is as slow as the
busiest link. Devices are assumed to be numbered along the last axis first.

Between slices, the bytes that arrive at a host for all its devices set the time. This was checked
against one published run on two slices only, most of whose step is something else.
"""

from __future__ import annotations

import itertools
import math
import re

from neurenix.chips import DCN_BYTES_PER_SECOND_PER_HOST, ICI_HOP_SECONDS, Slice
from neurenix.compiler.hlo import Instruction
from neurenix.compiler.operations import base_opcode

_MESH = re.compile(r"replica_groups=mesh\[([^\]]*)\][^{]*\{([^}]*)\}")
_AXIS = re.compile(r"'([^']+)'(?:=(\d+))?(?::\(\d+\)(\d+))?")
_LIST = re.compile(r"replica_groups=\{\{([\d,]+)\}")
_PAIR = re.compile(r"\{(\d+),(\d+)\}")
_GROUPS = re.compile(r"replica_groups=\S+")
_IOTA = re.compile(r"replica_groups=\[(\d+),(\d+)\]<=")
_DCN_KIND = re.compile(r'_xla_megascale_transfer_type="(\w+)"')
_NO_MORE_THAN_SENT = ("ONE_TO_ONE", "ALL_TO_ALL", "REDUCE_SCATTER")


DIRECTIONS = ("ici forwards", "ici backwards")
"""Directions of a ring. Its links carry both at once."""


def directions(instruction: Instruction) -> tuple[str, ...]:
    """Return the ring directions that an exchange occupies: one for a permutation, else both.

    In a ring most device numbers move the short way; few wrap around the end.

    Example:
        >>> pairs = "source_target_pairs={{0,1},{1,2},{2,0}}"
        >>> directions(Instruction("p", "collective-permute-start", (), (), "", pairs, False))
        ('ici forwards',)
    """
    if base_opcode(instruction) != "collective-permute":
        return DIRECTIONS
    steps = [int(target) - int(source) for source, target in _PAIR.findall(instruction.attributes)]
    forwards = sum(step > 0 for step in steps) > sum(step < 0 for step in steps)
    return (DIRECTIONS[0],) if forwards else (DIRECTIONS[1],)


def group_size(instruction: Instruction, default: int) -> int:
    """Return the number of devices in one group of a collective.

    Example:
        >>> i = Instruction("a", "all-reduce", (), (), "", "replica_groups=[4,2]<=[8]", False)
        >>> group_size(i, 8)
        2
    """
    text = instruction.attributes
    mesh = _MESH.search(text)
    if mesh:
        sizes = {name: int(size) for name, size, _ in _AXIS.findall(mesh[1]) if size}
        used = _AXIS.findall(mesh[2])
        return math.prod(int(part) if part else sizes.get(name, 1) for name, _, part in used)
    listed = _LIST.search(text)
    if listed:
        return listed[1].count(",") + 1
    iota = _IOTA.search(text)
    return int(iota[2]) if iota else default


def links_of(instruction: Instruction) -> str:
    """Return a key for a collective's links: equal for equal groups.

    Example:
        >>> groups = "channel_id=1, replica_groups=mesh['a'=2,'b'=4] {'b'}, use_global_device_ids"
        >>> links_of(Instruction("r", "all-reduce", (), (), "", groups, False))
        "replica_groups=mesh['a'=2,'b'=4] {'b'}"
    """
    text = instruction.attributes
    if base_opcode(instruction) == "collective-permute":
        return str(_PAIR.findall(text))
    found = _MESH.search(text) or _GROUPS.search(text)
    return found[0] if found else ""


def ici_seconds(instruction: Instruction, where: Slice, *, hops: bool = True) -> float:
    """Return the time of a collective inside a slice that has the links to itself.

    Args:
        instruction: the collective.
        where: the slice.
        hops: whether to add latency, which collectives in flight share, to the time of the bytes,
            which they do not share.

    Example:
        >>> from neurenix import chips
        >>> from neurenix.compiler.shapes import parse_shapes
        >>> shapes = parse_shapes("f32[1024,1024]{1,0:T(8,128)}")
        >>> i = Instruction("a", "all-reduce", shapes, (), "", "", False)
        >>> f"{ici_seconds(i, chips.resolve('v5e-8')) * 1e6:.0f} microseconds"
        '90 microseconds'
    """
    devices = group_size(instruction, where.devices_per_slice)
    if devices <= 1:
        return 0.0
    opcode = base_opcode(instruction)
    shapes = instruction.shapes
    if instruction.opcode.endswith("-start") and opcode != "all-reduce":
        shapes = shapes[len(instruction.operands) :] or shapes
    payload = sum(shape.padded_bytes for shape in shapes)
    rate = where.generation.ici_link_bytes_per_second
    share = (devices - 1) / devices
    if opcode == "collective-permute":
        busiest, way = _permuted(instruction, where)
        moved = max(s.padded_bytes for s in instruction.shapes)
        return moved * busiest / rate + (way * ICI_HOP_SECONDS if hops else 0.0)
    latency = _hops(devices, where) * ICI_HOP_SECONDS if hops else 0.0
    ways = sum((2 if ring else 1) for size, ring in _along(devices, where) if size > 1)
    links = ways or (2 if where.chips_per_slice > 2 else 1)  # of the device with the fewest
    if opcode == "all-reduce":
        return 2 * payload * share / (rate * links) + 2 * latency
    if opcode == "reduce-scatter":
        return payload * (devices - 1) / (rate * links) + latency
    if opcode in ("all-to-all", "ragged-all-to-all"):
        middle = max(
            (size / (8 if ring else 4) for size, ring in _along(devices, where)), default=0
        )
        return payload * max(share / links, middle) / rate + latency
    return payload * share / (rate * links) + latency


def dcn_bytes(instruction: Instruction, where: Slice) -> float:
    """Return the bytes of a ``send`` or ``recv`` between slices that occupy the device's network.

    A ``send`` counts the bytes that it sends. With k slices more bytes arrive: (k - 1) / k of the
    result of a gather, of which each slice sent 1 / k, and 2 (k - 1) / k of an all-reduce. The
    ``recv`` counts the rest, (k - 2) / k in both cases: nothing on two slices. A permutation, an
    all-to-all and a reduce-scatter receive no more than they send.

    Example:
        >>> from neurenix import chips
        >>> from neurenix.compiler.shapes import parse_shapes
        >>> shapes = parse_shapes("(f32[1024,1024]{1,0:T(8,128)}, u32[], token[])")
        >>> gathered = Instruction("r", "recv", shapes, (), "", "", False)
        >>> [dcn_bytes(gathered, chips.resolve(f"{k}x v5e-8")) / 2**20 for k in (2, 4, 8)]
        [0.0, 2.0, 3.0]
    """
    moved = instruction.shapes[0].padded_bytes
    if instruction.opcode == "send":
        return moved
    kind = _DCN_KIND.search(instruction.attributes)
    if kind and kind[1] in _NO_MORE_THAN_SENT:
        return 0.0
    slices = max(2, where.num_slices)
    return moved * (slices - 2) / slices


def dcn_seconds(num_bytes: float, where: Slice) -> float:
    """Return the time of one device's share of a transfer between slices."""
    devices_per_host = where.chips_per_host * where.devices_per_chip
    return num_bytes * devices_per_host / DCN_BYTES_PER_SECOND_PER_HOST


def _along(devices: int, where: Slice) -> tuple[tuple[int, bool], ...]:
    """Return a group's lengths along the slice's axes, and which of them are rings."""
    whole = _spanned(devices, where)
    chips, rest = divmod(devices, where.devices_per_chip)
    if whole or rest:
        return whole
    parts = []
    for size, wraps in zip(where.topology, where.wraps, strict=True):
        part = math.gcd(chips, size)
        if part > 1:
            parts.append((part, wraps and part == size))
            chips //= part
    return tuple(parts)


def _permuted(instruction: Instruction, where: Slice) -> tuple[float, int]:
    """Return how many arrays the busiest link of a permutation carries, and the longest route."""
    carried: dict[tuple[tuple[int, ...], int, int], float] = {}
    longest = 1
    for pair in _PAIR.findall(instruction.attributes):
        ends = [int(end) for end in pair]
        if max(ends) >= where.devices_per_slice:  # each slice does the same on its own
            continue
        place, target = (_coordinates(end // where.devices_per_chip, where) for end in ends)
        way = 0
        for axis, (size, wraps) in enumerate(zip(where.topology, where.wraps, strict=True)):
            step, distance, share = _shortest(place[axis], target[axis], size, wraps)
            way += distance
            for direction in (step,) if share == 1.0 else (1, -1):
                for far in range(distance):
                    at = list(place)
                    at[axis] = (place[axis] + direction * far) % size
                    link = (tuple(at), axis, direction)
                    carried[link] = carried.get(link, 0.0) + share
            place[axis] = target[axis]
        longest = max(longest, way)
    return max(1.0, *carried.values()) if carried else 1.0, longest


def _coordinates(chip: int, where: Slice) -> list[int]:
    found = []
    for size in reversed(where.topology):
        chip, at = divmod(chip, size)
        found.append(at)
    return found[::-1]


def _shortest(place: int, target: int, size: int, wraps: bool) -> tuple[int, int, float]:
    """Return direction, distance and the share of the data that takes this direction."""
    forwards = (target - place) % size
    if not wraps:
        return (1 if target > place else -1), abs(target - place), 1.0
    if 2 * forwards == size:
        return 1, forwards, 0.5
    return (1, forwards, 1.0) if 2 * forwards < size else (-1, size - forwards, 1.0)


def _hops(devices: int, where: Slice) -> float:
    """Return the longest distance between two devices of the group, in links."""
    axes = _spanned(devices, where)
    if not axes:
        return max(1, devices // 2)
    return max(1, sum(size // 2 if wraps else size - 1 for size, wraps in axes))


def _spanned(devices: int, where: Slice) -> tuple[tuple[int, bool], ...]:
    """Return length and wrap-around of the slice axes that a device group spans.

    Meshes are laid out so that a mesh axis is a set of whole slice axes if the sizes allow it, as
    few as possible. A group that is not made of whole axes, such as half of one, spans none.
    """
    axes = tuple(zip(where.topology, where.wraps, strict=True))
    chips, rest = divmod(devices, where.devices_per_chip)
    if rest:
        return ()
    for count in range(1, len(axes) + 1):
        for chosen in itertools.combinations(axes, count):
            if math.prod(size for size, _ in chosen) == chips:
                return chosen
    return ()
