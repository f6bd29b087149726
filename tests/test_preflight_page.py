"""The page of a real report, drawn and used in a real browser.

Chromium runs the page; a driver put at the end of a copy of it presses what a reader would press
and leaves what it saw in the document. The policy that keeps foreign scripts out of the page is
taken out of that copy, and tested by itself.
"""

from __future__ import annotations

import dataclasses
import json
import re
from html import unescape
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import pytest

import neurenix as nx
from neurenix import nn
from neurenix._core.errors import ArgumentError
from neurenix._core.source_files import SourceLine
from neurenix.preflight import Candidate, Plan, Report, Suggestion
from neurenix.preflight.cost import Pricing
from neurenix.preflight.page import html
from neurenix.preflight.page.charts import Axis, Box, squarify
from neurenix.preflight.page.findings_section import excerpt
from neurenix.preflight.page.frontier_section import Point, frontier, undominated
from neurenix.preflight.page.plan_page import plan_page
from page_helpers import browse, framed, needs_browser


class Narrow(nn.Module):
    """A small network with products of its own, whose lines the page shows."""

    def __init__(self) -> None:
        self.first = nn.Linear(784, 1000)
        self.last = nn.Linear(1000, 10)

    def __call__(self, x: jax.Array) -> jax.Array:
        hidden = jnp.tanh(self.first(x))
        return self.last(hidden @ (hidden.T @ hidden))


@pytest.fixture(scope="module")
def reports() -> list[Report]:
    loss = nx.losses.SparseCategoricalCrossentropy(from_logits=True)
    model = Narrow().compile(optimizer=nx.optim.Adam(1e-3), loss=loss)
    return nx.preflight(model, on=["v5e-8", "v6e-8"], input_shape=(2048, 784))


@pytest.fixture(scope="module")
def hostile() -> Report:
    """A program whose function, scope and buffer are named to break out of a page."""

    def function(tree: dict[str, jax.Array]) -> jax.Array:
        with jax.named_scope('"><script>alert(1)</script>'):
            return jnp.tanh(tree['"><img src=x onerror=alert(2)>'] @ tree["'b' & c"])

    function.__name__ = "<script>alert(3)</script>\x1b[31m\u202e"
    matrix = nx.spec((512, 520))
    tree = {'"><img src=x onerror=alert(2)>': matrix, "'b' & c": nx.spec((520, 512))}
    return nx.preflight(function, tree, on="v5e-1")


@pytest.fixture(scope="module")
def refused() -> Report:
    argument = nx.spec((65536, 65536))
    return nx.preflight(lambda x: jnp.tanh(x @ x) @ x, argument, on="v5e-1")


class TestGeometry:
    pytestmark = pytest.mark.pure

    @pytest.mark.parametrize("sizes", [[1.0], [6, 6, 4, 3, 2, 2, 1], [1000, 1, 1, 1], [5] * 60])
    def test_rectangles_have_the_areas_and_do_not_overlap(self, sizes: list[float]) -> None:
        whole = Box(10, 20, 300, 200)
        boxes = squarify(sizes, whole)
        for size, box in zip(sizes, boxes, strict=True):
            assert box.width * box.height == pytest.approx(size / sum(sizes) * 300 * 200)
            assert box.x >= 10 - 1e-6 and box.x + box.width <= 310 + 1e-6
            assert box.y >= 20 - 1e-6 and box.y + box.height <= 220 + 1e-6
        for number, a in enumerate(boxes):
            for b in boxes[number + 1 :]:
                across = min(a.x + a.width, b.x + b.width) - max(a.x, b.x)
                down = min(a.y + a.height, b.y + b.height) - max(a.y, b.y)
                assert min(across, down) < 1e-6

    def test_rectangles_of_like_sizes_are_nearly_square(self) -> None:
        for box in squarify([5] * 60, Box(0, 0, 900, 400)):
            assert 0.5 < box.width / box.height < 2

    def test_nothing_to_divide(self) -> None:
        assert squarify([], Box(0, 0, 1, 1)) == []
        assert squarify([0.0], Box(0, 0, 1, 1)) == [Box(0, 0, 0.0, 0.0)]

    def test_axes(self) -> None:
        axis = Axis(1, 1000, 0, 300, logarithmic=True)
        assert [axis(v) for v in (0.1, 1, 10, 1000, 1e9)] == pytest.approx([0, 0, 100, 300, 300])
        assert axis.ticks() == [1, 10, 100, 1000]
        assert all(4 <= len(Axis(0, high, 0, 1).ticks()) <= 11 for high in (0.003, 1, 7.7, 4e5))

    def test_the_frontier_is_what_nothing_beats(self) -> None:
        points = [
            Point("slow", 9, 1),
            Point("fast", 1, 8),
            Point("worse", 2, 9),
            Point("mid", 4, 4),
        ]
        assert [p.label for p in undominated(points)] == ["fast", "mid", "slow"]
        picture = frontier(points)
        assert picture.count('class="solid"') == 3
        assert picture.count('class="hollow"') == 1
        assert frontier(points[:1]) == ""


