"""What a training run left behind: one row of numbers for each epoch.

Owns the record. It does not own progress on the screen (``progress.py``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from neurenix._core.output_encoding import shown


class History(Mapping[str, list[float]]):
    """Metric name → its value after each epoch; validation metrics begin with ``val_``.

    What a callback adds to the logs in ``on_epoch_end`` is in it too, as it is if no number.

    Attributes:
        epochs: the number of each epoch, from 0.

    Example:
        >>> history = nx.History()
        >>> history.append(0, {"loss": 0.5})
        >>> history["loss"], history.history
        ([0.5], {'loss': [0.5]})
    """

    def __init__(self) -> None:
        self.epochs: list[int] = []
        self._rows: dict[str, list[float]] = {}

    @property
    def history(self) -> dict[str, list[float]]:
        """The same as a plain dict, under the name that Keras users know."""
        return dict(self._rows)

    def append(self, epoch: int, logs: Mapping[str, float]) -> None:
        """Add the numbers of one epoch."""
        self.epochs.append(epoch)
        for name, value in logs.items():
            try:
                value = float(value)
            except (TypeError, ValueError):  # a callback's: a word, or an array
                pass
            self._rows.setdefault(name, []).append(value)

    def __getitem__(self, name: str) -> list[float]:
        return self._rows[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)

    def __repr__(self) -> str:
        numbers = {n: v[-1] for n, v in self._rows.items() if isinstance(v[-1], float)}
        last = ", ".join(f"{name}: {value:.4f}" for name, value in numbers.items())
        return shown(f"History({len(self.epochs)} epochs; last {last})")
