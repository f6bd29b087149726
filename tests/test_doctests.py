"""The examples in the docstrings, run as they stand."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path

import pytest

import neurenix

pytestmark = pytest.mark.cpu8

WRITTEN_BY_ALL = {"nx": neurenix, "nn": neurenix.nn}
"""``import neurenix as nx`` and ``from neurenix import nn``, which examples leave out."""
ROOT = Path(neurenix.__file__).parent


def modules_with_examples() -> list[str]:
    names = []
    for path in sorted(ROOT.rglob("*.py")):
        if ">>> " in path.read_text():
            parts = path.relative_to(ROOT.parent).with_suffix("").parts
            names.append(".".join(parts[:-1] if parts[-1] == "__init__" else parts))
    return names


@pytest.mark.parametrize("name", modules_with_examples())
def test_examples_in_docstrings(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    module = importlib.import_module(name)
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE | doctest.IGNORE_EXCEPTION_DETAIL
    result = doctest.testmod(module, extraglobs=WRITTEN_BY_ALL, optionflags=flags)
    assert result.attempted > 0, "the examples stand where doctest does not look"
    assert result.failed == 0, capsys.readouterr().out