class TestExcerpt:
    pytestmark = pytest.mark.pure

    def test_the_line_and_three_around_it_escaped(self, tmp_path: Path) -> None:
        file = tmp_path / "train.py"
        file.write_text("\n".join(f"x{n} = '<b>' & {n}" for n in range(1, 21)))
        shown = excerpt(SourceLine(str(file), 10))
        assert re.findall(r"x(\d+) =", shown) == [str(n) for n in range(7, 14)]
        assert "<b>" not in shown
        assert re.findall(r"<mark>[^<]*</mark>", shown) == [
            "<mark>› 10  x10 = &#x27;&lt;b&gt;&#x27; &amp; 10</mark>"
        ]

    def test_the_first_and_the_last_line(self, tmp_path: Path) -> None:
        file = tmp_path / "short.py"
        file.write_text("first\nlast")
        assert "<mark>› 1  first</mark><span>  2  last</span>" in excerpt(SourceLine(str(file), 1))
        assert excerpt(SourceLine(str(file), 3)) == ""

    def test_what_is_not_the_users_text_is_not_shown(self, tmp_path: Path) -> None:
        (tmp_path / "binary.py").write_bytes(b"\x00\x01" * 9)
        places = (
            str(tmp_path / "gone.py"),
            str(tmp_path / "binary.py"),
            str(tmp_path),
            json.__file__,
        )
        assert [excerpt(SourceLine(place, 1)) for place in places] == [""] * 4
        assert excerpt(None) == ""


