"""Recognise files of weights that other programs write, by suffix and by first bytes.

Owns the check that a safetensors file does not get the suffix of another format, and the message
about a file that is not safetensors. The format itself is ``safetensors_file.py``'s.
"""

from __future__ import annotations

import os
import zipfile
from pathlib import Path

from neurenix._core.errors import ArgumentError

_KERAS = "Keras's HDF5 file"
_TORCH = "PyTorch's pickle file"
_SUFFIXES = {
    **dict.fromkeys((".h5", ".hdf5"), _KERAS),
    ".keras": "Keras's archive",
    **dict.fromkeys((".pt", ".pth", ".pth.tar", ".bin"), _TORCH),
    ".ckpt": "TensorFlow's or Lightning's checkpoint",
    ".onnx": "an ONNX model",
    **dict.fromkeys((".tflite", ".lite"), "a TensorFlow Lite model"),
    **dict.fromkeys((".pb", ".pbtxt"), "a TensorFlow graph"),
    **dict.fromkeys((".npz", ".npy"), "NumPy's file of arrays"),
    **dict.fromkeys((".pkl", ".pickle", ".joblib", ".dill"), "Python's pickle file"),
    ".msgpack": "Flax's file of bytes",
    ".gguf": "llama.cpp's file",
    ".mlmodel": "a Core ML model",
    ".nxc": "a compiled program of nx.compile_for",
    ".json": "a JSON text",
    ".zip": "a zip archive",
}
_FIRST_BYTES = {
    b"\x89HDF\r\n\x1a\n": "an HDF5 file, as Keras writes ….h5",
    b"\x93NUMPY": "NumPy's array, ….npy",
    b"GGUF": "llama.cpp's file, ….gguf",
    b"\x1f\x8b": "a file packed by gzip",
    **dict.fromkeys(
        (b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05"),
        "a pickle file, as old versions of PyTorch write ….pt",
    ),
}
_MEMBERS = {  # the end of a name in a zip archive
    "data.pkl": "PyTorch's archive, ….pt",
    "model.weights.h5": "Keras's archive, ….keras",
    "executable.bin": "a compiled program: nx.load_compiled reads it",
    ".npy": "NumPy's archive of arrays, ….npz",
}
_IN_FOLDERS = {
    "saved_model.pb": "the folder of a TensorFlow SavedModel",
    "_CHECKPOINT_METADATA": "the folder of an Orbax checkpoint",
    "manifest.ocdbt": "the folder of an Orbax checkpoint",
}
_HELP = (
    "Neurenix reads and writes safetensors files. To take weights over from elsewhere, read them "
    "there as NumPy arrays, build the model here, and set each array: "
    "model.layers[0].kernel[...] = array."
)


def check_name(path: str | os.PathLike[str]) -> None:
    """Check that the name of a safetensors file does not have the suffix of another format.

    Raises:
        ArgumentError: the suffix belongs to another format; the message proposes a name.

    Example:
        >>> check_name("model.safetensors"), check_name("weights")
        (None, None)
    """
    name = Path(path).name
    found = [suffix for suffix in _SUFFIXES if name.lower().endswith(suffix)]
    if not found:
        return
    suffix = max(found, key=len)
    instead = Path(path).with_name(name[: -len(suffix)] + ".safetensors")
    raise ArgumentError(
        f"{os.fspath(path)!r} is the name of {_SUFFIXES[suffix]}, and Neurenix writes safetensors "
        f"files. Take another name: {str(instead)!r}."
    )


def described(path: Path) -> str:
    """Return what a file that is not safetensors is, and what to do; empty if unknown."""
    if path.is_dir():
        inside = [what for name, what in _IN_FOLDERS.items() if (path / name).exists()]
        return f"It is {inside[0]}. {_HELP}" if inside else "It is a folder: name a file in it."
    with path.open("rb") as file:
        first = file.read(16)
    what = next((what for start, what in _FIRST_BYTES.items() if first.startswith(start)), "")
    if first[4:8] == b"TFL3":
        what = "a TensorFlow Lite model"
    elif zipfile.is_zipfile(path):
        what = _archive(path)
    elif not what:
        suffix = path.suffix.lower()
        what = _SUFFIXES.get(suffix, "") and f"{_SUFFIXES[suffix]}, by its name"
    return f"It is {what}. {_HELP}" if what else ""


def _archive(path: Path) -> str:
    try:
        with zipfile.ZipFile(path) as file:
            names = file.namelist()
    except zipfile.BadZipFile:
        return "a zip archive, and damaged"
    inside = [what for end, what in _MEMBERS.items() if any(n.endswith(end) for n in names)]
    return (inside or ["a zip archive"])[0]
