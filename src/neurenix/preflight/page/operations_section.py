"""The table of operations on the page, complete without the script.

The script of ``style.py`` makes each head a button that sorts, and shows the filter. It compares
``data-v`` if a cell has it, and its text otherwise.
"""

from __future__ import annotations

from html import escape

from neurenix.compiler.operations import Operation
from neurenix.preflight.report.formatting import KIND_NAMES, bytes_text, seconds_text, source_text
from neurenix.preflight.report.report_data import ReportData

_SHOWN = 400
_HEADS = (
    ("time", "n"), ("share", "n"), ("kind", ""), ("operation", ""), ("at", ""), ("times", "n"),
    ("GFLOP", "n"), ("HBM", "n"), ("makes", ""), ("from", ""),
)  # fmt: skip


def operations_section(report: ReportData) -> str:
    """Return the table of the slowest operations; every name in it is escaped."""
    if not report.operations:
        return ""
    rows = "".join(_row(operation, report) for operation in report.operations[:_SHOWN])
    head = "".join(
        f'<th scope=col class="{kind}">{name}</th>' if kind else f"<th scope=col>{name}</th>"
        for name, kind in _HEADS
    )
    left_out = len(report.operations) - _SHOWN
    more = f"<p class=sub>{left_out} cheaper ones are in the JSON.</p>" if left_out > 0 else ""
    return (
        "<h2>Operations (estimated)</h2>"
        "<p class=tools hidden><label>Filter <input type=search></label> "
        "<span role=status></span></p>"
        '<div class="wide operations" tabindex=0 role=region aria-label="Operations">'
        f"<table class=sortable><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>"
        f"{more}"
    )


def _row(o: Operation, report: ReportData) -> str:
    time = report.step_time
    whole = (time.device_seconds if time else 0.0) or 1.0
    seconds = report.calibrated(o.seconds)
    cells = (
        _number(f"{seconds:.6e}", seconds_text(seconds)),
        _number(f"{seconds / whole:.8f}", f"{seconds / whole:.1%}"),
        _words(KIND_NAMES.get(o.kind, o.kind)),
        _words(o.name),
        _words(source_text(o.source)),
        _number(str(o.count), f"{o.count:,}"),
        _number(f"{o.flops:.0f}", f"{o.flops / 1e9:.2f}"),
        _number(str(o.bytes), bytes_text(o.bytes)),
        _words(o.shape),
        _words(o.op_name),
    )
    return f"<tr>{''.join(cells)}</tr>"


def _number(value: str, shown: str) -> str:
    return f'<td class=n data-v="{value}">{escape(shown)}</td>'


def _words(words: str) -> str:
    """Return a cell of text; the title has the whole of long text."""
    shown = escape(words)
    return f'<td title="{shown}">{shown}</td>' if len(words) > 28 else f"<td>{shown}</td>"
