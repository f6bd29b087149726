"""The pictures of several targets in a narrow window: signs and labels can be seen and read."""

from __future__ import annotations

import itertools
import random
import re
from pathlib import Path

import pytest

from neurenix import chips
from neurenix.compiler.step_time import StepTime
from neurenix.preflight.cost import money_text
from neurenix.preflight.page.comparison_section import intervals
from neurenix.preflight.page.frontier_section import Point, frontier
from neurenix.preflight.page.style import STYLE
from page_helpers import framed, needs_browser

SEEN = """
const box=e=>{const r=e.getBoundingClientRect();return [r.left,r.top,r.right,r.bottom]};
const all=(what,within)=>[...within.querySelectorAll(what)].map(e=>[e.textContent,...box(e)]);
answer.pictures=[...page.querySelectorAll('svg')].map(s=>({signs:all('circle',s),
labels:all('text',s),scrolls:s.parentElement.scrollWidth>s.parentElement.clientWidth}));
answer.width=page.documentElement.clientWidth;
answer.scrolls=page.documentElement.scrollWidth>page.documentElement.clientWidth;
"""
FEW = [Point(f"v5e-{n}", 0.0002 / n, 5e-7 * n) for n in (1, 4, 8)]
CLOSE = [
    Point(f"v6e-8, data=8, batch {n}", 1 + random.Random(n).random() / 9, 2 + n / 99)
    for n in range(12)
]
WIDE = [Point(f"v4-{2**n}", 10.0**-n, 10.0 ** (n - 9)) for n in range(3, 8)]
SAME = [Point("v5e-4", 1.0, 1.0)] * 3


def overlaps(labels: list[list]) -> list[tuple[str, str]]:
    """Return the pairs of labels that lie on each other by more than a pixel."""
    return [
        (a[0], b[0])
        for a, b in itertools.combinations(labels, 2)
        if min(a[3], b[3]) - max(a[1], b[1]) > 1 and min(a[4], b[4]) - max(a[2], b[2]) > 1
    ]


def page_of(body: str) -> str:
    return f"<!doctype html><style>{STYLE}</style><main>{body}</main>"


@needs_browser
@pytest.mark.parametrize("width", [320, 375, 768, 1280])
@pytest.mark.parametrize("points", [FEW, CLOSE, WIDE, SAME], ids=["few", "close", "wide", "same"])
def test_the_frontier_shows_its_signs_and_labels(points, width: int, tmp_path: Path) -> None:
    answer = framed(page_of(frontier(points)), tmp_path, SEEN, width)
    (picture,) = answer["pictures"]
    assert not answer["scrolls"] and not picture["scrolls"]
    assert len(picture["signs"]) == len(points)
    for _, left, _, right, _ in picture["signs"] + picture["labels"]:
        assert 0 <= left and right <= answer["width"]
    assert overlaps(picture["labels"]) == []


@needs_browser
@pytest.mark.parametrize("width", [320, 375, 1280])
def test_intervals_show_their_signs_and_labels(width: int, tmp_path: Path) -> None:
    times = [
        (chips.resolve(name).name, StepTime(s, 0.8 * s, high * s, s, 0.0, "ici", {}, ""))
        for name, s, high in (("v5e-8", 1.9e-4, 1.4), ("2xv5e-256", 1.1e-4, 3.8), ("v4-16", 3, 2))
    ]
    answer = framed(page_of(intervals(times)), tmp_path, SEEN, width)
    (picture,) = answer["pictures"]
    assert not answer["scrolls"] and not picture["scrolls"]
    assert len(picture["signs"]) == 3
    for _, left, _, right, _ in picture["signs"] + picture["labels"]:
        assert 0 <= left and right <= answer["width"]
    assert overlaps(picture["labels"]) == []


def test_two_labels_on_each_other_would_be_seen() -> None:
    assert overlaps([["a", 0, 0, 9, 9], ["b", 5, 5, 12, 12]]) == [("a", "b")]
    assert overlaps([["a", 0, 0, 9, 9], ["b", 9, 0, 12, 9]]) == []


def test_names_without_room_become_numbers_of_a_list() -> None:
    picture = frontier(CLOSE)
    listed = re.findall(r"<li>([^<]*)</li>", picture)
    assert len(listed) == len(CLOSE)
    assert {words.rpartition(":")[0] for words in listed} == {p.label for p in CLOSE}
    assert "<ol" not in frontier(FEW)


def test_costs_below_a_cent_have_no_exponent() -> None:
    picture = frontier(FEW)
    assert "cents for 1,000 steps" in picture
    assert not re.search(r"\de[-+]\d\d", picture)
    assert [money_text(usd) for usd in (3e-9, 1.234e-6, 0.00051, 0.0099, 0.0123, 12.3, 0)] == [
        "0.0000003 cents", "0.000123 cents", "0.051 cents", "0.99 cents", "0.0123 USD", "12.30 USD",
        "0 USD",
    ]  # fmt: skip
