"""The findings on the page, each beside the user's source lines.

Excerpts are of the user's own files that can be read when the page is made; lines of installed
packages are named only.
"""

from __future__ import annotations

import itertools
import re
from functools import lru_cache
from html import escape
from pathlib import Path

from neurenix import rules
from neurenix._core.source_files import SourceLine, is_library
from neurenix.compiler.findings import Finding
from neurenix.preflight.report.formatting import bytes_text, places_text, seconds_text, source_text
from neurenix.preflight.report.report_data import ReportData

_AROUND = 3
_LONGEST_LINE = 240
_LARGEST_FILE_BYTES = 4_000_000
_FENCE = re.compile(r"^```(?:\w*\n)?", re.MULTILINE)
_STRONG, _LITERAL = re.compile(r"\*\*(.+?)\*\*", re.DOTALL), re.compile(r"`([^`]+)`")
_SIGNS = {"error": "✕", "warning": "▲", "note": "●"}


def findings_section(report: ReportData) -> str:
    """Return the section; names and messages are escaped."""
    if not report.findings:
        return "<h2>Findings</h2><p>None.</p>"
    _lines.cache_clear()  # files may have changed since the last page
    alike: dict[tuple[str, str, str], list[Finding]] = {}
    for number, finding in enumerate(report.findings):
        line = str(finding.source) if finding.source else f"{number}"
        alike.setdefault((finding.rule, finding.severity, line), []).append(finding)
    items = "".join(_item(group, report) for group in alike.values())
    return f"<h2>Findings</h2><ol class=findings>{items}</ol>"


def _item(group: list[Finding], report: ReportData) -> str:
    """Return the findings of one rule about one line, such as a line that every layer runs."""
    finding = group[0]
    severity = escape(finding.severity)
    sign = _SIGNS.get(finding.severity, "●")
    return (
        f'<li class="finding {severity}"><div><p class=first><span class=badge>{sign} {severity}'
        f"</span> <span class=rule>{escape(finding.rule)}</span>{_effect(group, report)}</p>"
        f"<p class=pre>{escape(finding.message)}</p><p class=fix>{escape(finding.fix)}</p>"
        f"<p class=place><code>{escape(_place(finding))}</code></p>{_others(group)}"
        f"{rule_page(finding.rule)}</div>"
        f"{excerpt(finding.source) or excerpt(finding.called_from)}</li>"
    )


def rule_page(rule: str) -> str:
    """Return the rule's page in a folded element: headings, code, lists and paragraphs."""
    _, *rest = rules.unlinked(rules.page(rule)).split("\n", 1)  # the title is the rule's name
    text, code = _FENCE.split("".join(rest))[::2], _FENCE.split("".join(rest))[1::2]
    parts = itertools.zip_longest(map(_prose, text), map(_code, code), fillvalue="")
    body = "".join(itertools.chain.from_iterable(parts))
    return f"<details><summary>What {escape(rule)} means</summary>{body}</details>"


def _code(text: str) -> str:
    return f"<pre>{escape(text.rstrip())}</pre>"


def _prose(text: str) -> str:
    return "".join(map(_paragraph, filter(None, map(str.strip, text.split("\n\n")))))


def _paragraph(text: str) -> str:
    if text.startswith("## "):
        return f"<h4>{_inline(text[3:])}</h4>"
    first, *items = f"\n{text}".split("\n- ")
    listed = "".join(f"<li>{_inline(item)}</li>" for item in items)
    return f"<p>{_inline(first)}</p>" * bool(first.strip()) + f"<ul>{listed}</ul>" * bool(items)


def _inline(text: str) -> str:
    text = _STRONG.sub(r"<b>\1</b>", escape(text.strip(), quote=False))
    return _LITERAL.sub(r"<code>\1</code>", text)


def _effect(group: list[Finding], report: ReportData) -> str:
    seconds = sum(finding.effect_seconds for finding in group)
    size = sum(finding.effect_bytes for finding in group)
    parts = []
    if seconds > 0:
        share = ""
        if report.step_time is not None and report.step_time.seconds > 0:
            share = f", {seconds / report.step_time.seconds:.0%}"
        parts.append(f"≈ {seconds_text(seconds)} of a step{share} (estimated)")
    if size > 0:
        parts.append(bytes_text(size))
    if len(group) > 1:
        parts.append(f"{len(group)} places together")
    return "".join(f' <span class="effect">{escape(part)}</span>' for part in parts)


def _others(group: list[Finding]) -> str:
    if len(group) == 1:
        return ""
    items = "".join(
        f"<li>{escape(finding.message)} <code>{escape(_place(finding))}</code></li>"
        for finding in group
    )
    return f"<details><summary>All {len(group)} of them</summary><ul>{items}</ul></details>"


def _place(finding: Finding) -> str:
    where = places_text(finding.source, finding.called_from)
    return " ".join(filter(None, (finding.scope, where)))


def excerpt(source: SourceLine | None) -> str:
    """Return the lines around a source location as markup, or an empty string.

    It is empty for an installed package, for an unreadable file, and if the file is too short.

    Args:
        source: a line of a file.

    Example:
        >>> excerpt(SourceLine("/no/such/file.py", 3))
        ''
    """
    if source is None or is_library(source.file):
        return ""
    lines = _lines(source.file)
    if not 1 <= source.line <= len(lines):
        return ""
    first = max(1, source.line - _AROUND)
    shown = range(first, min(len(lines), source.line + _AROUND) + 1)
    width = len(str(shown[-1]))
    rows = []
    for number in shown:
        words = lines[number - 1].rstrip().expandtabs(4)
        words = words if len(words) <= _LONGEST_LINE else words[:_LONGEST_LINE] + " …"
        at = number == source.line
        row = f"{'›' if at else ' '} {number:>{width}}  {words}"
        rows.append(f"<mark>{escape(row)}</mark>" if at else f"<span>{escape(row)}</span>")
    label = escape(f"Source, {source_text(source)}")
    return f'<pre class=source tabindex=0 role=region aria-label="{label}">{"".join(rows)}</pre>'


@lru_cache(maxsize=64)
def _lines(file: str) -> tuple[str, ...]:
    """Return the lines of a text file; none if it is unreadable or too large."""
    path = Path(file)
    try:
        if not path.is_file() or path.stat().st_size > _LARGEST_FILE_BYTES:
            return ()
        words = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ()
    return () if "\0" in words else tuple(words.split("\n"))