@pytest.mark.tpu_compile
class TestWords:
    def test_the_verdict_says_that_it_is_an_estimate(self, reports: list[Report]) -> None:
        page = html.page(reports[0])
        assert "✓ It fits</b> on v5e-8. A step takes about" in page
        assert "Estimated, not measured" in page
        assert page.count("(estimated)</h2>") == 3  # time, roofline, operations
        assert "USD a chip-hour" in page

    def test_a_small_mfu_is_not_shown_as_nothing(self, reports: list[Report]) -> None:
        small = [Report(dataclasses.replace(r.analysis, mfu=2.1e-4)) for r in reports]
        page = html.page(small)
        assert page.count("under 0.1%</td>") == len(small)
        assert "<td>0.0%</td>" not in page.split("Where the step goes")[0]

    def test_your_price_is_the_price_of_the_page(self, reports: list[Report]) -> None:
        page = html.page(reports[0], Pricing(usd_per_chip_hour=0.5))
        assert "0.5 USD a chip-hour, your price" in page

    def test_the_treemap_has_every_byte(self, reports: list[Report]) -> None:
        page, memory = html.page(reports[0]), reports[0].hbm
        titles = re.findall(r"<title>([^<]*)</title>", page)
        for buffer in memory.buffers:
            if buffer.padded_bytes > 10_000:
                assert any(f"{buffer.path} {buffer.shape}" in title for title in titles)
        assert 'class="padding"' in page  # 1,000 and 784 pad to lanes of 128
        assert 'class="limit"' in page
        assert "15.75 GiB" in page

    def test_findings_stand_beside_the_users_lines(self, reports: list[Report]) -> None:
        report = reports[0]
        page = html.page(report)
        for finding in report.findings:
            assert f"<summary>What {finding.rule} means</summary>" in page
        # Which line a rule names is the rules' affair; that a line of this file is shown is ours.
        line = next(o.source for o in report.operations if o.source and o.source.file == __file__)
        finding = dataclasses.replace(report.findings[0], source=line)
        page = html.page(Report(dataclasses.replace(report.analysis, findings=(finding,))))
        (marked,) = re.findall(r"<mark>([^<]*)</mark>", page)
        assert unescape(marked).split(maxsplit=2)[1] == str(line.line)
        assert "hidden" in marked

    def test_findings_of_one_rule_and_line_are_one_item(self, reports: list[Report]) -> None:
        report = reports[0]
        finding = dataclasses.replace(report.findings[0], source=SourceLine(__file__, 5))
        again = dataclasses.replace(finding, scope="Elsewhere_7")
        analysis = dataclasses.replace(report.analysis, findings=(finding, again))
        page = html.page(Report(analysis))
        assert page.count('<li class="finding') == 1
        assert "2 places together" in page and "Elsewhere_7" in page

    def test_names_cannot_break_out(self, hostile: Report) -> None:
        page = html.page(hostile)
        assert page.count("<script") == 1
        assert "<img" not in page
        assert "&lt;script&gt;alert(3)&lt;/script&gt;" in page
        assert "onerror=alert(2)&gt;" in page
        for shown in (page, hostile.text()):
            assert "\x1b" not in shown and "\u202e" not in shown and "\ufffd[31m\ufffd" in shown

    def test_a_program_that_does_not_fit(self, refused: Report) -> None:
        page = html.page(refused)
        assert "✕ It does not fit</b> on v5e-1" in page
        assert "too much" in page
        assert "Roofline" not in page and "Operations (" not in page
        assert "activations and others" not in page and ">temporaries" in page

    def test_an_answer_that_never_came_is_no_verdict(self, refused: Report) -> None:
        finding = dataclasses.replace(refused.findings[0], rule="refused-timeout", message="Slow.")
        slow = Report(dataclasses.replace(refused.analysis, findings=(finding,)))
        page = html.page([slow, refused])
        assert "whether it fits is not known,</b> on v5e-1" in page
        assert "? not known" in page and "✕ NO" in page
        assert "What else it needs is not known" in page

    def test_changes_that_were_compiled(self, refused: Report, reports: list[Report]) -> None:
        slow = dataclasses.replace(refused.findings[0], rule="refused-timeout")
        late = dataclasses.replace(refused.analysis, findings=(slow,))
        tried = Suggestion("take <v5e-8>", reports[0].analysis), Suggestion("other", late)
        page = html.page(Report(refused.analysis, tried))
        assert "What would make it fit (each compiled again)" in page
        assert "take &lt;v5e-8&gt;" in page and "✓ fits" in page
        assert "? not known, the compiler took too long</td><td class=why></td>" in page

    def test_several_targets_are_compared(self, reports: list[Report], refused: Report) -> None:
        page = html.page([*reports, refused])
        assert page.count("<section class=target") == 3
        assert "The targets beside each other (estimated)" in page
        assert "✕ NO" in page
        with pytest.raises(ArgumentError, match="at least one report"):
            html.page([])

    def test_a_plan_shows_why_the_others_lost(self, tmp_path: Path) -> None:
        plan = nx.preflight.search(
            lambda x: jnp.tanh(x @ x), nx.spec((512, 512)), on=["v6e-1", "v5e-1"], objective="cost"
        )
        plan.to_html(tmp_path / "plan.html")
        page = (tmp_path / "plan.html").read_text(encoding="utf-8")
        for candidate in plan.candidates:
            assert candidate.slice.name in page
        assert plan.candidates[-1].reason in unescape(page)
        assert "Cost against time (estimated)" in page
        assert "The best: " in page

    def test_candidates_of_different_batches_are_drawn_by_the_example(
        self, reports: list[Report]
    ) -> None:
        halves = [
            Candidate(r.slice, "data=8", batch, "none", r, 1.0, "")
            for r, batch in zip(reports, (2048, 1024), strict=True)
        ]
        page = plan_page(Plan("time", tuple(halves)))
        assert "USD for a million examples" in page
        like = [dataclasses.replace(c, batch=2048) for c in halves]
        assert "USD for 1,000 steps" in plan_page(Plan("time", tuple(like)))

    def test_the_page_loads_nothing(self, reports: list[Report]) -> None:
        page = html.page(reports)
        assert "default-src 'none'" in page
        assert not re.search(r"https?://|@import|<link|<iframe| src=", page)
        assert set(re.findall(r"url\(([^)]*)\)", page)) == {"#hatch"}


