"""Files of PyTorch's weights, under the names that a converted model has.

Owns PyTorch's own files (``.pt``, ``.bin``), of which tensors alone are loaded and never a pickled
object, and how the names in a file become those of the module: prefixes of wrappers and of
``transformers``' base models, and the conversions that ``transformers`` has for older files. Does
not own safetensors files (``neurenix.checkpoint``).
"""

from __future__ import annotations

import copy
import pickle
import re
import sys
import warnings
import zipfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from neurenix._core.errors import ArgumentError, CheckpointError
from neurenix.checkpoint.tensor_files import Index, Renamed, SafetensorsFile, Tensors
from neurenix.interop.torch.dtypes import load_torch, to_jax, to_shape
from neurenix.interop.torch.dtypes import to_torch as to_tensor

_SUFFIXES = (".bin", ".pt", ".pth", ".ckpt", ".tar")
_INSIDE = ("state_dict", "model_state_dict", "model", "module")  # of a dict that has more
_WRAPPERS = ("module.", "_orig_mod.")  # of DataParallel and of torch.compile
_IGNORED = "_keys_to_ignore_on_load_unexpected"  # patterns of a class of transformers


class TorchFile:
    """The tensors of a file that ``torch.save`` wrote: a dict by name, or one in a dict.

    The file is loaded with ``weights_only=True``: it cannot execute code.

    Args:
        path: the file.
        what: the name of the contents in error messages.

    Raises:
        CheckpointError: the file is missing or damaged, or holds other objects than tensors.
    """

    about: Mapping[str, str] = {}

    def __init__(self, path: Path, what: str) -> None:
        self._path = path
        self._tensors = _state_dict(_load(path, what), path, what)
        try:
            self.types = {name: to_shape(tensor) for name, tensor in self._tensors.items()}
        except ArgumentError as error:
            raise CheckpointError(f"{path} has a tensor that JAX cannot hold: {error}") from error

    def read(self, name: str, index: Index = ()) -> np.ndarray:
        """Return a part of one tensor; all of it by default."""
        try:
            return to_jax(self._tensors[name][index])
        except ArgumentError as error:
            raise CheckpointError(f"{name} of {self._path} cannot be read: {error}") from error

    def check(self) -> None:
        """Do nothing: such a file has no checksum of its values."""


def open_file(path: Path, what: str) -> Tensors:
    """Open one file, of PyTorch or safetensors by its content.

    Raises:
        CheckpointError: it is missing or damaged.
    """
    if path.is_file():
        with path.open("rb") as file:
            start = file.read(2)
        if _is_torch_archive(path) or start[:1] == b"\x80" and path.suffix in _SUFFIXES:
            return TorchFile(path, what)
    return SafetensorsFile(path, what)


def under_names_of(module: Any, expected: Iterable[str], tensors: Tensors) -> Tensors:
    """Return tensors of a file under the names that a module has for them.

    Names that match as they are stay so.

    Args:
        module: the PyTorch module.
        expected: the names of its parameters and buffers.
        tensors: the tensors under the names of the file.
    """
    known = set(expected)
    ignored = [re.compile(pattern) for pattern in getattr(module, _IGNORED, None) or ()]
    if isinstance(module, _pretrained()):
        tensors = _by_transformers(module, known, tensors)
    elif prefix := next((p for p in _WRAPPERS if _all_begin(tensors.types, p, known)), ""):
        tensors = Renamed(tensors, {name.removeprefix(prefix): name for name in tensors.types})
    prefix = getattr(module, "base_model_prefix", "")
    names, head = {}, []
    shortened = False
    for name in tensors.types:
        short, long = name.removeprefix(f"{prefix}."), f"{prefix}.{name}"
        new = next((each for each in (name, short, long) if each in known), name)
        shortened = shortened or new == short != name
        if new not in known and any(pattern.search(new) for pattern in ignored):
            continue
        if new not in known and prefix and not name.startswith(f"{prefix}."):
            head.append(name)
        names[name if new in names else new] = name
    if shortened and head:  # the file has a whole model, and this one is its base
        names = {new: old for new, old in names.items() if old not in head}
        sys.stderr.write(
            f"neurenix: {len(head)} arrays of the file are not in the base model "
            f"{type(module).__name__}, such as {head[0]}; they are not read\n"
        )
    return Renamed(tensors, names)


class _Converted:
    """Tensors of which some are made of several in a file, as ``transformers`` says.

    Args:
        tensors: the tensors of the file.
        names: new name → name in the file, of those that are as they are.
        groups: each makes tensors, by name, of a function that gives those of the file.
    """

    def __init__(self, tensors: Tensors, names: Mapping[str, str], groups: list[_Group]) -> None:
        self._plain, self.about = Renamed(tensors, names), tensors.about
        self._file, self._last = tensors, (None, {})
        self.types = dict(self._plain.types)
        self._groups: dict[str, _Group] = {}
        torch = load_torch()
        for group in groups:
            made = group(lambda name: _empty(torch, tensors.types[name]))
            self._groups |= dict.fromkeys(made, group)
            self.types |= {name: to_shape(tensor) for name, tensor in made.items()}

    def read(self, name: str, index: Index = ()) -> np.ndarray:
        """Return a part of one tensor; all of it by default."""
        group = self._groups.get(name)
        if group is None:
            return self._plain.read(name, index)
        if self._last[0] is not group:
            self._last = (group, group(lambda old: to_tensor(self._file.read(old))))
        return to_jax(self._last[1][name][index])

    def check(self) -> None:
        """Compare all values with their checksum, if there is one."""
        self._file.check()


