"""Callbacks that write files: weights, a table of numbers, TensorBoard events.

With several processes, process 0 writes them. Does not own the format of weights
(``neurenix.checkpoint``) or of a trainer's state (``trainer_checkpoint.py``).
"""

from __future__ import annotations

import csv
import math
import os
import string
import time
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from neurenix._core.errors import ArgumentError, CheckpointError, MissingExtraError
from neurenix._core.files import check_writable
from neurenix._core.number_checks import check_number
from neurenix._processes import is_first
from neurenix.checkpoint.file_formats import check_name
from neurenix.checkpoint.weights import save_weights
from neurenix.train.callback import Callback
from neurenix.train.callbacks import Monitor
from neurenix.train.ema import swapped_for


class ModelCheckpoint(Monitor):
    """Write the weights, or the trainer's whole state, after every epoch or the best so far.

    Args:
        path: a safetensors file; ``{epoch}`` and names of the logs are filled in, for example
            ``"weights-{epoch:02d}-{val_loss:.3f}.safetensors"``. Epochs are numbered from 1, as
            progress shows them.
        monitor: the number that ``save_best_only`` compares.
        mode: see ``Monitor``.
        save_best_only: write only when the number is the best so far.
        save_weights_only: write the weights only, for ``model.load``. False writes the trainer's
            state (``Trainer.save``), about three times the size with Adam: to continue from
            ``run-03``, build model and trainer as before, call ``trainer.load("run-03…")`` and
            ``fit`` with ``initial_epoch=3`` and the same callbacks. From weights only, training
            starts with new moments, and schedules at step 0.
        initial_value_threshold: with ``save_best_only``, the number that the first file must
            improve on.

    Attributes:
        saved: the files written, in order.

    Raises:
        ArgumentError: ``path`` cannot be formatted, or has the suffix of another format.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        monitor: str = "val_loss",
        mode: str = "auto",
        save_best_only: bool = False,
        save_weights_only: bool = True,
        initial_value_threshold: float | None = None,
    ) -> None:
        super().__init__(monitor, mode=mode)
        if initial_value_threshold is not None:
            check_number("The argument `initial_value_threshold`", initial_value_threshold)
            self.best = float(initial_value_threshold)
        self.path, self.save_best_only = os.fspath(path), save_best_only
        self.save_weights_only = save_weights_only
        self.saved: list[Path] = []
        check_name(self._example())

    def watched(self) -> tuple[str, ...]:
        """Return the names in the path, and the monitored number."""
        return (*self._names(), *((self.monitor,) if self.save_best_only else ()))

    def on_train_begin(self) -> None:
        """Check that the first file can be written.

        Raises:
            CheckpointError: it cannot be written.
        """
        super().on_train_begin()
        what = "weights" if self.save_weights_only else "trainer's state"
        check_writable(self._example(), error=CheckpointError, what=what)

    def on_epoch_end(self, epoch: int, logs: Mapping[str, float]) -> None:
        """Write the file, completely or not at all."""
        if self.save_best_only and not self.improved(logs):
            return
        target = self._filled(epoch + 1, logs)
        self.saved.append(target)  # before, so that the file says it
        try:
            if self.save_weights_only:
                with swapped_for("checkpoints", self.trainer.callbacks):
                    save_weights(self.model, target)
            else:
                self.trainer.save(target)
        except BaseException:
            self.saved.pop()
            raise

    def state(self) -> dict[str, Any]:
        """Return the best number, and the files written."""
        return super().state() | {"saved": [str(path) for path in self.saved]}

    def load_state(self, state: dict[str, Any]) -> None:
        """Continue from the best number of an earlier run, if it had one."""
        if not math.isnan(state["best"]):
            super().load_state(state)
        self.saved = [Path(path) for path in state["saved"]]

    def _example(self) -> Path:
        """Return the path of the first epoch, with numbers of 0."""
        return self._filled(1, dict.fromkeys(self._names(), 0.0))

    def _names(self) -> list[str]:
        try:
            fields = [field for _, field, _, _ in string.Formatter().parse(self.path)]
        except ValueError as error:
            raise ArgumentError(f"ModelCheckpoint: {self.path!r} is malformed: {error}.") from error
        return [name for name in fields if name and name != "epoch"]

    def _filled(self, number: int, logs: Mapping[str, float]) -> Path:
        try:
            return Path(self.path.format(**{**logs, "epoch": number}))
        except (KeyError, IndexError) as error:
            raise ArgumentError(
                f"ModelCheckpoint: {self.path!r} asks for {error}, which the logs do not have: "
                f"epoch, {', '.join(logs)}."
            ) from error
        except (ValueError, TypeError, AttributeError) as error:
            raise ArgumentError(
                f"ModelCheckpoint: {self.path!r} cannot be filled in: {error}. Write numbers as "
                "{epoch:02d} and {loss:.3f}."
            ) from error


class CSVLogger(Callback):
    """Write one row of numbers for each epoch to a CSV file, readable while training runs.

    Args:
        path: the file.
        append: add rows to an existing file instead of replacing it. It must be a file of
            CSVLogger, with a column for every number.

    Training that continues from a file of ``Trainer.save`` also continues the table, with
    ``append`` or not: after the row that was last when the trainer was saved.
    """

    def __init__(self, path: str | os.PathLike[str], *, append: bool = False) -> None:
        self.path, self.append = Path(path), append
        self._names: list[str] | None = None
        self._found = False  # the columns are those of a file that was there
        self._replaces = False  # the file that is there is still to be emptied

    def on_train_begin(self) -> None:
        """Create the file, or read the columns of the existing one.

        Raises:
            ArgumentError: the file cannot be written, or is not a table of CSVLogger.
        """
        self._names, self._replaces = None, not self.append
        if not _writes(self):
            return
        with self._explained():
            check_writable(self.path)
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._found = self.append and self.path.exists() and self.path.stat().st_size > 0
            if self._found:
                self._names = self._header()
            with self.path.open("a", encoding="utf-8"):
                pass  # what cannot be written is an error now, not after the first epoch

    def state(self) -> dict[str, Any]:
        """Return the length of the file and its checksum."""
        with self._explained():
            there = self.path.exists() and not self._replaces
            data = self.path.read_bytes() if there else b""
        return {"bytes": len(data), "crc32": zlib.crc32(data)}

    def load_state(self, state: dict[str, Any]) -> None:
        """Continue the file, without the rows that were written after the state was saved.

        If the start of the file has changed, it is replaced or appended to, as in a new run.
        """
        if not _writes(self):
            return
        with self._explained():
            data = self.path.read_bytes()[: state["bytes"]]
            if (len(data), zlib.crc32(data)) != (state["bytes"], state["crc32"]):
                return
            os.truncate(self.path, len(data))
            self._replaces = self._found = False
            self._names = self._header() if data else None

    def on_epoch_begin(self, epoch: int) -> None:
        """Empty the file of an earlier run."""
        if self._replaces and _writes(self):
            with self._explained(), self.path.open("w", encoding="utf-8"):
                self._replaces = False

    def on_epoch_end(self, epoch: int, logs: Mapping[str, float]) -> None:
        """Add a row.

        Raises:
            ArgumentError: the existing file lacks a column, or cannot be written.
        """
        if not _writes(self):
            return
        row = {"epoch": epoch, **logs}
        missing = [name for name in row if self._names is not None and name not in self._names]
        if self._found and missing:
            raise ArgumentError(
                f"CSVLogger: {self.path} has the columns {', '.join(self._names or ())}, and none "
                f"for {', '.join(missing)}. Take another file, or append=False."
            )
        with self._explained(), self.path.open("a", newline="", encoding="utf-8") as file:
            if self._names is None:
                self._names = list(row)
                csv.writer(file).writerow(self._names)
            writer = csv.DictWriter(file, self._names, restval="", extrasaction="ignore")
            writer.writerow(row)

    def _header(self) -> list[str]:
        """Return the columns of the existing file, and end its last line."""
        data = self.path.read_bytes()
        first = data.splitlines()[0]
        try:
            names = next(csv.reader([first.decode()]))
        except (UnicodeDecodeError, csv.Error, StopIteration):
            names = []
        if names[:1] != ["epoch"] or len(set(names)) < len(names):
            raise ArgumentError(
                f"CSVLogger: {self.path} is damaged, or none of CSVLogger's: its first line is "
                f"{first[:80]!r}, expected 'epoch' and names of numbers. Take another file, or "
                "append=False, which replaces it."
            )
        if not data.endswith(b"\n"):
            with self.path.open("ab") as file:
                file.write(b"\r\n")
        return names

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise ArgumentError(f"CSVLogger: {self.path} cannot be written: {error}.") from error


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
        self._next = 0  # the number of the epoch after the last one written
        self._purge: int | None = None

    def state(self) -> dict[str, Any]:
        """Return the number of the next epoch."""
        return {"next": self._next}

    def load_state(self, state: dict[str, Any]) -> None:
        """Continue from an earlier run; its points from that epoch on are hidden."""
        self._next = self._purge = state["next"]

    def on_train_begin(self) -> None:
        """Reset for a new run, and check that the files can be written.

        Raises:
            ArgumentError: they cannot be written.
        """
        self._next, self._purge = 0, None
        for part in ("train", "validation"):
            check_writable(self.directory / part / "events", what="TensorBoard events")

    def on_epoch_end(self, epoch: int, logs: Mapping[str, float]) -> None:
        """Write one point of each curve; values that are not numbers are skipped."""
        self._next = epoch + 1
        if not _writes(self):
            return
        for name, value in logs.items():
            try:
                point = float(value)
            except (TypeError, ValueError):  # a callback's: a word, or an array
                continue
            part = "validation" if name.startswith("val_") else "train"
            if part not in self._writers:
                # tensorboardX names files by the second, and would empty that of a fit just before.
                self._writers[part] = self._make_writer(
                    str(self.directory / part),
                    purge_step=self._purge,
                    filename_suffix=f".{time.time_ns()}",
                )
            self._writers[part].add_scalar(f"epoch_{name.removeprefix('val_')}", point, epoch)
        for writer in self._writers.values():
            writer.flush()

    def on_train_end(self) -> None:
        """Close the files."""
        for writer in self._writers.values():
            writer.close()
        self._writers.clear()


def _writes(callback: Callback) -> bool:
    """Return whether this process writes files: process 0."""
    return is_first() or callback.trainer.strategy.state_sharding.is_fully_addressable
