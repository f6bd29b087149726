"""Files that training writes and reads: their names, their places, and what others have written."""

from __future__ import annotations

import io
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import neurenix as nx
from neurenix import nn
from neurenix.train.progress import BarProgress, LineProgress, Progress, make_progress

pytestmark = pytest.mark.cpu8

X, Y = np.ones((8, 4), np.float32), np.ones((8, 1), np.float32)
FOREIGN = [
    *("m.h5", "M.H5", "m.hdf5", "m.weights.h5", "m.keras", "m.pt", "m.pth", "m.pth.tar", "m.bin"),
    *("m.ckpt", "m.onnx", "m.tflite", "m.pb", "m.npz", "m.npy", "m.pkl", "m.joblib", "m.msgpack"),
    *("m.gguf", "m.nxc", "deep/er/m.pt"),
]


def compiled() -> nn.Sequential:
    model = nn.Sequential(nn.Linear(4, 2), nn.ReLU(), nn.Linear(2, 1))
    model.compile("adam", "mse")
    return model


@pytest.mark.parametrize("name", FOREIGN)
def test_no_file_of_ours_gets_a_name_of_another_format(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    model = compiled()
    for save in (
        model.save,
        model.trainer.save,
        lambda path: nx.train.save_weights(model, path),
        nx.callbacks.ModelCheckpoint,
        lambda path: nx.callbacks.ModelCheckpoint(path, save_weights_only=False),
    ):
        with pytest.raises(nx.ArgumentError, match=r"safetensors files\. Take another name: '"):
            save(name)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["m.safetensors", "weights", "m.pt.safetensors", "m.best", "m.st"])
def test_other_names_are_the_users(name: str, tmp_path: Path) -> None:
    model, again = compiled(), compiled()
    model.save(tmp_path / name)
    again.load(tmp_path / name)
    np.testing.assert_array_equal(model(X), again(X))


def _archive(*names: str) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as file:
        for name in names:
            file.writestr(name, "x" * 100)
    return packed.getvalue()


def _numpy(save: Callable[..., None]) -> bytes:
    packed = io.BytesIO()
    save(packed, np.ones(3))
    return packed.getvalue()


WRITTEN = {
    "m.h5": (b"\x89HDF\r\n\x1a\n" + bytes(100), "an HDF5 file"),
    "no_suffix": (b"\x89HDF\r\n\x1a\n" + bytes(100), "an HDF5 file"),
    "m.keras": (_archive("metadata.json", "config.json", "model.weights.h5"), "Keras's archive"),
    "m.pt": (_archive("m/data.pkl", "m/data/0"), "PyTorch's archive"),
    "m.npz": (_numpy(np.savez), "NumPy's archive"),
    "m.npy": (_numpy(np.save), "NumPy's array"),
    "old.pt": (b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19." + bytes(50), "a pickle file"),
    "m.onnx": (b"\x08\x07\x12\x07pytorch\x1a\x05" + bytes(50), "an ONNX model"),
    "m.tflite": (b"\x1c\0\0\0TFL3" + bytes(50), "a TensorFlow Lite model"),
    "m.zip": (_archive("a.txt"), "a zip archive"),
}


@pytest.mark.parametrize("name", WRITTEN)
def test_a_file_of_another_program_is_named(name: str, tmp_path: Path) -> None:
    content, what = WRITTEN[name]
    (tmp_path / name).write_bytes(content)
    model = compiled()
    before = np.asarray(model(X))
    for load in (model.load, model.trainer.load):
        with pytest.raises(nx.CheckpointError, match=f"It is {what}.*reads and writes safetensors"):
            load(tmp_path / name)
    np.testing.assert_array_equal(model(X), before)


def test_a_folder_of_another_program_is_named(tmp_path: Path) -> None:
    with pytest.raises(nx.CheckpointError, match="It is a folder: name a file in it"):
        compiled().load(tmp_path)
    (tmp_path / "saved_model.pb").write_bytes(b"x")
    with pytest.raises(nx.CheckpointError, match="a TensorFlow SavedModel"):
        compiled().load(tmp_path)


TARGETS = {
    "weights": lambda path: nx.callbacks.ModelCheckpoint(path),
    "weights of epochs": lambda path: nx.callbacks.ModelCheckpoint(f"{path}/{{epoch:02d}}/w"),
    "state": lambda path: nx.callbacks.ModelCheckpoint(path, save_weights_only=False),
    "table": lambda path: nx.callbacks.CSVLogger(path),
    "events": lambda path: nx.callbacks.TensorBoard(path),
}


@pytest.mark.parametrize("path", ["file/x", "/proc/x", "/proc/a/b", "x" * 300])
@pytest.mark.parametrize("target", TARGETS)
def test_what_cannot_be_written_is_found_before_training(
    target: str, path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if target == "events":
        pytest.importorskip("tensorboardX")
    monkeypatch.chdir(tmp_path)
    Path("file").write_text("before")
    model, epochs = compiled(), []
    began = nx.callbacks.LambdaCallback(on_epoch_begin=epochs.append)
    with pytest.raises(nx.NeurenixError, match="cannot be written"):
        model.fit(X, Y, epochs=2, callbacks=[began, TARGETS[target](path)])
    assert not epochs and model.trainer.steps_made == 0
    assert Path("file").read_text() == "before" and list(tmp_path.iterdir()) == [tmp_path / "file"]


@pytest.mark.parametrize("target", ["weights", "state", "table"])
def test_a_folder_in_the_place_of_a_file_is_found_before_training(
    target: str, tmp_path: Path
) -> None:
    model = compiled()
    with pytest.raises(nx.NeurenixError, match="cannot be written.*it is a folder"):
        model.fit(X, Y, callbacks=TARGETS[target](tmp_path))
    assert model.trainer.steps_made == 0


def test_folders_are_made(tmp_path: Path) -> None:
    targets = [TARGETS[name](tmp_path / name / "a" / "b") for name in ("weights", "state", "table")]
    compiled().fit(X, Y, callbacks=targets)
    assert all((tmp_path / name / "a" / "b").is_file() for name in ("weights", "state", "table"))


def test_one_line_an_epoch_where_there_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    compiled().fit(X, Y, epochs=3, validation_data=(X, Y))
    lines = capsys.readouterr().out.splitlines()
    assert [line[:11] for line in lines] == ["Epoch 1/3  ", "Epoch 2/3  ", "Epoch 3/3  "]
    assert all("  loss " in line and "  val_loss " in line for line in lines)
    compiled().fit(X, Y, verbose=False)
    compiled().evaluate(X, Y)
    assert capsys.readouterr().out == ""


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("output", "variables", "kind"),
    [
        (io.StringIO(), {}, LineProgress),
        (Terminal(), {}, BarProgress),
        (Terminal(), {"TERM": "dumb"}, LineProgress),
        (Terminal(), {"CI": "true"}, LineProgress),
        (None, {}, Progress),
    ],
)
def test_what_shows_progress(
    output: io.StringIO | None,
    variables: dict[str, str],
    kind: type[Progress],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "stdout", output)
    progress = make_progress("auto")
    progress.close()
    assert type(progress) is kind
    assert type(make_progress(False)) is Progress


def test_a_reader_of_progress_that_has_gone_stops_no_training(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Gone(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError(32, "Broken pipe")

    monkeypatch.setattr(sys, "stdout", Gone())
    with pytest.warns(RuntimeWarning, match="Progress is shown no more.*Broken pipe"):
        history = compiled().fit(X, Y, epochs=3)
    assert history.epochs == [0, 1, 2]
