"""Count the source files that one ``fit`` of an MLP passes through before its first compiled call.

A move is a call into another file than the call before. Few files and few moves mean that a reader
can follow ``fit``. Prints one JSON line; ``--files`` adds one line for each file, with its moves
and calls.

    python benchmarks/fit_path.py --files
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import neurenix as nx
from neurenix import nn

ROOT = Path(nx.__file__).parent
FIRST_COMPILED_CALL = "FlatFunction.__call__"


def files_called(function: Callable[[], Any]) -> list[str]:
    """Return the file of each Python call inside the package, up to the first compiled call."""
    files: list[str] = []

    def note(frame: Any, event: str, _: Any) -> None:
        if event != "call":
            return
        if frame.f_code.co_qualname == FIRST_COMPILED_CALL:
            sys.setprofile(None)
            return
        path = Path(frame.f_code.co_filename)
        if path.is_relative_to(ROOT):
            files.append(path.relative_to(ROOT).as_posix())

    sys.setprofile(note)
    try:
        function()
    finally:
        sys.setprofile(None)
    return files


def moves_of(files: list[str]) -> Counter[str]:
    """Return how often each file is entered from another one."""
    return Counter(now for before, now in zip([None, *files], files, strict=False) if now != before)


def fit_path() -> list[str]:
    """Return the files of the first ``fit`` of an MLP on a dataset."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    train, _ = nx.data.digits()
    batches = train.shuffle(seed=0).batch(200)
    return files_called(lambda: model.fit(batches, epochs=1, verbose=False))


def main() -> None:
    """Print the numbers."""
    parser = argparse.ArgumentParser(description="Count the files and moves of one fit.")
    parser.add_argument("--files", action="store_true", help="list the files")
    arguments = parser.parse_args()
    files = fit_path()
    moves, calls = moves_of(files), Counter(files)
    print(json.dumps({"files": len(moves), "moves": moves.total(), "calls": calls.total()}))
    if arguments.files:
        for name in moves:
            print(f"{name}  {moves[name]} moves, {calls[name]} calls")


if __name__ == "__main__":
    main()
