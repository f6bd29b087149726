"""The pages of preflight's rules, in Markdown files of this package.

``neurenix.compiler.findings`` implements the rules.
"""

from __future__ import annotations

import re
from importlib import resources

from neurenix._core.errors import unknown_name

_INDEX = "index"
_LINK = re.compile(r"\[([\w-]+)\]\([\w-]+\.md\)")


def names() -> tuple[str, ...]:
    """Return the names of all rules, in alphabetical order.

    Example:
        >>> "padded-matmul" in names()
        True
    """
    files = (entry.name for entry in resources.files(__name__).iterdir())
    pages = (name.removesuffix(".md") for name in files if name.endswith(".md"))
    return tuple(sorted(page for page in pages if page != _INDEX))


def page(rule: str) -> str:
    """Return the Markdown page of a rule.

    Raises:
        UnknownNameError: unknown rule.

    Example:
        >>> page("copy").splitlines()[0]
        '# copy'
    """
    if rule not in names():
        raise unknown_name("rule", rule, names())
    return _text(rule)


def index() -> str:
    """Return the Markdown list of all rules."""
    return _text(_INDEX)


def unlinked(text: str) -> str:
    """Return a page without its links to other pages.

    Example:
        >>> unlinked("see [copy](copy.md)")
        'see copy'
    """
    return _LINK.sub(r"\1", text)


def _text(name: str) -> str:
    return resources.files(__name__).joinpath(f"{name}.md").read_text(encoding="utf-8")
