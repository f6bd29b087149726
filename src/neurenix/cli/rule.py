"""``neurenix rule``: explain a finding of preflight."""

from __future__ import annotations

import sys
from typing import Annotated

import typer


def rule(
    name: Annotated[
        str | None, typer.Argument(help="A rule, such as padded-matmul. Default: list all.")
    ] = None,
) -> None:
    """Explain a finding of preflight: its meaning, its detection and an example."""
    from neurenix.rules import index, page, unlinked

    text = unlinked(index() if name is None else page(name))
    if not sys.stdout.isatty():
        print(text, end="")
        return
    from rich.console import Console
    from rich.markdown import Markdown

    Console().print(Markdown(text))
