"""ONNX files and their tensors, read without trusting them.

A file may claim any shape and name any other file. Sizes are compared with the bytes that are there
before memory is taken, and external data is read only inside the model's own folder.
"""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

import numpy as np

from neurenix._core.errors import ArgumentTypeError, ConversionError
from neurenix.interop.onnx.extra import import_onnx

__all__ = ["MAX_ELEMENTS", "Tensors", "dtype_of", "read_proto"]

# Elements of one array that a file may ask for without bringing its bytes: 4 GiB of float32.
MAX_ELEMENTS = 2**30

# Elements of these types take less than a byte in a file.
_BITS = {"UINT4": 4, "INT4": 4, "FLOAT4E2M1": 4, "UINT2": 2, "INT2": 2}


def read_proto(model: Any) -> tuple[Any, Path | None]:
    """Return the ``ModelProto`` of a path, of bytes or of itself, and the folder of its files.

    Raises:
        ArgumentTypeError: ``model`` is none of these.
        ConversionError: the file is missing, truncated, or no ONNX model.
    """
    onnx = import_onnx("nx.from_onnx")
    if isinstance(model, onnx.ModelProto):
        return model, None
    if isinstance(model, (bytes, bytearray, memoryview)):
        return _parse(bytes(model), "These bytes are"), None
    if not isinstance(model, (str, os.PathLike)):
        raise ArgumentTypeError(
            "nx.from_onnx takes the path of an .onnx file, its bytes, or an onnx.ModelProto; got "
            f"{type(model).__name__}."
        )
    path = Path(model)
    if path.is_dir():
        raise ConversionError(f"{path} is a folder. Name the .onnx file inside.")
    try:
        data = path.read_bytes()
    except FileNotFoundError as error:
        raise ConversionError(f"There is no file {path}.") from error
    return _parse(data, f"{path} is"), path.parent


def _parse(data: bytes, subject: str) -> Any:
    onnx = import_onnx("nx.from_onnx")
    decode_error = import_onnx("nx.from_onnx", "google.protobuf.message").DecodeError
    proto = onnx.ModelProto()
    try:
        proto.ParseFromString(data)
    except (decode_error, RecursionError) as error:
        raise ConversionError(
            f"{subject} no ONNX model, or cut off: {len(data)} bytes that are no ModelProto."
        ) from error
    if not proto.HasField("graph") or not proto.opset_import:
        raise ConversionError(
            f"{subject} no ONNX model, or cut off: a ModelProto without a graph or without the "
            "versions of its operator sets."
        )
    _expect_text(proto, subject)
    return proto


def _expect_text(message: Any, subject: str) -> None:
    """Refuse names that are no UTF-8, which protobuf returns as bytes."""
    for field, value in message.ListFields():
        if field.type not in (field.TYPE_STRING, field.TYPE_MESSAGE):
            continue
        for each in [value] if isinstance(value, (str, bytes)) or not field.is_repeated else value:
            if field.type == field.TYPE_MESSAGE:
                _expect_text(each, subject)
            elif not isinstance(each, str):
                raise ConversionError(
                    f"{subject} no ONNX model, or damaged: its {field.name} {each!r} is no text."
                )


def dtype_of(element_type: int, what: str) -> np.dtype:
    """Return the NumPy dtype for a ``TensorProto.DataType``.

    Raises:
        ConversionError: there is none: an unknown number, or text.
    """
    onnx = import_onnx("nx.from_onnx")
    names = onnx.TensorProto.DataType
    if element_type not in names.values() or element_type == onnx.TensorProto.UNDEFINED:
        raise ConversionError(f"{what} has the unknown element type {element_type}.")
    return np.dtype(onnx.helper.tensor_dtype_to_np_dtype(element_type))


class Tensors:
    """Reads the tensors of one model.

    Args:
        folder: where files of external data are; None for a model that came without a path.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder

    def read(self, proto: Any) -> np.ndarray:
        """Return the values of a ``TensorProto``.

        Raises:
            ConversionError: its sizes, bytes or external file are not what they claim to be.
        """
        onnx = import_onnx("nx.from_onnx")
        what = f"The tensor {proto.name!r}" if proto.name else "A tensor"
        shape, dtype = tuple(proto.dims), dtype_of(proto.data_type, what)
        if any(size < 0 for size in shape):
            raise ConversionError(f"{what} claims the shape {shape}, which has a negative size.")
        count = math.prod(shape)
        kind = onnx.TensorProto.DataType.Name(proto.data_type)
        bits = _BITS.get(kind, 8 * dtype.itemsize)
        needed = -(-count * bits // 8)
        if kind == "STRING":
            self._expect(len(proto.string_data), count, what, shape, "strings")
            return np.array(list(proto.string_data), object).reshape(shape)
        if proto.data_location == onnx.TensorProto.EXTERNAL:
            raw = self._external(proto, what, needed)
        elif proto.HasField("raw_data"):
            raw = proto.raw_data
        else:
            return self._typed(proto, what, shape, count, bits)
        self._expect(len(raw), needed, what, shape, "bytes")
        plain = onnx.TensorProto(dims=shape, data_type=proto.data_type, raw_data=raw)
        return onnx.numpy_helper.to_array(plain)

    def _typed(
        self, proto: Any, what: str, shape: tuple[int, ...], count: int, bits: int
    ) -> np.ndarray:
        onnx = import_onnx("nx.from_onnx")
        field = onnx.helper.tensor_dtype_to_field(proto.data_type)
        given = len(getattr(proto, field))
        # Complex numbers take two entries, numbers of 4 and 2 bits share one.
        per_entry = {4: 2, 2: 4}.get(bits, 1)
        is_complex = "COMPLEX" in onnx.TensorProto.DataType.Name(proto.data_type)
        wanted = 2 * count if is_complex else -(-count // per_entry)
        self._expect(given, wanted, what, shape, "numbers")
        try:
            return onnx.numpy_helper.to_array(proto)
        except (ValueError, TypeError, OverflowError) as error:
            raise ConversionError(f"{what} cannot be read: {error}") from error

    def _expect(self, given: int, wanted: int, what: str, shape: tuple[int, ...], of: str) -> None:
        if given != wanted:
            raise ConversionError(
                f"{what} claims the shape {shape}, which takes {wanted} {of}, and has {given}."
            )

    def _external(self, proto: Any, what: str, needed: int) -> bytes:
        entries = {entry.key: entry.value for entry in proto.external_data}
        location = entries.get("location", "")
        if self._folder is None:
            raise ConversionError(
                f"{what} is in the file {location!r} beside the model. Give nx.from_onnx the path "
                "of the .onnx file."
            )
        folder = self._folder.resolve()
        path = (folder / location).resolve()
        if not location or Path(location).is_absolute() or not path.is_relative_to(folder):
            raise ConversionError(
                f"{what} is in the file {location!r}, which is outside of the model's folder "
                f"{folder}. Such a file is never read."
            )
        if not path.is_file():
            raise ConversionError(f"{what} is in the file {path}, which is not there.")
        try:
            offset = int(entries.get("offset") or 0)
            length = int(entries.get("length") or needed)
        except ValueError as error:
            raise ConversionError(f"{what} has an offset or length that is no number.") from error
        size = path.stat().st_size
        if offset < 0 or length < 0 or offset + length > size:
            raise ConversionError(
                f"{what} is at bytes {offset} to {offset + length} of {path}, which has {size}."
            )
        if length != needed:
            raise ConversionError(f"{what} takes {needed} bytes, and has {length} in {path}.")
        with path.open("rb") as file:
            file.seek(offset)
            return file.read(length)
