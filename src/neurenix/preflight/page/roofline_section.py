"""The time of one step on the page: its shares and the roofline of its operations."""

from __future__ import annotations

import math
from html import escape

from neurenix.chips import Generation
from neurenix.compiler.operations import Operation, peak_of
from neurenix.compiler.step_time import StepTime
from neurenix.preflight.page.charts import Axis, Box, line, mark, scaled, shortened, svg, text
from neurenix.preflight.report.formatting import INTERVAL, KIND_NAMES, seconds_text, source_text
from neurenix.preflight.report.report_data import ReportData

_WIDTH, _HEIGHT = 900.0, 420.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 74.0, 780.0, 26.0, 372.0
_LANE = 850.0
_SPREAD = (0.0, -20.0, 20.0, -10.0, 10.0)
_POINTS = 300


def time_section(report: ReportData) -> str:
    """Return the shares of the step and the roofline; empty if the program does not fit."""
    time = report.step_time
    if time is None:
        return ""
    return (
        f"<h2>Where the step goes (estimated)</h2>{_shares(time)}"
        f"<p class=sub>Calibrated on {escape(time.basis)}. The {INTERVAL} should contain four "
        "of five measured steps. It is 10 % either way for tuned dense language models on one or "
        "two slices and wider for others, by judgement. Host: about "
        f"{seconds_text(time.host_seconds)} a step, beside the device.</p>"
        f"{_roofline(report, time)}"
    )


def _shares(time: StepTime) -> str:
    x, parts, items = 1.0, [], []
    for kind, share in time.shares.items():
        if share <= 0:
            continue
        name = KIND_NAMES.get(kind, kind)
        words = f"{name} {share:.1%} ({seconds_text(share * time.device_seconds)})"
        box = Box(x, 1, share * (_WIDTH - 2), 30)
        title = f"<title>{escape(words)}</title>"
        parts.append(box.rect(f'class="cell k-{escape(kind)}"', title))
        label = shortened(f"{name} {share:.0%}", box.width - 10)
        parts.append(text(x + 6, 20, label, "on-cell") if len(label) > 3 else "")
        x += box.width
        items.append(f"<li>{_sign(kind)}{escape(words)}</li>")
    if not items:
        return "<p>The device has no work.</p>"
    label = "Shares of the device's time; the list below has the numbers"
    return (
        svg((_WIDTH, 32), label, "".join(parts), "bar-picture")
        + f"<ul class=legend>{''.join(items)}</ul>"
    )


def _sign(kind: str) -> str:
    return f"<svg class=sign viewBox='0 0 16 16' aria-hidden=true>{mark(kind, 8, 8, 5.5)}</svg>"


def _roofline(report: ReportData, time: StepTime) -> str:
    """Draw FLOP/s against FLOPs per byte of HBM traffic, on logarithmic axes.

    An operation without HBM traffic, with its operands in VMEM, has no intensity; it is drawn in a
    separate lane at the right.
    """
    generation = report.slice.generation
    peak = generation.peak_flops_per_second["bfloat16"]
    bandwidth = generation.hbm_bandwidth_bytes_per_second_per_device
    worked = [o for o in report.operations if o.flops > 0 and o.seconds > 0][:_POINTS]
    if not worked:
        return ""
    reached = {o.name: o.flops / report.calibrated(o.seconds) for o in worked}
    intensities = [o.flops / o.bytes for o in worked if o.bytes > 0]
    peaks = {o.name: _peak(o, report.slice.generation) for o in worked}
    roofs = sorted({peak, *peaks.values()})
    x = Axis(
        10.0 ** math.floor(math.log10(min([*intensities, roofs[0] / bandwidth / 30]))),
        10.0 ** math.ceil(math.log10(max([*intensities, roofs[-1] / bandwidth * 30]))),
        _LEFT, _RIGHT, logarithmic=True,
    )  # fmt: skip
    top = 10.0 ** math.ceil(math.log10(max(*roofs, *reached.values())))
    lowest = min([*reached.values(), peak / 1e3])
    y = Axis(10.0 ** math.floor(math.log10(lowest)), top, _BOTTOM, _TOP, logarithmic=True)

    names = _names_of(roofs, generation)
    parts = [_grid(x, y), *(_roof(x, y, roof, bandwidth, names[roof]) for roof in roofs)]
    start = max(x.low, y.low / bandwidth)
    middle = math.sqrt(start * roofs[0] / bandwidth)
    rate = scaled(bandwidth, "B/s")
    parts.append(text(x(middle) - 10, y(middle * bandwidth) - 8, rate, "tick", "end"))
    for number, o in reversed(list(enumerate(worked))):  # the slowest last, on top
        place = x(o.flops / o.bytes) if o.bytes > 0 else _LANE + _SPREAD[number % len(_SPREAD)]
        share = report.calibrated(o.seconds) / (time.device_seconds or 1.0)
        title = (
            f"<title>{escape(_about(o, reached[o.name], share, peaks[o.name], bandwidth))}</title>"
        )
        radius = 3.5 + 18 * math.sqrt(min(1.0, share))
        parts.append(mark(o.kind, place, y(reached[o.name]), radius, title))
    told = " and ".join(f"{scaled(roof, 'FLOP/s')} in {names[roof]}" for roof in roofs)
    label = (
        f"Roofline of one device: {told} and {scaled(bandwidth, 'B/s')}; "
        "the table of operations has the numbers"
    )
    return (
        "<h2>Roofline of one device (estimated)</h2>"
        f"{svg((_WIDTH, _HEIGHT), label, ''.join(parts))}"
        f"<p class=sub>{_words(report, worked, time)}</p>"
    )


