"""The report as text, folded to the terminal's width. Every time is called an estimate."""

from __future__ import annotations

import shutil
from typing import Any

from neurenix.compiler.findings import Finding
from neurenix.compiler.peak_memory import largest
from neurenix.compiler.step_time import StepTime
from neurenix.preflight.cost import Pricing, usd_text
from neurenix.preflight.report.formatting import (
    INTERVAL,
    KIND_NAMES,
    NO_BREAK_SPACE,
    amount,
    bytes_text,
    hanging,
    percent_text,
    places_text,
    seconds_text,
    shown,
    source_text,
)
from neurenix.preflight.report.report_data import ReportData, hbm_is_known, memory_parts

_LABEL = 15
_SHOWN_FINDINGS = 5
_SHOWN_BUFFERS = 5
_SMALL_SHARE = 0.005
_SMALL_PEAK = 0.05
_NARROWEST, _WIDEST = 60, 120
_FALLBACK = (100, 24)
_FAR, _TOO_FAR = 2.0, 30.0


def width_here() -> int:
    """Return the terminal's width, from 60 to 120; 100 without a terminal."""
    return min(max(shutil.get_terminal_size(_FALLBACK).columns, _NARROWEST), _WIDEST)


def text_of(report: ReportData, width: int, pricing: Pricing) -> str:
    """Return the report as text of ``width`` columns."""
    where, time = report.slice, report.step_time
    lines = hanging(
        "",
        f"Preflight of {report.name} on {where.name}: "
        f"{amount(where.num_chips, 'chip')} ({where.generation.device_kind}), "
        f"{amount(where.num_devices, 'device')}, {amount(where.num_hosts, 'host')}",
        width,
        indent=2,
    )
    rows = [("workload", report.workload)] if report.workload else []
    rows.append(("fits", _fits(report)))
    if time is not None:
        rows += [
            (
                "step time",
                f"{seconds_text(time.seconds)} estimated ({INTERVAL}: {seconds_text(time.low)} to "
                f"{seconds_text(time.high)}), bound by {KIND_NAMES.get(time.bound, time.bound)}",
            ),
            ("rates", _rates(report)),
            ("time goes to", _shares(time)),
        ]
    if hbm_is_known(report.refused):
        rows.append(("memory", _memory(report)))
        rows += [("" if n else "largest", text) for n, text in enumerate(_largest(report))]
    if time is not None:
        rows.append(("cost", _cost(report, pricing)))
        rows += [("published", text) for text in _published(report)]
    for label, text in rows:
        lines += hanging(f"  {label:<{_LABEL - 2}}", text, width)
    lines += _findings(report, width)
    lines += _suggestions(report, width)
    for note in report.analysis.notes:
        lines += hanging("  note: ", note, width)
    if time is not None:
        lines += hanging(
            "  ",
            f"Times, rates and costs are estimates (calibration: {time.basis}); nothing ran on a "
            "TPU.",
            width,
        )
    return shown("\n".join(lines))


def styled(text: str) -> Any:
    """Return a report's text for rich, with colours."""
    from rich.text import Text

    lines = Text(text)
    for pattern, style in (
        (r"^(Preflight of|Compared with) .*$", "bold"),
        (r"^  fits +yes", "green"),
        (r"^  fits +(NO|not known)", "bold red"),
        (r"^  \d+\. error:|^  new  error:", "bold red"),
        (r"^  \d+\. warning:|^  new  warning:", "yellow"),
        (r"^  \d+\. note:|^  note:", "cyan"),
        (r"^  (step time|rates|time goes to|memory|cost|published) ", "bold"),
    ):
        lines.highlight_regex("(?m)" + pattern, style)
    return lines


def _fits(report: ReportData) -> str:
    memory, left = report.hbm, report.hbm.headroom_bytes
    unknown = {"timeout": "the compiler's time was up", "crash": "the compiler crashed"}
    if report.refused in unknown:
        return f"not known: {unknown[report.refused]}"
    if not hbm_is_known(report.refused):
        return "NO, the compiler refuses the program"
    return (
        f"{'yes' if report.fits else 'NO'}, {bytes_text(memory.peak_bytes)} of "
        f"{bytes_text(memory.limit_bytes)} HBM on each device "
        f"({percent_text(memory.peak_bytes / memory.limit_bytes)}); "
        + (f"{bytes_text(left)} left" if left >= 0 else f"{bytes_text(-left)} too much")
    )


def _rates(report: ReportData) -> str:
    parts = []
    if report.mfu is not None:
        parts.append(f"{percent_text(report.mfu)} MFU")
    if report.examples_per_second:
        parts.append(f"{report.examples_per_second:,.0f} examples/s")
    if report.tokens_per_second and report.tokens_per_second_per_chip:
        parts.append(f"{report.tokens_per_second:,.0f} tokens/s")
        parts.append(f"{report.tokens_per_second_per_chip:,.0f} tokens/s/chip")
    return ", ".join(parts) or "no matrix products"


def _shares(time: StepTime) -> str:
    """Return the shares of the device's time; a program of empty arrays has none."""
    shares = _joined(
        f"{KIND_NAMES.get(kind, kind)} {share:.0%}"
        for kind, share in sorted(time.shares.items(), key=lambda item: -item[1])
        if share >= _SMALL_SHARE
    )
    return shares or "nothing: the device has no work"


