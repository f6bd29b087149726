"""Run a program as the module ``__main__``, as Python does.

``runpy`` removes the module when the code has ended, but threads and exit handlers of the program
may still need it.
"""

from __future__ import annotations

import builtins
import importlib.machinery
import importlib.util
import os
import pkgutil
import sys
import types
from typing import Any

FILES = (__file__,)
"""What stands in a traceback above the program's own frames."""


def run_script(path: str | os.PathLike[str]) -> None:
    """Run a script as ``__main__``; of a folder or an archive, its ``__main__.py``.

    Args:
        path: of the script; ``__file__`` is absolute, as in a script that Python started.

    Raises:
        ImportError: a folder or an archive without a ``__main__``.
        BaseException: whatever the script raises.
    """
    whole = os.path.abspath(path)
    importer = pkgutil.get_importer(whole)
    if importer is not None:
        sys.path.insert(0, whole)
        _run_found(importer.find_spec("__main__"), f"no module __main__ in {path}")
    elif whole.endswith(".pyc"):
        loader = importlib.machinery.SourcelessFileLoader("__main__", whole)
        _run(loader.get_code("__main__"), __file__=whole, __loader__=loader)
    else:
        loader = importlib.machinery.SourceFileLoader("__main__", whole)
        code = compile(loader.get_data(whole), whole, "exec", dont_inherit=True)
        _run(code, __file__=whole, __loader__=loader)


def run_module(name: str) -> None:
    """Run a module as ``__main__``, as ``python -m`` does; of a package, its ``__main__``.

    Args:
        name: with dots; the packages above it are imported.

    Raises:
        ImportError: there is no such module, or it is a package without a ``__main__``.
        BaseException: whatever the module raises.
    """
    spec = importlib.util.find_spec(name)
    if spec is not None and spec.submodule_search_locations is not None:
        spec = importlib.util.find_spec(f"{name}.__main__")
    sys.argv[0] = (spec and spec.origin) or sys.argv[0]
    _run_found(spec, f"no module {name}, or no {name}.__main__")


def _run_found(spec: importlib.machinery.ModuleSpec | None, missing: str) -> None:
    loader: Any = None if spec is None else spec.loader
    code = None if loader is None else loader.get_code(spec.name if spec else "")
    if spec is None or code is None:
        raise ImportError(missing)
    attributes = {"__file__": spec.origin, "__cached__": spec.cached, "__package__": spec.parent}
    _run(code, __spec__=spec, __loader__=loader, **attributes)


def _run(code: types.CodeType | None, **attributes: Any) -> None:
    if code is None:
        raise ImportError(f"{attributes['__file__']} holds no code of this Python")
    module = types.ModuleType("__main__")
    module.__dict__.update({"__cached__": None, "__builtins__": builtins} | attributes)
    sys.modules["__main__"] = module
    exec(code, module.__dict__)