def _peak(operation: Operation, generation: Generation) -> float:
    """Return the peak FLOP/s of an operation, from the dtypes of its products."""
    rates = {peak_of(product.dtypes, generation) for product in operation.products}
    if len(rates) <= 1:
        return next(iter(rates), generation.peak_flops_per_second["bfloat16"])
    flops = sum(product.flops for product in operation.products)
    return flops / sum(p.flops / peak_of(p.dtypes, generation) for p in operation.products)


def _names_of(roofs: list[float], generation: Generation) -> dict[float, str]:
    """Return the dtypes of these peaks; a peak in between is of operations with several."""
    names: dict[float, str] = {}
    for roof in roofs:
        equal = [n for n, p in generation.peak_flops_per_second.items() if math.isclose(p, roof)]
        names[roof] = "bfloat16" if "bfloat16" in equal else " or ".join(equal) or "mixed types"
    return names


def _grid(x: Axis, y: Axis) -> str:
    parts = []
    for value in x.ticks():
        parts.append(line(x(value), _TOP, x(value), _BOTTOM, "grid"))
        parts.append(text(x(value), _BOTTOM + 17, f"{value:g}", "tick", "middle"))
    for value in y.ticks():
        parts.append(line(_LEFT, y(value), _LANE + 40, y(value), "grid"))
        parts.append(text(_LEFT - 7, y(value) + 4, scaled(value, ""), "tick", "end"))
    parts.append(line((_RIGHT + _LANE - 35) / 2, _TOP, (_RIGHT + _LANE - 35) / 2, _BOTTOM, "split"))
    parts.append(text(_LANE, _BOTTOM + 17, "all in VMEM", "tick", "middle"))
    middle = (_LEFT + _RIGHT) / 2
    parts.append(text(middle, _HEIGHT - 8, "FLOPs per byte of HBM traffic", "axis", "middle"))
    parts.append(text(8, 14, "FLOP/s", "axis"))
    return "".join(parts)


def _roof(x: Axis, y: Axis, peak: float, bandwidth: float, name: str) -> str:
    ridge = peak / bandwidth
    start = max(x.low, y.low / bandwidth)
    points = ((start, start * bandwidth), (ridge, peak))
    path = " ".join(f"{x(a):.1f},{y(b):.1f}" for a, b in points)
    # Left of the ridge and above the roof there are no operations.
    return (
        f'<polyline points="{path} {_LANE + 40:.1f},{y(peak):.1f}" class=roof />'
        + text(_RIGHT + 8, y(peak) - 7, f"{scaled(peak, 'FLOP/s')} in {name}", "tick", "end")
        + text(x(ridge) - 10, y(peak), f"ridge at {ridge:.0f}", "tick", "end")
    )


def _about(o: Operation, reached: float, share: float, peak: float, bandwidth: float) -> str:
    bounded = min(peak, o.flops / o.bytes * bandwidth) if o.bytes > 0 else peak
    traffic = f"{o.flops / o.bytes:.3g} FLOP/byte" if o.bytes > 0 else "no HBM traffic"
    lines = [
        o.name,
        f"{share:.1%} of the device's time, {o.count} ×, {KIND_NAMES.get(o.kind, o.kind)}",
        f"{scaled(reached, 'FLOP/s')}, {traffic}, {reached / bounded:.0%} of the roof",
        o.op_name,
        source_text(o.source),
    ]
    return "\n".join(filter(None, lines))


def _words(report: ReportData, worked: list[Operation], time: StepTime) -> str:
    shown = sum(report.calibrated(o.seconds) for o in worked) / (time.device_seconds or 1.0)
    return (
        f"One sign for each operation with matrix products, its area by time: {shown:.0%} of the "
        f"device's time. The other {max(0.0, 1 - shown):.0%} does no such products and has no "
        "place here; see the table. Signs are those of the legend above; hover for name and line."
    )
