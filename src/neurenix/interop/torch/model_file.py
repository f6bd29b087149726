"""A PyTorch model that a function in a user's file makes: ``file.py:make_model``.

Owns how such a function is found and called. Does not own what is done with its model.
"""

from __future__ import annotations

import importlib.util
import sys
import traceback
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from neurenix._core.errors import ArgumentError, ArgumentTypeError, did_you_mean
from neurenix._core.source_files import SourceLine
from neurenix.interop.torch.convert import example_arguments, import_torch

_FORM = "Write FILE.py:FUNCTION, such as model.py:make_model"
_RETURNS = (
    "It returns two things, the module and its example inputs: "
    "return module, (torch.zeros(2, 3, 32, 32),)"
)


def load_model(spec: str) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """Return the module and the example inputs that a function in a file makes.

    The file is executed, but not as ``__main__``; its folder is put on ``sys.path``, as Python does
    for a script. The function takes no arguments and returns ``(module, example_inputs)``, where
    ``example_inputs`` is what ``nx.from_torch`` takes: a tensor, a tuple, or a dict of named
    tensors.

    Args:
        spec: ``"path/to/file.py:make_model"``.

    Returns:
        the module, its positional example inputs and its named ones.

    Raises:
        ArgumentError: ``spec`` has another form, the file or the function is missing, the function
            raises, or there are no example inputs.
        ArgumentTypeError: the function returns something else.
        MissingExtraError: PyTorch is not installed.
    """
    torch = import_torch(f"The model of {spec!r}")
    made = call_function(spec)
    file, _, name = spec.rpartition(":")
    what = f"{name}() of {file}"
    if not isinstance(made, (tuple, list)) or len(made) != 2:
        raise ArgumentTypeError(f"{what} returned {_described(made)}. {_RETURNS}.")
    model, inputs = made
    if not isinstance(model, torch.nn.Module):
        raise ArgumentTypeError(
            f"{what} returned {_described(model)} where the torch.nn.Module belongs. {_RETURNS}."
        )
    if inputs is None or isinstance(inputs, (tuple, list, Mapping)) and not inputs:
        raise ArgumentError(f"{what} returned no example inputs. {_RETURNS}.")
    return model, *example_arguments(model, inputs, None)


def call_function(spec: str) -> Any:
    """Return what a function in a file returns, which takes no arguments.

    The file is executed, but not as ``__main__``; its folder is put on ``sys.path``, as Python does
    for a script.

    Args:
        spec: ``"path/to/file.py:make_model"``.

    Raises:
        ArgumentError: ``spec`` has another form, the file or the function is missing, or the
            function raises.
    """
    file, colon, name = spec.rpartition(":")
    if not colon or not file or not name.isidentifier():
        raise ArgumentError(f"{spec!r} names no function of a file. {_FORM}.")
    path = Path(file)
    if not path.is_file():
        raise ArgumentError(f"There is no file {file!r}. {_FORM}.")
    module = _executed(path)
    function = getattr(module, name, None)
    if not callable(function):
        functions = [n for n, value in vars(module).items() if callable(value) and n[0] != "_"]
        raise ArgumentError(f"{file} has no function {name!r}.{did_you_mean(name, functions)}")
    try:
        return function()
    except (Exception, SystemExit) as error:
        raise _failed(f"{name}() of {file}", path, error) from error


def _executed(path: Path) -> ModuleType:
    """Return a file as a module that the classes and functions in it can be found by."""
    whole = path.resolve()
    if str(whole.parent) not in sys.path:
        sys.path.insert(0, str(whole.parent))
    name, known = whole.stem, sys.modules.get(whole.stem)
    if known is not None and getattr(known, "__file__", None) != str(whole):
        name = f"{name}_of_{whole.parent.name}"  # another module has this name
    spec = importlib.util.spec_from_file_location(name, whole)
    if spec is None or spec.loader is None:
        raise ArgumentError(f"{path} is not a file of Python. {_FORM}.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        if known is None:
            del sys.modules[name]
        else:
            sys.modules[name] = known
        raise _failed(str(path), whole, error) from error
    return module


def _failed(what: str, path: Path, error: BaseException) -> ArgumentError:
    """Return the error of a user's file, with the last of its lines that led to it."""
    frames = [
        frame for frame in traceback.extract_tb(error.__traceback__)
        if Path(frame.filename).resolve() == path.resolve()
    ]  # fmt: skip
    line = ""
    if frames:
        last = frames[-1]
        line = f" at {SourceLine(last.filename, last.lineno or 0, last.name)}"
    elif isinstance(error, SyntaxError):
        line = f" at line {error.lineno}"
    return ArgumentError(f"{what} failed{line}: {type(error).__name__}: {error}")


def _described(value: Any) -> str:
    size = f" of {len(value)}" if isinstance(value, (tuple, list)) else ""
    return f"{type(value).__name__}{size}"
