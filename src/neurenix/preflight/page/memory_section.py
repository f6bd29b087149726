"""The memory of one device on the page: a bar with the limit, a treemap, a list of buffers."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape

from neurenix.compiler.peak_memory import Memory, largest
from neurenix.preflight.page.charts import Box, line, shortened, squarify, svg, text
from neurenix.preflight.report.formatting import bytes_text
from neurenix.preflight.report.report_data import ReportData, hbm_is_known, memory_parts

_SIZE = (900.0, 400.0)
_CELLS = 60
_LISTED = 40
_ROLES = (
    "parameters optimizer model_state batch metrics argument other activations gradients "
    "temporaries new-results"
).split()


@dataclass(frozen=True)
class _Cell:
    name: str
    about: str
    bytes: int
    padding: int


def memory_section(report: ReportData) -> str:
    """Return the section; every name in it is escaped."""
    memory = report.hbm
    groups = _groups(memory)
    if not hbm_is_known(report.refused):
        return f"<h2>Memory of one device</h2><p>{_words(report)}</p>{_list(memory)}"
    return (
        "<h2>Memory of one device</h2>"
        f"<p>{_words(report)}</p>{_against_limit(memory, groups)}{_legend(groups)}"
        f"{_treemap(groups)}{_list(memory)}"
    )


def _words(report: ReportData) -> str:
    memory = report.hbm
    if not hbm_is_known(report.refused):
        return (
            "Not known: the compiler gave no answer about it. The arguments alone take "
            f"{bytes_text(memory.arguments_bytes)} without padding; a device has "
            f"{bytes_text(memory.limit_bytes)}. What else it needs is not known."
        )
    left = memory.headroom_bytes
    room = f"{bytes_text(left)} left" if left >= 0 else f"{bytes_text(-left)} too much"
    words = [
        f"{bytes_text(memory.peak_bytes)} of {bytes_text(memory.limit_bytes)} at the peak; {room}."
    ]
    if memory.padding_bytes:
        words.append(f"{bytes_text(memory.padding_bytes)} of it is padding of the arguments.")
    if memory.aliased_bytes:
        words.append(f"{bytes_text(memory.aliased_bytes)} are donated: updated in place.")
    if memory.activations_bytes is None:
        words.append("Of what else it needs only the size is known.")
    return " ".join(words)


def _groups(memory: Memory) -> dict[str, list[_Cell]]:
    """Return the cells of each role, largest first; the rest of a role is one cell."""
    totals = {n: size for n, size in memory_parts(vars(memory)).items() if n != "alignment"}
    groups: dict[str, list[_Cell]] = {}
    for role, total in sorted(totals.items(), key=lambda pair: -pair[1]):
        if total <= 0:
            continue
        own = [buffer for buffer in largest(memory, 0) if buffer.role == role]
        cells = [
            _Cell(b.path, b.shape, b.padded_bytes, b.padded_bytes - b.logical_bytes)
            for b in own[:_CELLS]
            if b.padded_bytes > 0
        ]
        rest = total - sum(cell.bytes for cell in cells)
        if rest > 0:
            name = f"{len(own) - _CELLS} smaller ones" if len(own) > _CELLS else role
            cells.append(_Cell(name, "", rest, 0))
        groups[role] = cells
    return groups


def _total(cells: list[_Cell]) -> int:
    return sum(cell.bytes for cell in cells)


def _style(role: str) -> str:
    known = role.replace(" ", "-")
    return f"r-{known if known in _ROLES else 'other'}"


def _against_limit(memory: Memory, groups: dict[str, list[_Cell]]) -> str:
    """Draw the memory in use as a stacked bar, with the limit as a line."""
    width, top, height = _SIZE[0], 18.0, 30.0
    scale = (width - 2) / (max(memory.limit_bytes, memory.peak_bytes) * 1.02)
    x, parts = 1.0, []
    limit = 1 + memory.limit_bytes * scale
    parts.append(Box(1, top, limit - 1, height).rect('class="free"'))
    for role, cells in groups.items():
        size = _total(cells)
        words = escape(f"{role} {bytes_text(size)}")
        box = Box(x, top, size * scale, height)
        parts.append(box.rect(f'class="cell {_style(role)}"', f"<title>{words}</title>"))
        label = shortened(role, box.width - 8)
        parts.append(text(box.x + 5, top + 20, label, "on-cell") if len(label) > 3 else "")
        x += size * scale
    if memory.headroom_bytes > 0:
        label = shortened(f"{bytes_text(memory.headroom_bytes)} left", limit - x - 12)
        parts.append(text(x + 8, top + 20, label, "tick"))
    parts.append(line(limit, top - 6, limit, top + height + 6, "limit"))
    parts.append(text(limit, 10, f"limit {bytes_text(memory.limit_bytes)}", "tick", "end"))
    label = f"{bytes_text(memory.peak_bytes)} used of {bytes_text(memory.limit_bytes)}"
    return svg((width, top + height + 8), label, "".join(parts), "bar-picture")


def _legend(groups: dict[str, list[_Cell]]) -> str:
    items = "".join(
        f'<li><i class="swatch {_style(role)}"></i>{escape(role)} {bytes_text(_total(cells))}</li>'
        for role, cells in groups.items()
    )
    if any(cell.padding for cells in groups.values() for cell in cells):
        items += "<li><i class='swatch hatched'></i>padding</li>"
    return f"<ul class=legend>{items}</ul>"


def _treemap(groups: dict[str, list[_Cell]]) -> str:
    whole = Box(0.5, 0.5, _SIZE[0] - 1, _SIZE[1] - 1)
    areas = squarify([_total(cells) for cells in groups.values()], whole)
    parts = []
    for (role, cells), area in zip(groups.items(), areas, strict=True):
        parts.append(area.rect(f'class="group {_style(role)}"', f"<title>{escape(role)}</title>"))
        head = shortened(f"{role} {bytes_text(_total(cells))}", area.width - 8)
        titled = bool(head) and area.height > 34
        if titled:
            parts.append(text(area.x + 5, area.y + 14, head, "on-cell strong"))
        inner = area.inset(1.5, top=17 if titled else 0)
        boxes = squarify([cell.bytes for cell in cells], inner)
        parts += [_cell(cell, box, role) for cell, box in zip(cells, boxes, strict=True)]
    if not parts:
        return "<p>Nothing is in use.</p>"
    return "<h3>What is in use, by role and buffer (area is bytes)</h3>" + svg(
        _SIZE, "Treemap of the memory in use; the list below has its numbers", "".join(parts)
    )


def _cell(cell: _Cell, box: Box, role: str) -> str:
    if box.width < 0.3 or box.height < 0.3:
        return ""
    about = f"{cell.name} {cell.about}\n{role}, {bytes_text(cell.bytes)}"
    if cell.padding:
        about += f", of it padding {bytes_text(cell.padding)}"
    title = f"<title>{escape(about)}</title>"
    parts = [box.rect(f'class="cell {_style(role)}"', title)]
    if cell.padding:
        height = box.height * cell.padding / cell.bytes
        low = Box(box.x, box.y + box.height - height, box.width, height)
        parts.append(low.rect('class="padding"', title))
    if box.height > 18 and cell.name != role:
        own = cell.name.partition(f".{role}.")[2] or cell.name  # the group's head names the role
        name = shortened(own, box.width - 8, keep_end=True)
        parts.append(text(box.x + 4, box.y + 14, name, "on-cell") if name else "")
        if name and box.height > 34:
            size = shortened(bytes_text(cell.bytes), box.width - 8)
            parts.append(text(box.x + 4, box.y + 29, size, "on-cell") if size else "")
    return "".join(parts)


def _list(memory: Memory) -> str:
    buffers = largest(memory, 0)
    rows = "".join(
        f"<tr><td>{escape(b.path)}</td><td>{escape(b.role)}</td><td>{escape(b.shape)}</td>"
        f"<td class=n>{bytes_text(b.logical_bytes)}</td>"
        f"<td class=n>{bytes_text(b.padded_bytes)}</td>"
        f"<td class=n>{bytes_text(b.padded_bytes - b.logical_bytes)}</td></tr>"
        for b in buffers[:_LISTED]
    )
    if not rows:
        return ""
    left_out = len(buffers) - _LISTED
    more = f"<p class=sub>{left_out} smaller ones are left out.</p>" if left_out > 0 else ""
    return (
        "<details><summary>The largest buffers as a list</summary>"
        '<div class=wide tabindex=0 role=region aria-label="Buffers"><table><thead><tr>'
        "<th>buffer</th><th>role</th><th>on one device</th><th class=n>bytes</th>"
        "<th class=n>with padding</th><th class=n>padding</th></tr></thead>"
        f"<tbody>{rows}</tbody></table></div>{more}</details>"
    )
