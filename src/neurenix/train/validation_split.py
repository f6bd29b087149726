"""Hold out the last rows of arrays for validation (``validation_split``)."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from neurenix._core.errors import ArgumentError, DataError
from neurenix.data.columns import WIDE, as_columns
from neurenix.train.batch_sources import check_lists

Arrays = tuple[Any, Any, Any]


def hold_out(x: Any, y: Any, sample_weight: Any, fraction: float) -> tuple[Arrays, Arrays]:
    """Split arrays into the rows to train on and the last ``fraction`` of the rows.

    Args:
        x: an array of N rows, or dicts and tuples of these.
        y: the targets, in the same form.
        sample_weight: None, or N weights.
        fraction: of N, as Keras counts it: the first ``int(N · (1 - fraction))`` rows are kept.

    Returns:
        (x, y, sample_weight) of the rows to train on, and of the others.

    Raises:
        DataError: the numbers of rows differ, a part would be empty, or as ``check_lists``.
    """
    check_lists(x, y)
    named = {"x": x, "y": y, "sample_weight": sample_weight}
    given = {name: as_columns(v, name) for name, v in named.items() if v is not None}
    rows = given["x"].rows
    for name, columns in given.items():
        if columns.rows != rows:
            raise DataError(f"x has {rows} rows and {name} has {columns.rows}; they must match.")
    kept = int(rows * (1 - fraction))
    if not 0 < kept < rows:
        raise DataError(
            f"validation_split={fraction} of {rows} rows leaves {kept} to train on and "
            f"{rows - kept} to validate on; each needs one at least."
        )

    def part(which: slice) -> Arrays:
        whole = {name: c.structure.unflatten(c.leaves) for name, c in given.items()}
        cut = jax.tree.map(lambda leaf: _of_its_type(leaf[which]), whole)
        return cut["x"], cut.get("y"), cut.get("sample_weight")

    return part(slice(kept)), part(slice(kept, None))


def _of_its_type(rows: np.ndarray) -> Any:
    """Return 64-bit numbers as a ``jax.Array``, as they were given: NumPy's would be narrowed."""
    return jnp.asarray(rows) if rows.dtype in WIDE else rows


def check_arrays(is_arrays: bool, validation_data: Any) -> None:
    """Check the arguments beside ``validation_split``.

    Raises:
        ArgumentError: the data is not arrays, or there is ``validation_data``, too.
    """
    if validation_data is not None:
        raise ArgumentError("validation_split and validation_data were both given; give one.")
    if not is_arrays:
        raise ArgumentError(
            "validation_split takes the last rows of arrays, and this is a dataset. Divide it "
            "(take and skip), and give the other part as validation_data."
        )
