"""Geometry of the page's pictures: treemap rectangles, axes, and SVG frames."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

CHARACTER_WIDTH = 7.2
"""Width of a character at 12 px: 0.6 em, the average of a wide sans-serif such as DejaVu Sans."""


@dataclass(frozen=True)
class Box:
    """A rectangle in units of its picture."""

    x: float
    y: float
    width: float
    height: float

    def inset(self, margin: float, top: float = 0.0) -> Box:
        """Return the box within a margin, and ``top`` more at its upper edge.

        Example:
            >>> Box(0, 0, 10, 10).inset(1, top=2)
            Box(x=1, y=3, width=8, height=6)
        """
        return Box(
            self.x + margin,
            self.y + margin + top,
            max(0, self.width - 2 * margin),
            max(0, self.height - 2 * margin - top),
        )

    def rect(self, attributes: str = "", inner: str = "") -> str:
        """Return the box as an SVG element; ``inner`` is markup, such as a ``<title>``."""
        return (
            f'<rect x="{self.x:.1f}" y="{self.y:.1f}" width="{self.width:.1f}" '
            f'height="{self.height:.1f}" {attributes}>{inner}</rect>'
        )


def squarify(sizes: Sequence[float], box: Box) -> list[Box]:
    """Divide a box into nearly square rectangles with areas proportional to the sizes.

    The sizes are positive and best given from large to small; the order is kept. The method is the
    squarified treemap of Bruls, Huizing and van Wijk (2000): a row along the shorter side takes
    sizes for as long as its worst aspect ratio improves.

    Example:
        >>> [round(b.width * b.height) for b in squarify([6, 3, 1], Box(0, 0, 10, 10))]
        [60, 30, 10]
    """
    whole = sum(sizes)
    if not sizes or whole <= 0 or box.width <= 0 or box.height <= 0:
        return [Box(box.x, box.y, 0.0, 0.0) for _ in sizes]
    areas = [size / whole * box.width * box.height for size in sizes]
    done: list[Box] = []
    while len(done) < len(areas):
        side = min(box.width, box.height)
        end = len(done) + 1
        while end < len(areas):
            row, longer = areas[len(done) : end], areas[len(done) : end + 1]
            if _worst(longer, side) > _worst(row, side):
                break
            end += 1
        placed, box = _lay(areas[len(done) : end], box)
        done += placed
    return done


def _worst(row: Sequence[float], side: float) -> float:
    """Return the worst aspect ratio of a row of areas along ``side``."""
    if side <= 0:
        return math.inf
    thick = sum(row) / side
    return max(max(thick * thick / area, area / (thick * thick)) for area in row if area > 0)


def _lay(row: Sequence[float], box: Box) -> tuple[list[Box], Box]:
    """Place a row along the shorter side; return it and the rest of the box."""
    total = sum(row)
    upright = box.width >= box.height
    side = box.height if upright else box.width
    thick = total / side if side > 0 else 0.0
    placed, along = [], 0.0
    for area in row:
        length = area / thick if thick > 0 else 0.0
        if upright:
            placed.append(Box(box.x, box.y + along, thick, length))
        else:
            placed.append(Box(box.x + along, box.y, length, thick))
        along += length
    if upright:
        return placed, Box(box.x + thick, box.y, max(0.0, box.width - thick), box.height)
    return placed, Box(box.x, box.y + thick, box.width, max(0.0, box.height - thick))


@dataclass(frozen=True)
class Axis:
    """A scale from values ``low`` to ``high`` to positions ``start`` to ``stop``.

    On a logarithmic axis all values are positive. Values outside are drawn at the ends.
    """

    low: float
    high: float
    start: float
    stop: float
    logarithmic: bool = False

    def __call__(self, value: float) -> float:
        """Return the position of a value."""
        low, high = self.low, self.high
        value = min(max(value, low), high)
        if self.logarithmic:
            low, high, value = math.log10(low), math.log10(high), math.log10(value)
        part = (value - low) / (high - low) if high > low else 0.5
        return self.start + part * (self.stop - self.start)

    def ticks(self, most: int = 8) -> list[float]:
        """Return round values within the axis: powers of ten, or equal steps.

        Args:
            most: steps; a linear axis has half as many at least.

        Example:
            >>> Axis(0, 0.9, 0, 1).ticks(), Axis(0.5, 200, 0, 1, logarithmic=True).ticks()
            ([0.0, 0.2, 0.4, 0.6, 0.8], [1.0, 10.0, 100.0])
            >>> Axis(0, 0.9, 0, 1).ticks(most=4)
            [0.0, 0.5]
        """
        if self.logarithmic:
            first, last = math.ceil(math.log10(self.low)), math.floor(math.log10(self.high))
            return [
                10.0**power for power in range(first, last + 1, 1 + max(0, last - first) // most)
            ]
        span = (self.high - self.low) or 1.0
        rough = 10.0 ** math.floor(math.log10(span))
        steps = (rough / 5, rough / 2, rough, 2 * rough, 5 * rough, 10 * rough)
        step = next(s for s in steps if span / s < most)
        first, last = math.ceil(self.low / step), math.floor(self.high / step + 1e-9)
        return [float(f"{k * step:.6g}") for k in range(first, last + 1)]


def svg(size: tuple[float, float], label: str, body: str, kind: str = "") -> str:
    """Return a scaling picture of ``size`` (width, height) in a scrolling frame.

    Args:
        size: of the drawing, in its own units.
        label: what a screen reader says in its place; it is escaped.
        body: markup.
        kind: a class for the style sheet.
    """
    width, height = size
    return (
        f'<div class="picture {kind}"><svg viewBox="0 0 {width:g} {height:g}" role="img" '
        f'aria-label="{escape(label)}">{body}</svg></div>'
    )


def fluid(height: float, label: str, body: str, left: float = 0.0, right: float = 0.0) -> str:
    """Return a picture as wide as its page, with text of constant size.

    Positions along x are percentages (``percent``) of the width between the margins, positions
    along y are pixels. The margins may contain text that extends beyond.

    Args:
        height: in pixels.
        label: what a screen reader says in its place; it is escaped.
        body: markup.
        left: margin in pixels.
        right: margin in pixels.
    """
    return (
        f'<div class="picture fluid" style="padding:0 {right:g}px 0 {left:g}px"><svg role="img" '
        f'style="height:{height:g}px" aria-label="{escape(label)}">{body}</svg></div>'
    )


def percent(part: float) -> str:
    """Return a horizontal position in a fluid picture.

    Example:
        >>> percent(12.5)
        '12.5%'
    """
    return f"{part:.4g}%"


def text(
    x: float | str, y: float, words: str, kind: str = "", anchor: str = "start", shift: float = 0.0
) -> str:
    """Return escaped text at a position, moved right by ``shift``."""
    place = f'x="{_place(x)}" y="{y:.1f}" text-anchor="{anchor}"'
    place += f' dx="{shift:g}"' if shift else ""
    return f'<text {place} class="{kind}">{escape(words)}</text>'


def line(x1: float | str, y1: float, x2: float | str, y2: float, kind: str) -> str:
    """Return a straight line."""
    return f'<line x1="{_place(x1)}" y1="{y1:.1f}" x2="{_place(x2)}" y2="{y2:.1f}" class="{kind}"/>'


def _place(x: float | str) -> str:
    return x if isinstance(x, str) else f"{x:.1f}"


def shortened(words: str, width: float, *, keep_end: bool = False) -> str:
    """Return ``words`` cut to ``width``; empty if fewer than four characters fit.

    Example:
        >>> shortened("convolution", 50), shortened("layers.0.kernel", 60, keep_end=True)
        ('convo…', '….kernel')
    """
    room = int(width / CHARACTER_WIDTH)
    if len(words) <= room:
        return words
    if room < 4:
        return ""
    return "…" + words[1 - room :] if keep_end else words[: room - 1] + "…"


def scaled(value: float, unit: str) -> str:
    """Return a number with a decimal prefix.

    Example:
        >>> scaled(197e12, "FLOP/s"), scaled(0.5, "FLOP/s")
        ('197 TFLOP/s', '0.5 FLOP/s')
    """
    for prefix, size in (("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(value) >= size:
            return f"{value / size:.4g} {prefix}{unit}"
    return f"{value:.4g} {unit}"


def mark(kind: str, x: float, y: float, radius: float, inner: str = "") -> str:
    """Return the sign of a kind of operation; shape and colour differ."""
    r = radius
    style = f'class="mark k-{kind}"'
    if kind == "hbm":
        return Box(x - r * 0.89, y - r * 0.89, r * 1.78, r * 1.78).rect(style, inner)
    if kind in ("overhead", "vector", "ici", "dcn"):
        corners = {
            "overhead": ((0, -1.25), (1.25, 0), (0, 1.25), (-1.25, 0)),
            "vector": ((0, -1.3), (1.2, 0.9), (-1.2, 0.9)),
            "ici": ((0, 1.3), (1.2, -0.9), (-1.2, -0.9)),
            "dcn": ((-0.7, -1.1), (0.7, -1.1), (1.3, 0), (0.7, 1.1), (-0.7, 1.1), (-1.3, 0)),
        }[kind]
        points = " ".join(f"{x + dx * r:.1f},{y + dy * r:.1f}" for dx, dy in corners)
        return f'<polygon points="{points}" {style}>{inner}</polygon>'
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{r:.1f}" {style}>{inner}</circle>'
