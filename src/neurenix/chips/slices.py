"""Slices: names of Google, GKE, MaxText and libtpu → chips, devices and hosts.

Owns the parsing of names and their arithmetic. The number in a retail name counts TensorCores (v2
to v4, v5p), chips (v5e, v6e) or devices (tpu7x in MaxText); only ``resolve`` interprets it. The
properties of chips are in ``generations``.

Sources: maxtext ``src/maxtext/utils/accelerator_to_spec_map.py``, xpk
``src/xpk/core/system_characteristics.py``, scaling-book ``tpus.md`` (wrap-around links), and the
topologies that libtpu 0.0.42.1 accepts.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from itertools import product
from math import prod

from neurenix._core.errors import ArgumentTypeError, UnknownNameError, did_you_mean
from neurenix.chips.generations import GENERATIONS, Generation

_PLANE_TOPOLOGIES = {
    1: (1, 1),
    4: (2, 2),
    8: (2, 4),
    16: (4, 4),
    32: (4, 8),
    64: (8, 8),
    128: (8, 16),
    256: (16, 16),
    512: (16, 32),
    1024: (32, 32),
}
_SMALL_SPACE_TOPOLOGIES = {
    1: (1, 1, 1),
    4: (2, 2, 1),
    8: (2, 2, 2),
    16: (2, 2, 4),
    32: (2, 4, 4),
}
_CUBE_CHIPS = 64
_EXAMPLE_CHIPS = {2: 8, 3: 4}  # number of ICI dimensions → chips of the slice in examples
# Common names that no tool accepts → what is probably meant.
_SAID_INSTEAD = {"v7x": "tpu7x", "7x": "tpu7x", "v7": "tpu7x", "tpu7": "tpu7x", "tpuv7x": "tpu7x"}
# libtpu's name of v5p, with a colon and a topology; with a number, v5e is meant as often.
_TWO_GENERATIONS = "v5"

# The largest published run joined 199 slices (50,944 chips of v5e, Google Cloud, 2023).
_MOST_SLICES = 1024

# re.ASCII: \d matches only 0 to 9, not the digits of other scripts.
_MANY = re.compile(r"^(?P<slices>\d+)\s*x\s*(?=[a-z])", re.ASCII)
_NAME = re.compile(r"^(?P<generation>[a-z0-9-]*[a-z0-9])[-:](?P<size>\d+(?:x\d+)*)$", re.ASCII)
_GRID = re.compile(r"^\d+(x\d+)+$", re.ASCII)
_COUNT_TIMES_SLICES = re.compile(r"^(?P<one>.+-\d+)x(?P<slices>\d+)$", re.ASCII)


@dataclass(frozen=True)
class Slice:
    """One slice, or several equal slices joined over DCN.

    Attributes:
        name: the canonical name, such as ``"v5e-8"`` or ``"2x v6e-256"``.
        generation: of its chips.
        topology: chips along each axis of one slice.
        num_chips: of all slices together.
        num_devices: ``jax.Device`` objects of all slices together.
        num_hosts: machines of all slices together.
        chips_per_host_bounds: the block of chips of one host, three numbers.
        num_slices: number of slices joined over DCN.
        wraps: for each axis, whether ICI closes into a ring. Without a ring, a collective along the
            axis takes twice as long.
        topology_name: libtpu's name of one slice, such as ``"v5e:2x4"``.
    """

    name: str
    generation: Generation
    topology: tuple[int, ...]
    num_chips: int
    num_devices: int
    num_hosts: int
    chips_per_host_bounds: tuple[int, int, int]
    num_slices: int
    wraps: tuple[bool, ...]
    topology_name: str

    @property
    def devices_per_chip(self) -> int:
        """Two on v2, v3 and tpu7x, else one."""
        return self.generation.devices_per_chip

    @property
    def chips_per_slice(self) -> int:
        """Chips of one of the slices."""
        return self.num_chips // self.num_slices

    @property
    def devices_per_slice(self) -> int:
        """Devices of one of the slices."""
        return self.num_devices // self.num_slices

    @property
    def chips_per_host(self) -> int:
        """Chips attached to one machine."""
        return prod(self.chips_per_host_bounds)

    @property
    def gke_topology(self) -> str:
        """Value of the node label ``cloud.google.com/gke-tpu-topology``."""
        return "x".join(map(str, self.topology))

    @property
    def gke_machine_type(self) -> str | None:
        """Machine type of one host on GKE, or ``None`` if GKE has none."""
        return self.generation.gke_machine_types.get(self.chips_per_host)

    def coordinates(self, device_index: int) -> tuple[int, ...]:
        """Chip coordinates of a device, in libtpu's order: host by host, the first axis fastest.

        Example:
            >>> found = nx.chips.resolve("v5e-16")
            >>> [found.coordinates(index) for index in range(5)]
            [(0, 0), (1, 0), (0, 1), (1, 1), (2, 0)]
        """
        chip = device_index % self.devices_per_slice // self.devices_per_chip
        host, chip = divmod(chip, self.chips_per_host)
        position = []
        for size, held in zip(self.topology, self.chips_per_host_bounds, strict=False):
            host, along = divmod(host, size // held)
            chip, inside = divmod(chip, held)
            position.append(along * held + inside)
        return tuple(position)

    def __str__(self) -> str:
        return self.name


def resolve(name: str | Slice) -> Slice:
    """Return the slice for a name. Case does not matter.

    Accepts retail names (``"v5litepod-8"``, ``"v5p-256"``), MaxText's (``"v5e-8"``,
    ``"tpu7x-128"``), xpk's and GKE's (``"tpu7x-4x4x8"``, ``"tpu-v6e-slice:4x4"``,
    ``"ct5lp-hightpu-8t"``), libtpu's (``"v5p:4x4x4"``), and several slices (``"2x v6e-256"``).

    Args:
        name: of the slice; a ``Slice`` is returned unchanged.

    Raises:
        UnknownNameError: unknown slice; the message suggests similar names.
        ArgumentTypeError: ``name`` is neither a string nor a ``Slice``.

    Example:
        >>> nx.chips.resolve("v5p-256").topology_name, nx.chips.resolve("v6e-256").num_chips
        ('v5p:4x4x8', 256)
        >>> nx.chips.resolve("v5litepod-8") == nx.chips.resolve("v5e:2x4")
        True
        >>> nx.chips.resolve("2x v6e-256").num_devices
        512
    """
    if isinstance(name, Slice):
        return name
    if not isinstance(name, str):
        raise ArgumentTypeError(
            f'A slice is named by a string such as "v5e-8"; got {type(name).__name__}.'
        )
    return _resolve(name.strip().lower(), name)


@cache
def known_slices() -> tuple[str, ...]:
    """Return the canonical names of all listed single slices, generation by generation.

    Example:
        >>> nx.chips.known_slices()[:3]
        ('v2-2', 'v2-8', 'v2-16')
    """
    names = []
    for generation in GENERATIONS.values():
        names += [f"{generation.name}-{_count(generation, chips)}" for chips in _listed(generation)]
    return tuple(names)


def _resolve(text: str, asked: str) -> Slice:
    many = _MANY.match(text)
    num_slices = int(many["slices"]) if many else 1
    single = text[many.end() :] if many else text
    if num_slices < 1:
        raise UnknownNameError(f"{asked!r} asks for no slice at all; write for example '2x v5e-8'.")
    if num_slices > _MOST_SLICES:
        raise UnknownNameError(
            f"{asked!r} asks for {num_slices:,} slices; at most {_MOST_SLICES:,} can be asked for."
        )
    generation, topology = _parse(single, asked)
    return _build(generation, topology, num_slices)


def _parse(text: str, asked: str) -> tuple[Generation, tuple[int, ...]]:
    for generation in GENERATIONS.values():
        for chips, machine in generation.gke_machine_types.items():
            if text == machine:
                return generation, _of_chips(generation, chips, asked)
    match = _NAME.match(text)
    generation = _generation_of(match["generation"]) if match else None
    if match is None or generation is None:
        raise _unknown(asked, text)
    if _GRID.match(match["size"]):
        grid = _of_grid(generation, match["size"], asked)
        if ":" not in text and not _is_listed(generation, grid) and _several_meant(asked):
            raise UnknownNameError(
                f"{asked!r} is no slice that is listed.{_several_meant(asked)} One slice with its "
                f"chips in such a grid is '{generation.topology_prefix}:{match['size']}'."
            )
        return generation, grid
    if ":" in text:
        raise UnknownNameError(
            f"{asked!r} needs the chips along each axis after the colon, such as "
            f"'{generation.topology_prefix}:{'x'.join('2' * generation.ici_dims)}'."
        )
    count = int(match["size"])
    if match["generation"] == _TWO_GENERATIONS:
        raise _ambiguous(asked, count)
    unit = _count(generation, 1)
    if count % unit:
        raise _unknown_size(generation, asked, count)
    return generation, _of_chips(generation, count // unit, asked)


def _generation_of(text: str) -> Generation | None:
    for generation in GENERATIONS.values():
        if text in (generation.name, *generation.aliases, generation.gke_accelerator):
            return generation
    return None


def _count(generation: Generation, chips: int) -> int:
    """Return the number in the retail name of a slice of ``chips`` chips."""
    per_chip = {"TensorCores": generation.cores_per_chip, "chips": 1}
    return chips * per_chip.get(generation.counts, generation.devices_per_chip)


@cache
def _listed(generation: Generation) -> tuple[int, ...]:
    """Return the chips of every slice that can be named by a number."""
    if generation.ici_dims == 2:
        return tuple(n for n in _PLANE_TOPOLOGIES if n <= generation.max_slice_chips)
    cubes = range(_CUBE_CHIPS, generation.max_slice_chips + 1, _CUBE_CHIPS)
    return (*_SMALL_SPACE_TOPOLOGIES, *cubes)


def _of_chips(generation: Generation, chips: int, asked: str) -> tuple[int, ...]:
    if chips not in _listed(generation):
        raise _unknown_size(generation, asked, _count(generation, chips))
    if generation.ici_dims == 2:
        return _PLANE_TOPOLOGIES[chips]
    if chips in _SMALL_SPACE_TOPOLOGIES:
        return _SMALL_SPACE_TOPOLOGIES[chips]
    return _most_compact(chips // _CUBE_CHIPS)


def _most_compact(cubes: int) -> tuple[int, int, int]:
    """Return the box of 4x4x4 cubes with the least surface, axes ascending."""
    boxes = [
        (a, b, cubes // (a * b))
        for a in range(1, cubes + 1)
        if a**3 <= cubes and cubes % a == 0
        for b in range(a, cubes // a + 1)
        if b * b <= cubes // a and cubes // a % b == 0
    ]
    a, b, c = min(boxes, key=lambda box: box[0] * box[1] + box[1] * box[2] + box[0] * box[2])
    return 4 * a, 4 * b, 4 * c


def _of_grid(generation: Generation, text: str, asked: str) -> tuple[int, ...]:
    grid = tuple(int(size) for size in text.split("x"))
    if len(grid) != generation.ici_dims:
        raise UnknownNameError(
            f"{asked!r} has {len(grid)} axes; chips of {generation.name} are joined in "
            f"{generation.ici_dims}, such as "
            f"'{generation.topology_prefix}:{'x'.join('4' * generation.ici_dims)}'."
            f"{_several_meant(asked)}"
        )
    if prod(grid) < 1 or prod(grid) > generation.max_slice_chips:
        raise UnknownNameError(
            f"{asked!r} is {prod(grid)} chips; slices of {generation.name} have 1 to "
            f"{generation.max_slice_chips}.{_several_meant(asked)}"
        )
    if prod(grid) > 1 and (grid[0] % 2 or grid[1] % 2):
        raise UnknownNameError(
            f"{asked!r} cannot be divided into hosts of 2x2 chips; the first two axes must be even."
            f"{_several_meant(asked)}"
        )
    return grid


def _is_listed(generation: Generation, grid: tuple[int, ...]) -> bool:
    """Return whether a slice of this grid can be named by a number."""
    chips = prod(grid)
    return chips in _listed(generation) and _of_chips(generation, chips, "") == grid


def _build(generation: Generation, topology: tuple[int, ...], num_slices: int) -> Slice:
    chips = prod(topology)
    bounds = _host_bounds(generation, topology)
    grid = "x".join(map(str, topology))
    listed = _is_listed(generation, topology)
    single = (
        f"{generation.name}-{_count(generation, chips)}" if listed else f"{generation.name}:{grid}"
    )
    return Slice(
        name=single if num_slices == 1 else f"{num_slices}x {single}",
        generation=generation,
        topology=topology,
        num_chips=chips * num_slices,
        num_devices=chips * generation.devices_per_chip * num_slices,
        num_hosts=chips // prod(bounds) * num_slices,
        chips_per_host_bounds=bounds,
        num_slices=num_slices,
        wraps=_wraps(generation, topology),
        topology_name=f"{generation.topology_prefix}:{grid}",
    )


def _host_bounds(generation: Generation, topology: tuple[int, ...]) -> tuple[int, int, int]:
    if prod(topology) == 1:
        return (1, 1, 1)
    if prod(topology) == 8 and generation.chips_per_host == 8 and 4 in topology:
        return (topology[0], topology[1], 1)
    return (2, 2, 1)


def _wraps(generation: Generation, topology: tuple[int, ...]) -> tuple[bool, ...]:
    if generation.ici_dims == 3:
        return (all(size % 4 == 0 for size in topology),) * 3
    return tuple(size == generation.pod_topology[0] for size in topology)


def _unknown_size(generation: Generation, asked: str, count: int) -> UnknownNameError:
    sizes = [_count(generation, chips) for chips in _listed(generation)]
    below = [size for size in sizes if size < count][-1:]
    above = [size for size in sizes if size > count][:1]
    choices = " or ".join(f"'{generation.name}-{size}'" for size in below + above)
    shown = ", ".join(map(str, sizes[:10])) + (f", … {sizes[-1]}" if len(sizes) > 10 else "")
    return UnknownNameError(
        f"There is no slice {asked!r}. Did you mean {choices}? The number in a name of "
        f"{generation.name} counts {generation.counts}: {shown}."
    )


def _ambiguous(asked: str, count: int) -> UnknownNameError:
    meant = [
        f"'{generation.name}-{count}'"
        for generation in (GENERATIONS["v5e"], GENERATIONS["v5p"])
        if count in [_count(generation, chips) for chips in _listed(generation)]
    ]
    said = f" Did you mean {' or '.join(meant)}?" if meant else ""
    return UnknownNameError(
        f"There is no slice {asked!r}: v5 is either v5e, whose number counts chips, or v5p, whose "
        f"number counts TensorCores.{said}"
    )


def _several_meant(asked: str) -> str:
    """Return a suggestion if a number of slices was written as a topology, else an empty string."""
    match = _COUNT_TIMES_SLICES.match(asked.strip().lower())
    if match is None:
        return ""
    try:
        meant = _resolve(f"{match['slices']}x {match['one']}", asked)
    except UnknownNameError:
        return ""
    return f" Did you mean '{meant.name}'?"


def _unknown(asked: str, text: str) -> UnknownNameError:
    of_gke = next((g for g in GENERATIONS.values() if g.gke_accelerator == text), None)
    if of_gke is not None:
        grid = "x".join(map(str, _of_chips(of_gke, _EXAMPLE_CHIPS[of_gke.ici_dims], asked)))
        return UnknownNameError(
            f"{asked!r} names the chip and not the number. Write the topology after a colon, "
            f"such as '{text}:{grid}'."
        )
    match = _NAME.match(text)
    meant = _SAID_INSTEAD.get(match["generation"]) if match else None
    if match and meant:
        separator = ":" if ":" in text else "-"
        return UnknownNameError(
            f"There is no slice named {asked!r}. Did you mean '{meant}{separator}{match['size']}'?"
        )
    spelled = {
        f"{alias}-{_count(generation, chips)}"
        for generation in GENERATIONS.values()
        for alias, chips in product(
            (generation.name, *generation.aliases), _listed(generation)[:10]
        )
        if alias != _TWO_GENERATIONS
    }
    return UnknownNameError(
        f"There is no slice named {asked!r}.{did_you_mean(text, sorted(spelled))} Names look like "
        "'v5e-8', 'v5litepod-8', 'v5p-256', 'tpu7x-4x4x8', 'v5e:2x4' or '2x v6e-256'; generations: "
        f"{', '.join(GENERATIONS)}."
    )
