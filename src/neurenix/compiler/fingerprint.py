"""Compute the digest of a program: operations, shapes, shardings and source lines.

The digest of a StableHLO module ignores the lines that *called* the traced function, so that the
cache finds the same step when it is called from elsewhere. Lines inside the function count, because
reports name them.
"""

from __future__ import annotations

import hashlib
import re

from neurenix._core.source_files import is_entrance, is_on_the_way

_DEFINITION = re.compile(r"^#(loc\d*) = loc\((.*)\)$\n?", re.MULTILINE)
_REFERENCE = re.compile(r"#(loc\d*)\b")
_CALL_SITE = re.compile(r"callsite\(#(loc\d*) at #(loc\d*)\)")
_FILE = re.compile(r'"((?:[^"\\]|\\.)*)":\d+')


def fingerprint(module: str) -> str:
    r"""Return the digest of a module printed with its locations.

    Example:
        >>> text = '#loc1 = loc("/m.py":3:1)\nmodule { return loc(#loc1) }'
        >>> fingerprint(text) == fingerprint(text.replace("loc1", "loc7"))
        True
        >>> fingerprint(text) == fingerprint(text.replace(":3:", ":4:"))
        False
    """
    definitions = dict(_DEFINITION.findall(module))
    known: dict[str, tuple[str, bool]] = {}
    body = _DEFINITION.sub("", module)
    plain = _REFERENCE.sub(lambda found: _expanded(found[1], definitions, known)[0], body)
    return hashlib.sha256(plain.encode()).hexdigest()


def _expanded(
    name: str, definitions: dict[str, str], known: dict[str, tuple[str, bool]]
) -> tuple[str, bool]:
    """Return a digest of a location, and whether its innermost line is the entry point."""
    if name in known:
        return known[name]
    text = definitions.get(name, "")
    call = _CALL_SITE.fullmatch(text)
    file = _FILE.match(text)
    if call:
        inner, at_entrance = _expanded(call[1], definitions, known)
        outer = "" if at_entrance else _expanded(call[2], definitions, known)[0]
        expanded = f"{inner}<{outer}"
    elif file and (is_entrance(file[1]) or is_on_the_way(file[1])):
        expanded, at_entrance = "entrance", True
    else:
        at_entrance = False

        def inline(found: re.Match[str]) -> str:
            nonlocal at_entrance
            inner, inside = _expanded(found[1], definitions, known)
            at_entrance = at_entrance or inside
            return inner

        expanded = _REFERENCE.sub(inline, text)
    digest = hashlib.sha256(expanded.encode()).hexdigest()[:16]
    known[name] = digest, at_entrance
    return known[name]