def _memory(report: ReportData) -> str:
    """Return the parts of the memory, the largest first, then facts about them."""
    memory = report.hbm
    parts = {name: size for name, size in memory_parts(vars(memory)).items() if size > 0}
    shown = {n: s for n, s in parts.items() if s >= _SMALL_SHARE * memory.peak_bytes}
    names = sorted(shown, key=lambda name: -shown[name])
    texts = [f"{name.replace('_', ' ')} {bytes_text(parts[name])}" for name in names]
    rest = sum(parts.values()) - sum(shown.values())
    if rest:
        texts.append(f"smaller parts {bytes_text(rest)}")
    said = []
    if memory.padding_bytes:
        said.append(f"padding is {bytes_text(memory.padding_bytes)} of it")
    if memory.aliased_bytes:
        said.append(f"{bytes_text(memory.aliased_bytes)} are donated, so updated in place")
    if memory.host_bytes:
        said.append(f"{bytes_text(memory.host_bytes)} are in the host's memory")
    if memory.activations_bytes is None:
        said.append("of what else it needs only the size is known")
    return (_joined(texts) or "nothing in HBM") + "".join(f"; {part}" for part in said)


def _largest(report: ReportData) -> list[str]:
    """Return the largest buffers at the peak, one for each line; none if little is in use."""
    known = hbm_is_known(report.refused)
    if not known or report.hbm.peak_bytes < _SMALL_PEAK * report.hbm.limit_bytes:
        return []
    texts = []
    for buffer in largest(report.hbm)[:_SHOWN_BUFFERS]:
        place = source_text(buffer.source)
        texts.append(
            f"{bytes_text(buffer.padded_bytes)} {buffer.role.replace('_', ' ')}: "
            f"{buffer.path} {buffer.shape}{f' ({place})' if place else ''}"
        )
    return texts


def _cost(report: ReportData, pricing: Pricing) -> str:
    cost = report.cost(1000, **vars(pricing))
    if cost.usd is None or cost.usd_per_chip_hour is None:
        return f"{cost.missing}; give your own: --price, or cost(usd_per_chip_hour=…)"
    chips = amount(report.slice.num_chips, "chip")
    tokens = cost.usd_per_million_tokens
    million = "" if tokens is None else f", {usd_text(tokens)} for a million tokens"
    which = "your price"
    if cost.price is not None:
        which = f"{cost.price.region} {cost.price.commitment}, list of {cost.price.as_of}"
    steps, epoch = report.steps_per_epoch, ""
    if steps:
        usd = cost.usd * steps / cost.steps
        epoch = f", {usd_text(usd)} for an epoch of {amount(steps, 'step')}"
    return (
        f"{usd_text(cost.usd)} for 1,000 steps{epoch}{million}; {chips} at "
        f"{usd_text(cost.usd_per_chip_hour)} an hour ({which})"
    )


def _published(report: ReportData) -> list[str]:
    run, ours = report.published_run, report.flops_per_token
    if run is None or ours is None:
        return []
    ratio = run.flops_per_token / ours
    unlike = ""
    if not 1 / _TOO_FAR <= ratio <= _TOO_FAR:
        size = f"{ratio:,.0f} ×" if ratio > 1 else f"1/{1 / ratio:,.0f} of"
        return [
            f"no run of others is near; {run.model} on {run.machine} is nearest, with {size} the "
            "FLOPs a token"
        ]
    if ratio > _FAR:
        unlike = f"; it has {ratio:,.0f} × the FLOPs a token of this program"
    elif ratio < 1 / _FAR:
        unlike = f"; this program has {1 / ratio:,.0f} × its FLOPs a token"
    return [
        f"nearest run of others, for orientation: {run.model} on {run.machine}, batch "
        f"{run.batch_size} × {run.sequence_length}, MFU {run.mfu:.0%}, "
        f"{run.tokens_per_second_per_chip:,.0f} tokens/s/chip ({run.source}){unlike}"
    ]


def _findings(report: ReportData, width: int) -> list[str]:
    lines: list[str] = []
    for number, finding in enumerate(report.findings[:_SHOWN_FINDINGS], start=1):
        effect = ""
        if finding.effect_seconds > 0:
            effect = f" [≈{NO_BREAK_SPACE}{seconds_text(finding.effect_seconds)} of a step]"
        elif finding.effect_bytes > 0:
            effect = f" [{bytes_text(finding.effect_bytes)}]"
        text = f"{finding.severity}: {finding.message}{effect}{place(finding)}"
        lines += hanging(f"  {number}. ", text, width)
        lines += hanging("     → ", f"{finding.fix} ({finding.page})", width)
    more = len(report.findings) - _SHOWN_FINDINGS
    if more > 0:
        lines.append(f"  … and {more} more in report.findings")
    return lines


def place(finding: Finding) -> str:
    """Return ``" (scope, file:line)"`` of a finding, or an empty string.

    Example:
        >>> place(Finding("r", "note", "m", "f", scope="Conv2d_0"))
        ' (Conv2d_0)'
    """
    where = places_text(finding.source, finding.called_from)
    known = ", ".join(part for part in (finding.scope, where) if part)
    return f" ({known})" if known else ""


def _joined(parts: Any) -> str:
    """Join parts with commas; the words of a part stay on one line."""
    return ", ".join(part.replace(" ", NO_BREAK_SPACE) for part in parts)


def _suggestions(report: ReportData, width: int) -> list[str]:
    """Return one line for each compiled change."""
    if not report.suggestions:
        return []
    lines = ["  changes, each compiled:"]
    for suggestion in report.suggestions:
        memory, time = suggestion.analysis.memory, suggestion.analysis.time
        words = [suggestion.verdict]
        if hbm_is_known(suggestion.analysis.refused):
            words.append(f"{bytes_text(memory.peak_bytes)} of {bytes_text(memory.limit_bytes)} HBM")
        if time is not None:
            words.append(f"step {seconds_text(time.seconds)} (est.)")
        lines += hanging("    - ", f"{suggestion.change}: {', '.join(words)}", width)
    return lines
