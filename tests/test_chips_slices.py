"""Every kind of slice name, and what each means."""

from __future__ import annotations

import pickle

import pytest

from neurenix import chips
from neurenix._core.errors import ArgumentTypeError, UnknownNameError

pytestmark = pytest.mark.pure


def _cubes(prefix: str) -> list[tuple[str, str]]:
    grids = ["2x2x1", "2x2x2", "2x2x4", "2x4x4", "4x4x4", "4x4x8", "4x8x8", "8x8x8", "8x8x16"]
    return [(f"{prefix}-{8 * 2**i}", grid) for i, grid in enumerate(grids)]


PUBLISHED = [
    *_cubes("v4"),
    ("v4-384", "4x4x12"),
    ("v4-1536", "8x8x12"),
    ("v4-4096", "8x16x16"),
    *_cubes("v5p"),
    ("v5p-12288", "16x16x24"),
    ("tpu7x-2", "1x1x1"),
    *_cubes("tpu7x"),
    ("tpu7x-768", "4x8x12"),
    ("tpu7x-1152", "4x12x12"),
    ("tpu7x-3072", "8x12x16"),
    ("tpu7x-5376", "8x12x28"),
    ("tpu7x-6912", "12x12x24"),
    ("tpu7x-9216", "12x16x24"),
    ("tpu7x-11520", "12x20x24"),
    ("tpu7x-17920", "16x20x28"),
    ("tpu7x-18432", "16x24x24"),
    *[
        (f"{prefix}-{chips}", grid)
        for prefix in ("v5e", "v5litepod", "v6e")
        for chips, grid in [
            (1, "1x1"),
            (4, "2x2"),
            (8, "2x4"),
            (16, "4x4"),
            (32, "4x8"),
            (64, "8x8"),
            (128, "8x16"),
            (256, "16x16"),
        ]
    ],
    ("v2-8", "2x2"),
    ("v2-512", "16x16"),
    ("v3-8", "2x2"),
    ("v3-32", "4x4"),
    ("v3-2048", "32x32"),
]


@pytest.mark.parametrize(("name", "grid"), PUBLISHED)
def test_topology_is_the_published_one(name: str, grid: str) -> None:
    found = chips.resolve(name)
    assert "x".join(map(str, found.topology)) == grid
    assert found.topology_name == f"{found.generation.topology_prefix}:{grid}"


@pytest.mark.parametrize(
    ("name", "num_chips", "num_devices"),
    [
        ("v2-8", 4, 8),
        ("v3-8", 4, 8),
        ("v4-8", 4, 4),
        ("v5p-256", 128, 128),
        ("v5p-12288", 6144, 6144),
        ("v5litepod-8", 8, 8),
        ("v5e-8", 8, 8),
        ("v6e-256", 256, 256),
        ("tpu7x-256", 128, 256),
        ("tpu7x-4x4x8", 128, 256),
        ("tpu7x-4x8x8", 256, 512),
        ("tpu7x:2x2x1", 4, 8),
        ("v5:4x4x4", 64, 64),
        ("2x v6e-256", 512, 512),
        ("4xv5p-8", 16, 16),
        ("2x tpu7x-2x2x1", 8, 16),
    ],
)
def test_what_the_number_counts(name: str, num_chips: int, num_devices: int) -> None:
    found = chips.resolve(name)
    assert (found.num_chips, found.num_devices) == (num_chips, num_devices)
    assert found.num_devices == found.num_chips * found.devices_per_chip
    assert found.num_hosts * found.chips_per_host == found.num_chips


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("v5litepod-8", "v5e:2x4"),
        ("V5E-8", "ct5lp-hightpu-8t"),
        ("tpu-v5-lite-podslice:4x4", "v5e-16"),
        ("tpu-v5p-slice:4x4x4", "v5p-128"),
        ("tpu-v6e-slice-2x4", " v6e-8 "),
        ("tpu-v4-podslice:2x2x1", "ct4p-hightpu-4t"),
        ("tpu7x-standard-4t", "tpu7x-8"),
        ("tpu7x-standard-1t", "tpu7x-2"),
        ("ct5p-hightpu-4t", "v5p-8"),
        ("ct6e-standard-1t", "v6e-1"),
        ("trillium-8", "v6e-8"),
        ("v5p:4x4x4", "v5:4x4x4"),
        ("2x v5litepod-16", "2xv5e-16"),
    ],
)
def test_names_of_one_slice_are_equal(one: str, other: str) -> None:
    assert chips.resolve(one) == chips.resolve(other)
    assert hash(chips.resolve(one)) == hash(chips.resolve(other))


@pytest.mark.parametrize(
    ("name", "bounds", "hosts"),
    [
        ("v5e-1", (1, 1, 1), 1),
        ("v5e-4", (2, 2, 1), 1),
        ("v5e-8", (2, 4, 1), 1),
        ("v6e:4x2", (4, 2, 1), 1),
        ("v5e-16", (2, 2, 1), 4),
        ("v4-16", (2, 2, 1), 2),
        ("v2-8", (2, 2, 1), 1),
        ("tpu7x-2", (1, 1, 1), 1),
        ("2x v5p-128", (2, 2, 1), 32),
    ],
)
def test_hosts(name: str, bounds: tuple[int, int, int], hosts: int) -> None:
    found = chips.resolve(name)
    assert (found.chips_per_host_bounds, found.num_hosts) == (bounds, hosts)