@needs_browser
@pytest.mark.tpu_compile
class TestInTheBrowser:
    def test_it_is_drawn_without_a_word_of_the_console(
        self, reports: list[Report], tmp_path: Path
    ) -> None:
        dom, console = browse(html.page(reports), tmp_path)
        assert console == ""
        assert "<button" in dom, "the page's own script did not run"

    def test_a_complaint_of_the_console_would_be_seen(self, tmp_path: Path) -> None:
        _, console = browse("<body><script>nothing.here()</script></body>", tmp_path)
        assert "nothing is not defined" in console

    def test_heads_sort_the_operations(self, reports: list[Report], tmp_path: Path) -> None:
        driver = """
        const table=document.querySelector('table.sortable'),heads=table.tHead.rows[0].cells;
        const column=i=>[...table.tBodies[0].rows].map(r=>r.cells[i])
        .map(c=>c.dataset.v??c.innerText);
        const at=name=>[...heads].findIndex(h=>h.innerText.startsWith(name));
        answer.rows=table.tBodies[0].rows.length;
        for(const name of ['time','GFLOP','HBM','operation']){
        const i=at(name),button=heads[i].querySelector('button');
        press(button);answer[name]=[heads[i].ariaSort,column(i)];
        press(button);answer[name+' again']=[heads[i].ariaSort,column(i)]}
        answer.sorted=[...heads].filter(h=>h.ariaSort).length;
        answer.keyboard=[...heads].every(h=>{const b=h.querySelector('button');b.focus();
        return document.activeElement===b});
        """
        answer, console = browse(html.page(reports[0]), tmp_path, driver)
        assert console == ""
        assert answer["rows"] == len(reports[0].operations)
        for name in ("time", "GFLOP", "HBM"):
            order, values = answer[name]
            numbers = [float(value) for value in values]
            assert order == "descending"
            assert numbers == sorted(numbers, reverse=True)
            assert numbers[0] > numbers[-1]
            order, values = answer[f"{name} again"]
            assert order == "ascending"
            assert [float(value) for value in values] == sorted(numbers)
        assert answer["operation"][0] == "ascending"
        assert answer["operation"][1] == sorted(answer["operation"][1], key=str.lower)
        assert answer["operation again"][0] == "descending"
        assert answer["sorted"] == 1
        assert answer["keyboard"]

    def test_the_filter_keeps_what_matches(self, reports: list[Report], tmp_path: Path) -> None:
        driver = """
        const tools=document.querySelector('.tools'),field=tools.querySelector('input');
        const type=text=>{field.value=text;field.dispatchEvent(new Event('input'));
        return {shown:[...document.querySelectorAll('table.sortable tbody tr')]
        .filter(r=>r.offsetParent).map(r=>r.innerText.toLowerCase()),
        status:tools.querySelector('[role=status]').innerText}};
        answer.visible=Boolean(tools.offsetParent);
        answer.one=type('ALL-Reduce');answer.both=type('all-reduce ici');
        answer.none=type('no such thing');answer.all=type('');
        """
        answer, _ = browse(html.page(reports[0]), tmp_path, driver)
        count = len(reports[0].operations)
        assert answer["visible"]
        assert 0 < len(answer["one"]["shown"]) < count
        assert all("all-reduce" in row for row in answer["one"]["shown"])
        assert len(answer["both"]["shown"]) > 0
        assert answer["none"] == {"shown": [], "status": f"0 of {count} shown"}
        assert len(answer["all"]["shown"]) == count

    def test_targets_are_tabs(self, reports: list[Report], tmp_path: Path) -> None:
        driver = """
        const tabs=[...document.querySelectorAll('[role=tab]')];
        const seen=()=>[...document.querySelectorAll('section.target')]
        .filter(s=>s.offsetParent).map(s=>s.dataset.name);
        answer.names=tabs.map(t=>t.innerText);answer.first=seen();
        press(tabs[1]);answer.second=seen();
        tabs[1].dispatchEvent(new KeyboardEvent('keydown',{key:'ArrowRight'}));
        answer.round=seen();answer.focused=document.activeElement===tabs[0];
        """
        answer, _ = browse(html.page(reports), tmp_path, driver)
        assert answer == {
            "names": ["v5e-8", "v6e-8"],
            "first": ["v5e-8"],
            "second": ["v6e-8"],
            "round": ["v5e-8"],
            "focused": True,
        }

    def test_it_asks_for_nothing(self, reports: list[Report], tmp_path: Path) -> None:
        driver = "answer.loaded=performance.getEntriesByType('resource').map(e=>e.name)"
        assert browse(html.page(reports), tmp_path, driver)[0] == {"loaded": []}
        # The same eyes see a page that does ask.
        asks = f"""
        const image=new Image();image.src='https://example.invalid/x.png';
        image.onerror=()=>{{{driver};
        document.documentElement.dataset.answer=JSON.stringify(answer)}}"""
        answer, _ = browse("<html><body></body></html>", tmp_path, asks)
        assert answer == {"loaded": ["https://example.invalid/x.png"]}

    def test_a_foreign_script_does_not_run(self, reports: list[Report], tmp_path: Path) -> None:
        foreign = "<script>document.title='taken'</script></main>"
        dom, console = browse(html.page(reports[0]).replace("</main>", foreign), tmp_path)
        assert "<title>taken</title>" not in dom
        assert "Content Security Policy" in console

    def test_hostile_names_make_no_elements(self, hostile: Report, tmp_path: Path) -> None:
        driver = """
        answer.scripts=document.querySelectorAll('main script,img').length;
        answer.title=document.querySelector('h1').innerText;
        answer.bytes=[...document.querySelectorAll('svg rect title')].map(t=>t.textContent);
        """
        answer, _ = browse(html.page(hostile), tmp_path, driver)
        assert answer["scripts"] == 0
        assert answer["title"] == "Preflight of <script>alert(3)</script>\ufffd[31m\ufffd"
        assert any('"><img src=x onerror=alert(2)>' in title for title in answer["bytes"])

    @pytest.mark.parametrize("width", [390, 1280])
    def test_nothing_hangs_over_the_edge(
        self, reports: list[Report], tmp_path: Path, width: int
    ) -> None:
        driver = """
        answer.wide=page.documentElement.scrollWidth;answer.inner=page.documentElement.clientWidth
        """
        answer = framed(html.page(reports), tmp_path, driver, width)
        assert answer["inner"] <= width
        assert answer["wide"] <= answer["inner"]


