"""The price of a chip per hour, by region and commitment.

The source files carry no date, so every price says where and when it was read. An unknown price is
None. ``neurenix.preflight.cost`` computes the cost of a run.
"""

from __future__ import annotations

from dataclasses import dataclass

from neurenix._core.errors import ArgumentTypeError, unknown_name
from neurenix.chips._names import canonical

_GPUHUNT = "dstackai/gpuhunt src/gpuhunt/resources/tpu_pricing.json @edc13c0f"
_SKYPILOT = "skypilot-catalog catalogs/v8/gcp/vms.csv @006059e"
_BOTH = f"{_GPUHUNT} and {_SKYPILOT}"
_READ = "2026-11"

COMMITMENTS = ("on-demand", "1-year", "3-year", "spot")
# Prefixes of Google Cloud's regions (cloud.google.com/compute/docs/regions-zones).
_AREAS = ("africa", "asia", "australia", "europe", "me", "northamerica", "southamerica", "us")


@dataclass(frozen=True, slots=True)
class Price:
    """The price of one chip for one hour.

    Per chip, not per device: v2, v3 and tpu7x have two devices per chip. ``as_of`` is the month in
    which ``source`` was read; the source itself is undated.
    """

    generation: str
    region: str
    commitment: str
    usd_per_chip_hour: float
    source: str
    as_of: str
    note: str = ""


def _entry(
    generation: str, region: str, commitment: str, usd: float, source: str = _BOTH, note: str = ""
) -> Price:
    return Price(generation, region, commitment, usd, source, _READ, note)


_SPOT_NOTE = "spot prices change; read once"

PRICES: tuple[Price, ...] = (
    _entry("v2", "us", "on-demand", 1.31, _GPUHUNT, "device 1.24 to 1.31; in a pod 1.50"),
    _entry("v3", "us", "on-demand", 2.20, _GPUHUNT, "device; in a pod 2.00"),
    _entry("v4", "us", "on-demand", 3.22, _GPUHUNT),
    _entry("v4", "us", "1-year", 2.0286, _GPUHUNT),
    _entry("v4", "us", "3-year", 1.449, _GPUHUNT),
    _entry("v4", "us", "spot", 0.966, _GPUHUNT, _SPOT_NOTE),
    _entry("v5e", "us", "on-demand", 1.20, _GPUHUNT),
    _entry("v5e", "europe-west4", "on-demand", 1.56, _GPUHUNT),
    _entry("v5e", "asia", "on-demand", 1.56, _GPUHUNT),
    _entry("v5e", "us", "1-year", 0.84, _GPUHUNT),
    _entry("v5e", "us", "3-year", 0.54, _GPUHUNT),
    _entry("v5e", "us", "spot", 0.60, _GPUHUNT, _SPOT_NOTE),
    _entry("v5p", "us", "on-demand", 4.20),
    _entry("v5p", "us-south1", "on-demand", 4.779),
    _entry("v5p", "us", "1-year", 2.94),
    _entry("v5p", "us", "3-year", 1.89),
    _entry("v5p", "us", "spot", 2.10, _BOTH, _SPOT_NOTE),
    _entry("v5p", "us-east5", "spot", 1.68, _BOTH, _SPOT_NOTE),
    _entry("v5p", "us-central1", "spot", 0.836, _BOTH, _SPOT_NOTE),
    _entry("v6e", "us", "on-demand", 2.70),
    _entry("v6e", "europe-west4", "on-demand", 2.97),
    _entry("v6e", "asia-northeast1", "on-demand", 3.24),
    _entry("v6e", "us", "1-year", 1.89),
    _entry("v6e", "us", "3-year", 1.22),
    _entry("v6e", "us-central1", "spot", 0.544, _BOTH, _SPOT_NOTE),
    _entry("v6e", "us-east1", "spot", 0.544, _BOTH, _SPOT_NOTE),
    _entry("v6e", "us-east5", "spot", 1.215, _BOTH, _SPOT_NOTE),
    _entry("v6e", "asia-southeast1", "spot", 0.363, _BOTH, _SPOT_NOTE),
)


def price(generation: str, region: str = "us", *, commitment: str = "on-demand") -> Price | None:
    """Return the list price of one chip, or ``None`` if no public price is known.

    A region without listed prices has those of its area: ``us-west1`` those of ``us``. If a region
    has its own on-demand price, discounts of its area do not apply to it; unlisted ones are
    unknown. There is no public price of tpu7x.

    Args:
        generation: any name of a generation, such as ``"v5e"`` or ``"v5litepod"``.
        region: ``"us"``, an area, or a Google Cloud region.
        commitment: ``"on-demand"``, ``"1-year"``, ``"3-year"`` or ``"spot"``.

    Raises:
        ArgumentTypeError: an argument is not a string.
        UnknownNameError: unknown generation or commitment, or a region outside all areas.

    Example:
        >>> nx.chips.price("v5e").usd_per_chip_hour
        1.2
        >>> nx.chips.price("v5p", "us-south1").usd_per_chip_hour
        4.779
        >>> nx.chips.price("v5p", "us-south1", commitment="3-year") is None
        True
        >>> nx.chips.price("tpu7x") is None
        True
    """
    generation = canonical(generation)
    for name, value in (("region", region), ("commitment", commitment)):
        if not isinstance(value, str):
            raise ArgumentTypeError(f"{name} must be a string; got {value!r}.")
    if commitment not in COMMITMENTS:
        raise unknown_name("commitment", commitment, COMMITMENTS)
    area = region.split("-")[0]
    if area not in _AREAS:
        listed = {entry.region for entry in PRICES}
        raise unknown_name("region", region, {*_AREAS, *listed})
    own = _listed(generation, region, commitment)
    if own is not None or area == region or _listed(generation, region, "on-demand"):
        return own
    return _listed(generation, area, commitment)


def _listed(generation: str, region: str, commitment: str) -> Price | None:
    for entry in PRICES:
        if (entry.generation, entry.region, entry.commitment) == (generation, region, commitment):
            return entry
    return None