@pytest.mark.parametrize(
    ("name", "wraps"),
    [
        ("v5e-64", (False, False)),
        ("v5e-128", (False, True)),
        ("v6e-256", (True, True)),
        ("v4-64", (False, False, False)),
        ("v4-128", (True, True, True)),
        ("tpu7x-4x4x8", (True, True, True)),
        ("v3-1024", (False, True)),
    ],
)
def test_rings(name: str, wraps: tuple[bool, ...]) -> None:
    assert chips.resolve(name).wraps == wraps


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("v5e-9", "Did you mean 'v5e-8' or 'v5e-16'?"),
        ("v5p-7", "counts TensorCores"),
        ("v5litpod-8", "'v5litepod-8'"),
        ("v7x-8", "'tpu7x-8'"),
        ("7x:2x2x1", "Did you mean 'tpu7x:2x2x1'?"),
        ("tpu8t-8", "generations: v2, v3"),
        ("tpu7-8", "'tpu7x-8'"),
        ("v5e:3x3", "must be even"),
        ("v5e:2x3", "must be even"),
        ("1025x v5e-1", "at most 1,024"),
        ("v5e:2x4x1", "joined in 2"),
        ("v5p:2x2", "joined in 3"),
        ("v5e:32x32", "slices of v5e have 1 to 256"),
        ("v5e:8", "after the colon"),
        ("v5e:0x2", "0 chips"),
        ("0x v5e-8", "no slice at all"),
        ("", "Names look like"),
        ("banana", "Names look like"),
        ("v5-8", "v5p, whose number counts TensorCores. Did you mean 'v5e-8' or 'v5p-8'?"),
        ("2x V5-1", "Did you mean 'v5e-1'?"),
        ("v5-2048", "Did you mean 'v5p-2048'?"),
        ("v5-9", "v5 is either v5e"),
        ("tpu-v6e-slice", "Write the topology after a colon, such as 'tpu-v6e-slice:2x4'"),
        ("TPU-v5-lite-podslice", "such as 'tpu-v5-lite-podslice:2x4'"),
        ("tpu-v5p-slice", "such as 'tpu-v5p-slice:2x2x1'"),
        ("v6e-\u0668", "Names look like"),  # an Arabic eight
        ("\u0662x v6e-8", "Names look like"),
        ("v6e:\u0662x4", "Names look like"),
        ("1000000000x v6e-256", "at most 1,024"),
        ("v6e-256x2", "is 512 chips; slices of v6e have 1 to 256. Did you mean '2x v6e-256'?"),
        ("v5p-256x2", "joined in 3, such as 'v5p:4x4x4'. Did you mean '2x v5p-256'?"),
        ("v6e-1x3", "Did you mean '3x v6e-1'?"),
        (
            "v5e-8x2",
            "Did you mean '2x v5e-8'? One slice with its chips in such a grid is 'v5e:8x2'.",
        ),
    ],
)
def test_unknown_names_say_what_is_meant(name: str, says: str) -> None:
    with pytest.raises(UnknownNameError) as error:
        chips.resolve(name)
    assert says in str(error.value)


@pytest.mark.parametrize("name", ["v6e:256x2", "v6e-250x2", "v6e-256x9999"])
def test_several_slices_are_suggested_only_where_there_are_such(name: str) -> None:
    with pytest.raises(UnknownNameError) as error:
        chips.resolve(name)
    assert "Did you mean" not in str(error.value)


def test_as_many_slices_as_were_ever_joined() -> None:
    assert chips.resolve("199x v5e-256").num_chips == 50_944
    assert chips.resolve("1024x v5e-1").num_chips == 1024


def test_what_is_suggested_can_be_asked_for() -> None:
    with pytest.raises(UnknownNameError, match="'v5p-8'") as error:
        chips.resolve("v5-8x")
    assert "'v5-8'" not in str(error.value)


def test_a_number_is_not_a_name() -> None:
    with pytest.raises(ArgumentTypeError, match="v5e-8"):
        chips.resolve(8)


def test_every_listed_name_resolves_to_itself() -> None:
    names = chips.known_slices()
    assert len(names) > 200
    for name in names:
        assert chips.resolve(name).name == name
        assert chips.resolve(chips.resolve(name).topology_name).name == name


def test_coordinates_are_distinct_per_chip() -> None:
    found = chips.resolve("tpu7x-4x4x8")
    seen = [found.coordinates(index) for index in range(found.num_devices)]
    assert len(set(seen)) == found.num_chips
    assert seen[0] == seen[1] == (0, 0, 0)
    assert seen[-1] == (3, 3, 7)


def test_gke_terms() -> None:
    found = chips.resolve("v5p-256")
    assert found.generation.gke_accelerator == "tpu-v5p-slice"
    assert (found.gke_topology, found.gke_machine_type) == ("4x4x8", "ct5p-hightpu-4t")


def test_pickles() -> None:
    found = chips.resolve("2x v6e-256")
    again = pickle.loads(pickle.dumps(found))
    assert again == found
    assert again.generation is found.generation