def test_a_report_that_knows_nothing_of_a_kind(tmp_path: Path) -> None:
    """A severity or a role that this page has never heard of is drawn like any other."""
    from neurenix.preflight.page.memory_section import memory_section

    memory = SimpleNamespace(
        peak_bytes=100, limit_bytes=1000, headroom_bytes=900, aliased_bytes=0, padding_bytes=0,
        arguments_bytes=100, temporaries_bytes=0, outputs_bytes=0, code_bytes=0,
        roles={'new "role"': 100}, buffers=(), temporaries=(), activations_bytes=0,
        gradients_bytes=0,
    )  # fmt: skip
    section = memory_section(SimpleNamespace(hbm=memory, fits=True, refused=None))
    assert "new &quot;role&quot;" in section and 'class="cell r-other"' in section


@pytest.mark.tpu_compile
def test_products_of_a_faster_type_have_a_roof_of_their_own(tmp_path: Path) -> None:
    byte, wide = nx.spec((2048, 2048), "int8"), nx.spec((2048, 2048), "bfloat16")

    def products(a, b):
        return jax.lax.dot(a, a, preferred_element_type="int32"), b @ b

    nx.preflight(products, byte, wide, on="v5e-1").to_html(tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert page.count("class=roof") == 2
    assert "197 TFLOP/s in bfloat16" in page
    assert "393 TFLOP/s in int8" in page
    shares = [int(share) for share in re.findall(r"(\d+)% of the roof", page)]
    assert len(shares) == 2
    assert max(shares) <= 100
