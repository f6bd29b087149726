"""The picture of cost against time, with the Pareto frontier.

Owns the picture and its labels, which overlap neither each other nor a sign in the narrowest window
and so in any wider one. If no such places exist, the signs are numbered and a list names them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from neurenix.preflight.cost import money_text, plain_number
from neurenix.preflight.page.charts import CHARACTER_WIDTH, Axis, fluid, line, percent, text
from neurenix.preflight.report.formatting import seconds_text

_NARROWEST = 288.0  # pixels for a picture in a window of 320
_RIGHT, _TOP, _BOTTOM = 16.0, 26.0, 312.0
_SIGN = 7.0  # from the middle of a sign to its edge
_GAP = 9.0  # from there to its label
_ASCENT, _DESCENT = 11.0, 4.0
_LIFTS = (-7.0, 16.0, -20.0, 29.0)  # of a label's foot beside its sign
_Edges = tuple[float, float, float, float]  # left, top, right, bottom


@dataclass(frozen=True)
class Point:
    """One candidate: estimated seconds and USD for the same amount of work."""

    label: str
    seconds: float
    usd: float


def undominated(points: Sequence[Point]) -> list[Point]:
    """Return the points on the Pareto frontier of time and cost, the fastest first.

    Example:
        >>> front = undominated([Point("a", 1, 9), Point("b", 2, 3), Point("c", 3, 4)])
        >>> [point.label for point in front]
        ['a', 'b']
    """
    front: list[Point] = []
    for point in sorted(points, key=lambda p: (p.seconds, p.usd)):
        if not front or point.usd < front[-1].usd:
            front.append(point)
    return front


def frontier(points: Sequence[Point], work: str = "1,000 steps", unit: str = "a step") -> str:
    """Draw cost against time; points on the frontier are filled and joined.

    Args:
        points: nothing is drawn for fewer than two.
        work: unit of the USD.
        unit: unit of the time.
    """
    if len(points) < 2:
        return ""
    points = sorted(points, key=lambda p: (p.seconds, p.usd))
    dearest = max(p.usd for p in points)
    money, cents = ("cents", 100.0) if 0 < dearest < 0.01 else ("USD", 1.0)
    x = _axis([p.seconds for p in points], 0, 100)
    y = _axis([p.usd * cents for p in points], _BOTTOM, _TOP)
    ticks = {value: plain_number(value) for value in y.ticks()}
    left = 12 + CHARACTER_WIDTH * max(map(len, ticks.values()))
    parts = [text(0, 14, f"{money} for {work}", "axis", shift=-left)]
    for value in x.ticks(most=4):
        place, words = percent(x(value)), seconds_text(value) if value > 0 else "0"
        parts.append(line(place, _TOP, place, _BOTTOM, "grid"))
        parts.append(text(place, _BOTTOM + 17, words, "tick", "middle"))
    for value, words in ticks.items():
        parts.append(line(0, y(value), "100%", y(value), "grid"))
        parts.append(text(0, y(value) + 4, words, "tick", "end", shift=-8))
    parts.append(text("50%", _BOTTOM + 40, f"estimated time of {unit}", "axis", "middle"))
    front = undominated(points)
    for before, after in zip(front, front[1:], strict=False):
        places, height = (percent(x(before.seconds)), percent(x(after.seconds))), before.usd * cents
        parts.append(line(places[0], y(height), places[1], y(height), "frontier"))
        parts.append(line(places[1], y(height), places[1], y(after.usd * cents), "frontier"))
    for point in sorted(points, key=front.__contains__):  # the frontier last, on top
        on = point in front
        words = f"{_about(point)}{' (on the frontier)' if on else ''}"
        parts.append(
            f'<circle cx="{percent(x(point.seconds))}" cy="{y(point.usd * cents):.1f}" '
            f'r="{6.5 if on else 5}" class="{"solid" if on else "hollow"}">'
            f"<title>{escape(words)}</title></circle>"
        )
    narrow = _NARROWEST - left - _RIGHT
    signs = [(x(p.seconds) / 100 * narrow, y(p.usd * cents)) for p in points]
    span = (-left, narrow + _RIGHT)
    names = [point.label for point in points]
    places = _places(names, signs, span)
    numbered = None in places
    if numbered:
        names = [str(number) for number in range(1, len(points) + 1)]
        places = _places(names, signs, span)
    for point, name, (_, height), place in zip(points, names, signs, places, strict=True):
        if place is not None:
            anchor, lift = place
            shift = _GAP if anchor == "start" else -_GAP
            parts.append(
                text(percent(x(point.seconds)), height + lift, name, "name", anchor, shift)
            )
    label = f"Cost (USD for {work}) against time of the candidates; the table has the numbers"
    return (
        "<h3>Cost against time (estimated)</h3>"
        f"{fluid(_BOTTOM + 48, label, ''.join(parts), left, _RIGHT)}"
        f"{_list(points) if numbered else ''}"
        "<p class=sub>Filled signs on the dashed line are the frontier: nothing else is both "
        "faster and cheaper. What has no public price is only in the table.</p>"
    )


def _about(point: Point) -> str:
    return f"{point.label}: {seconds_text(point.seconds)}, {money_text(point.usd)}"


def _list(points: Sequence[Point]) -> str:
    items = "".join(f"<li>{escape(_about(point))}</li>" for point in points)
    return f"<ol class=points>{items}</ol>"


def _axis(values: list[float], start: float, stop: float) -> Axis:
    """Return an axis from 0, or a logarithmic one if values differ by a factor above 20."""
    low, high = min(values), max(values)
    if low > 0 and high > 20 * low:
        floor, ceiling = math.floor(math.log10(low)), math.ceil(math.log10(high * 1.01))
        return Axis(10.0**floor, 10.0**ceiling, start, stop, logarithmic=True)
    return Axis(0.0, high * 1.12 or 1.0, start, stop)


def _places(
    names: Sequence[str], signs: Sequence[tuple[float, float]], span: tuple[float, float]
) -> list[tuple[str, float] | None]:
    """Return the anchor and lift of each name so that none overlap; None if there is no place.

    A name extends to its sign, so that names which are apart here are apart in a wider picture.

    Args:
        names: of the signs.
        signs: their positions in the narrowest picture.
        span: smallest and largest x of a name.
    """
    taken: list[_Edges] = []
    places: list[tuple[str, float] | None] = []
    for number, (name, (x, y)) in enumerate(zip(names, signs, strict=True)):
        reach = _GAP + CHARACTER_WIDTH * len(name)
        others = [
            (a - _SIGN, b - _SIGN, a + _SIGN, b + _SIGN)
            for other, (a, b) in enumerate(signs)
            if other != number
        ]
        place = None
        for lift in _LIFTS:
            for anchor in ("start", "end"):
                left, right = (x, x + reach) if anchor == "start" else (x - reach, x)
                edges = (left, y + lift - _ASCENT, right, y + lift + _DESCENT)
                inside = span[0] <= left and right <= span[1] and edges[3] <= _BOTTOM
                if place is None and inside and not any(_meet(edges, o) for o in taken + others):
                    place = (anchor, lift)
                    taken.append(edges)
        places.append(place)
    return places


def _meet(one: _Edges, other: _Edges) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]
