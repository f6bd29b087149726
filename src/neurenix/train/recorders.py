"""Callbacks that write files: weights, a table of numbers, TensorBoard events.

Owns the files' names and when they are written. It does not own the format of weights
(``weights.py``).
"""

from __future__ import annotations

import csv
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from neurenix._core.errors import ArgumentError, MissingExtraError
from neurenix.train.callbacks import Callback, Monitor
from neurenix.train.weights import save_weights


class ModelCheckpoint(Monitor):
    """Write the weights after every epoch, or after the best so far.

    Args:
        path: a safetensors file; ``{epoch}`` and names of the logs are filled in, for example
            ``"weights-{epoch:02d}-{val_loss:.3f}.safetensors"``.
        monitor: the number that ``save_best_only`` compares.
        mode: see ``Monitor``.
        save_best_only: write only when the number is the best so far.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        monitor: str = "val_loss",
        mode: str = "auto",
        save_best_only: bool = False,
    ) -> None:
        super().__init__(monitor, mode=mode)
        self.path, self.save_best_only = os.fspath(path), save_best_only
        self.saved: list[Path] = []

    def on_epoch_end(self, epoch: int, logs: Mapping[str, float]) -> None:
        """Write the file, completely or not at all."""
        if self.save_best_only and not self.improved(logs):
            return
        try:
            target = Path(self.path.format(epoch=epoch, **logs))
        except (KeyError, IndexError) as error:
            raise ArgumentError(
                f"ModelCheckpoint: {self.path!r} asks for {error}, which the logs do not have: "
                f"epoch, {', '.join(logs)}."
            ) from error
        save_weights(self.model, target)
        self.saved.append(target)


class CSVLogger(Callback):
    """Write one row of numbers for each epoch to a CSV file, readable while training runs.

    Args:
        path: the file.
        append: go on in a file that is there, instead of replacing it.
    """

    def __init__(self, path: str | os.PathLike[str], *, append: bool = False) -> None:
        self.path, self.append = Path(path), append
        self._names: list[str] | None = None

    def on_train_begin(self) -> None:
        """Begin the file, or find the columns of the one that is there."""
        self._names = None
        if self.append and self.path.exists() and self.path.stat().st_size:
            with self.path.open(newline="") as file:
                self._names = next(csv.reader(file))
        else:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.path.write_text("")

    def on_epoch_end(self, epoch: int, logs: Mapping[str, float]) -> None:
        """Add a row."""
        row = {"epoch": epoch, **logs}
        with self.path.open("a", newline="") as file:
            if self._names is None:
                self._names = list(row)
                csv.writer(file).writerow(self._names)
            writer = csv.DictWriter(file, self._names, restval="", extrasaction="ignore")
            writer.writerow(row)


class TensorBoard(Callback):
    """Write the numbers of every epoch as TensorBoard events.

    Args:
        directory: the runs' folder; training numbers go to ``train``, others to ``validation``.

    Raises:
        MissingExtraError: tensorboardX is not installed.
    """

    def __init__(self, directory: str | os.PathLike[str] = "logs") -> None:
        try:
            import tensorboardX
        except ImportError as error:
            raise MissingExtraError("tensorboardX", "tensorboard", "TensorBoard") from error
        self._make_writer = tensorboardX.SummaryWriter
        self.directory = Path(directory)
        self._writers: dict[str, Any] = {}

    def on_epoch_end(self, epoch: int, logs: Mapping[str, float]) -> None:
        """Write one point of each curve."""
        for name, value in logs.items():
            part = "validation" if name.startswith("val_") else "train"
            if part not in self._writers:
                self._writers[part] = self._make_writer(str(self.directory / part))
            self._writers[part].add_scalar(f"epoch_{name.removeprefix('val_')}", value, epoch)
        for writer in self._writers.values():
            writer.flush()

    def on_train_end(self) -> None:
        """Close the files."""
        for writer in self._writers.values():
            writer.close()
        self._writers.clear()
