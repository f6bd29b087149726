"""Build the docs: ``python docs/build.py FOLDER``.

Builds API pages from the docstrings, and the pages of preflight's rules from ``neurenix.rules``.
"""

from __future__ import annotations

import re
import sys
import warnings
from html import escape
from pathlib import Path

import markdown2  # comes with pdoc
import pdoc

import neurenix.rules

RULES = Path(neurenix.rules.__file__).parent
_LINK = re.compile(r"\]\(([\w-]+)\.md\)")
_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title><style>
body{{font:16px/1.5 system-ui,sans-serif;max-width:46rem;margin:2rem auto;padding:0 1rem}}
pre{{padding:.8rem;overflow:auto;border:1px solid #8886;border-radius:6px}}
table{{border-collapse:collapse}}td,th{{padding:.2rem .8rem .2rem 0;text-align:left}}
:root{{color-scheme:light dark}}
</style></head><body>
<nav><a href="index.html">Rules</a> · <a href="../neurenix.html">API</a></nav>
{body}</body></html>
"""


def rule_pages(folder: Path) -> None:
    """Write one HTML page for each rule of preflight, and an index."""
    folder.mkdir(parents=True, exist_ok=True)
    for path in sorted(RULES.glob("*.md")):
        text = _LINK.sub(r"](\1.html)", path.read_text())
        body = markdown2.markdown(text, extras=["fenced-code-blocks", "tables"])
        page = _PAGE.format(title=escape(path.stem), body=body)
        (folder / f"{path.stem}.html").write_text(page)


def main(folder: Path) -> None:
    """Write one HTML page per public module and per rule."""
    # Public names are imported on first use; pdoc shows only those that are imported.
    values = {name: getattr(neurenix, name) for name in neurenix.__all__}
    of_jax = {"fft", "linalg"}  # JAX's modules, with their own documentation
    names = [name for name, value in values.items() if value is not None and name not in of_jax]
    folder.mkdir(parents=True, exist_ok=True)
    # pdoc cannot evaluate annotations that flax and dataclasses write into other modules.
    warnings.filterwarnings("ignore", message="Error parsing type annotation", module="pdoc")
    pdoc.render.configure(docformat="google", search=True)
    pdoc.pdoc("neurenix", output_directory=folder)
    page = folder / "neurenix.html"
    missing = [name for name in names if name not in page.read_text() and name != "__version__"]
    if missing:
        raise SystemExit(f"{page} does not show {missing}")
    rule_pages(folder / "rules")
    print(f"{len(list(folder.rglob('*.html')))} pages in {folder}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
