"""All names of the generations."""

from __future__ import annotations

from neurenix._core.errors import ArgumentTypeError, unknown_name
from neurenix.chips._generation_data import RECORDS

_NAMES: dict[str, str] = {
    alias: record["name"] for record in RECORDS for alias in (record["name"], *record["aliases"])
}


def canonical(name: str) -> str:
    """Return the package's name for any name of a generation; case does not matter.

    Raises:
        ArgumentTypeError: ``name`` is not a string.
        UnknownNameError: unknown generation.

    Example:
        >>> canonical("v5litepod"), canonical("Trillium")
        ('v5e', 'v6e')
    """
    if not isinstance(name, str):
        raise ArgumentTypeError(f"A TPU generation is a name, such as 'v5e'; got {name!r}.")
    found = _NAMES.get(name.strip().lower())
    if found is None:
        raise unknown_name("TPU generation", name, _NAMES)
    return found
