"""Tables and TensorBoard events: what is in the files, also after a second ``fit``."""

from __future__ import annotations

import csv
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import neurenix as nx
from neurenix.train import Trainer
from train_helpers import MLP, classification

pytestmark = pytest.mark.cpu8

X, Y = classification(48)
LOSS = nx.losses.SparseCategoricalCrossentropy(from_logits=True)


def fit(*callbacks: Any, epochs: int = 2, **options: Any) -> nx.History:
    trainer = Trainer(MLP(), optimizer="sgd", loss=LOSS)
    return trainer.fit(X, Y, epochs=epochs, callbacks=callbacks, **options)


def epochs_of(path: Path) -> list[str]:
    return [row["epoch"] for row in csv.DictReader(path.read_text().splitlines())]


@pytest.mark.parametrize("same", [True, False])
def test_a_table_begins_anew_with_every_fit(same: bool, tmp_path: Path) -> None:
    log = nx.callbacks.CSVLogger(tmp_path / "log.csv")
    fit(log)
    fit(log if same else nx.callbacks.CSVLogger(log.path))
    assert epochs_of(log.path) == ["0", "1"]


def test_a_number_that_comes_late_has_no_column(tmp_path: Path) -> None:
    def add(epoch: int, logs: Any) -> None:
        if epoch:
            logs["late"] = 1.0

    late, log = (
        nx.callbacks.LambdaCallback(on_epoch_end=add),
        nx.callbacks.CSVLogger(tmp_path / "log.csv"),
    )
    fit(late, log)
    assert log.path.read_text().startswith("epoch,loss\n")
    assert epochs_of(log.path) == ["0", "1"]


def points_of(folder: Path) -> list[tuple[int, str, float]]:
    """Return step, name and value of every point of the events in a folder."""
    from tensorboardX.proto.event_pb2 import Event

    points = []
    for path in sorted(folder.iterdir()):
        data = path.read_bytes()
        while data:
            length = int.from_bytes(data[:8], "little")
            event, data = Event.FromString(data[12 : 12 + length]), data[16 + length :]
            points += [(event.step, one.tag, one.simple_value) for one in event.summary.value]
    return points


def test_events_are_numbered_by_epoch(tmp_path: Path) -> None:
    pytest.importorskip("tensorboardX")
    history = fit(nx.callbacks.TensorBoard(tmp_path), epochs=3, validation_data=(X, Y))
    for part, name in (("train", "loss"), ("validation", "val_loss")):
        expected = [(epoch, "epoch_loss", value) for epoch, value in enumerate(history[name])]
        found = points_of(tmp_path / part)
        assert [point[:2] for point in found] == [point[:2] for point in expected]
        assert [point[2] for point in found] == pytest.approx(history[name], rel=1e-6)


def test_a_word_among_the_numbers_has_no_events(tmp_path: Path) -> None:
    pytest.importorskip("tensorboardX")

    class Note(nx.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: Mapping[str, float]) -> None:
            logs["note"] = "n0"

    fit(Note(), nx.callbacks.TensorBoard(tmp_path), epochs=1)
    assert [point[1] for point in points_of(tmp_path / "train")] == ["epoch_loss"]


def test_a_fit_in_the_same_second_keeps_the_events_of_the_one_before(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    tensorboard = pytest.importorskip("tensorboardX")
    now = time.time()
    monkeypatch.setattr(tensorboard.event_file_writer.time, "time", lambda: now)
    for _ in range(2):
        fit(nx.callbacks.TensorBoard(tmp_path), epochs=2)
    steps = [step for step, name, _ in points_of(tmp_path / "train") if name == "epoch_loss"]
    assert steps == [0, 1, 0, 1]
