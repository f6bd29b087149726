"""Build the API pages from the docstrings: ``python docs/build.py FOLDER``."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

import pdoc

import neurenix


def main(folder: Path) -> None:
    """Write one HTML page per public module."""
    # Public names are imported when first used; pdoc shows what it finds in the module.
    names = [name for name in neurenix.__all__ if getattr(neurenix, name) is not None]
    folder.mkdir(parents=True, exist_ok=True)
    # It cannot evaluate annotations that flax and dataclasses write into other modules.
    warnings.filterwarnings("ignore", message="Error parsing type annotation", module="pdoc")
    pdoc.render.configure(docformat="google", search=True)
    pdoc.pdoc("neurenix", output_directory=folder)
    page = folder / "neurenix.html"
    missing = [name for name in names if name not in page.read_text() and name != "__version__"]
    if missing:
        raise SystemExit(f"{page} does not show {missing}")
    print(f"{len(list(folder.rglob('*.html')))} pages in {folder}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
