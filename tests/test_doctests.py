"""The examples in the docstrings, run as they stand: those of public names as a user types them."""

from __future__ import annotations

import doctest
import functools
import importlib
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import neurenix

pytestmark = pytest.mark.cpu8

ROOT = Path(neurenix.__file__).parent
WRITTEN_BY_ALL = {"np": np, "nx": neurenix, "nn": neurenix.nn}
"""What every program imports, and examples leave out."""


def modules_with_examples() -> list[str]:
    names = []
    for path in sorted(ROOT.rglob("*.py")):
        if ">>> " in path.read_text():
            parts = path.relative_to(ROOT.parent).with_suffix("").parts
            names.append(".".join(parts[:-1] if parts[-1] == "__init__" else parts))
    return names


@functools.cache
def public_objects() -> frozenset[str]:
    """Where the functions and classes are defined that a user reaches through ``nx``."""
    found: set[str] = set()

    def visit(holder: Any) -> None:
        everything = [name for name in dir(holder) if not name.startswith("_")]
        own = "neurenix." if hasattr(holder, "__all__") else holder.__name__
        for name in getattr(holder, "__all__", everything):
            value = getattr(holder, name)
            if isinstance(value, ModuleType):
                if value.__name__ in {f"neurenix.{module}" for module in neurenix._MODULES}:
                    visit(value)
            elif str(getattr(value, "__module__", "")).startswith(own):
                found.add(f"{value.__module__}.{getattr(value, '__qualname__', name)}")

    visit(neurenix)
    return frozenset(found)


def is_public(name: str) -> bool:
    return any(name == public or name.startswith(f"{public}.") for public in public_objects())


@pytest.mark.parametrize("name", modules_with_examples())
def test_examples_in_docstrings(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if name.startswith("neurenix.interop."):  # its examples use the other framework
        pytest.importorskip(name.split(".")[2])
    monkeypatch.chdir(tmp_path)
    module = importlib.import_module(name)
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE | doctest.IGNORE_EXCEPTION_DETAIL
    said: list[str] = []
    attempted = 0
    for example in doctest.DocTestFinder().find(module, name):
        inside = {} if is_public(example.name) else vars(module)
        example.globs = {**inside, **WRITTEN_BY_ALL, "__name__": "__main__"}
        attempted += doctest.DocTestRunner(optionflags=flags).run(example, out=said.append)[1]
    assert attempted > 0, "the examples stand where doctest does not look"
    assert not said, "".join(said)


def test_most_examples_are_of_public_names() -> None:
    """Else the walk above has lost them, and they would run with what their module imports."""
    assert {"neurenix.nn.conv.Conv2d", "neurenix.train.trainer.Trainer"} <= public_objects()
    assert is_public("neurenix.data.dataset.Dataset.map") and not is_public("neurenix._dtypes.cast")
    assert len(public_objects()) > 150