_Group = Callable[[Callable[[str], Any]], dict[str, Any]]


def _by_transformers(module: Any, known: set[str], tensors: Tensors) -> Tensors:
    """Rename and convert tensors as ``transformers`` does when it loads a file."""
    try:
        mapping = load_torch("transformers.conversion_mapping").get_model_conversion_mapping(module)
        loading = load_torch("transformers.core_model_loading")
    except (ImportError, AttributeError):  # an older version, whose files have the model's names
        return tensors
    renamings = [each for each in mapping if isinstance(each, loading.WeightRenaming)]
    converters = [each for each in mapping if isinstance(each, loading.WeightConverter)]
    by_pattern = {pattern: each for each in converters for pattern in each.source_patterns}
    names: dict[str, str] = {}
    parts: dict[str, list[tuple[str, str]]] = {}  # new name → pattern and name in the file
    for name in sorted(tensors.types, key=loading.dot_natural_key):
        new, pattern = (name, None) if name in known else loading.rename_source_key(
            name, renamings, converters
        )  # fmt: skip
        if pattern is None:
            names[new] = name
        else:
            parts.setdefault(new, []).append((pattern, name))

    def group(new: str, sources: list[tuple[str, str]]) -> _Group:
        def make(read: Callable[[str], Any]) -> dict[str, Any]:
            converter = copy.deepcopy(by_pattern[sources[0][0]])
            for pattern, name in sources:
                converter.add_tensor(new, name, pattern, read(name))
            made = converter.convert(new, model=module, config=module.config)
            return {n: t[0] if isinstance(t, list) else t for n, t in made.items()}

        return make

    return _Converted(tensors, names, [group(new, sources) for new, sources in parts.items()])


def _pretrained() -> Any:
    """Return the base class of ``transformers``' models, where that is loaded."""
    return getattr(sys.modules.get("transformers.modeling_utils"), "PreTrainedModel", ())


def _all_begin(names: Iterable[str], prefix: str, known: set[str]) -> bool:
    return all(name.startswith(prefix) and name not in known for name in names)


def _empty(torch: Any, kind: jax.ShapeDtypeStruct) -> Any:
    dtype = getattr(torch, str(kind.dtype))
    return torch.empty(kind.shape, dtype=dtype, device="meta")


def _is_torch_archive(path: Path) -> bool:
    if not zipfile.is_zipfile(path):
        return False
    try:
        with zipfile.ZipFile(path) as file:
            return any(name.endswith("data.pkl") for name in file.namelist())
    except zipfile.BadZipFile:
        return False


def _load(path: Path, what: str) -> Any:
    torch = load_torch()

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about pickle protocols and old formats
            mapped = zipfile.is_zipfile(path)
            return torch.load(path, map_location="cpu", weights_only=True, mmap=mapped)
    except pickle.UnpicklingError as error:
        found = re.search(
            r"Unsupported (?:global|class|operand)[^\n]*?(?= was not|\n|$)", str(error)
        )
        why = found[0] if found else "torch.load(weights_only=True) refuses it"
        raise CheckpointError(
            f"{path} is damaged, or holds Python objects besides tensors, and a pickle is never "
            f"executed here: {why}. Write a file of the tensors alone: "
            f"torch.save(model.state_dict(), {path.name!r}), or safetensors.torch.save_file."
        ) from error
    except Exception as error:  # of many kinds, by where the file ends
        raise CheckpointError(
            f"The file {path} is damaged, incomplete or no file of {what}: "
            f"{type(error).__name__}: {_first_line(error)}"
        ) from error


def _state_dict(found: Any, path: Path, what: str) -> dict[str, Any]:
    """Return the dict of tensors in what a file holds."""
    torch = load_torch()

    def tensors_of(value: Any) -> dict[str, Any] | None:
        good = isinstance(value, Mapping) and value
        if good and all(isinstance(v, torch.Tensor) for v in value.values()):
            return {str(name): tensor.detach() for name, tensor in value.items()}
        return None

    inside = [found[name] for name in _INSIDE if isinstance(found, Mapping) and name in found]
    for value in (found, *inside):
        if tensors := tensors_of(value):
            return tensors
    keys = f" of {', '.join(map(str, list(found)[:6]))}" if isinstance(found, Mapping) else ""
    raise CheckpointError(
        f"{path} is no file of {what}: it holds a {type(found).__name__}{keys}, and not a dict of "
        "tensors by name, as module.state_dict() returns."
    )


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
