"""The report of one preflight: what was found, as values, text and files.

Owns the wording of the terminal report, the JSON schema and the sum of costs. It judges nothing
(``neurenix.compiler``) and draws no page (``html``). Every time in it is an estimate and says so.
"""

from __future__ import annotations

import json
import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from neurenix import chips
from neurenix._core.errors import ArgumentError
from neurenix.compiler.analysis import Analysis
from neurenix.compiler.findings import Finding
from neurenix.compiler.memory import Memory
from neurenix.compiler.time import Operation, StepTime
from neurenix.preflight import html
from neurenix.preflight.text import KIND_NAMES, amount, bytes_text, seconds_text, source_text

SCHEMA = "neurenix.preflight/1"


@dataclass(frozen=True)
class Cost:
    """Money for a number of steps.

    ``usd`` is ``None`` where no public price is known; ``low`` and ``high`` follow the interval of
    the step time.
    """

    usd: float | None
    low: float | None
    high: float | None
    chip_hours: float
    seconds: float
    price: chips.Price | None
    usd_per_chip_hour: float | None


class Report:
    """What a program would do on one slice, as far as the compiler and a model of time can say."""

    def __init__(self, analysis: Analysis) -> None:
        self._analysis = analysis

    @property
    def name(self) -> str:
        """The program."""
        return self._analysis.program.name

    @property
    def slice(self) -> chips.Slice:
        """The slice that it was compiled for."""
        return self._analysis.where

    @property
    def fits(self) -> bool:
        """Whether the compiler accepted the program, its memory included."""
        return self._analysis.fits

    @property
    def step_time(self) -> StepTime | None:
        """Estimated seconds of one step with an interval; ``None`` if it does not fit."""
        return self._analysis.time

    @property
    def hbm(self) -> Memory:
        """Bytes of HBM on one device."""
        return self._analysis.memory

    @property
    def mfu(self) -> float | None:
        """Model FLOPs ÷ (estimated step time × bfloat16 peak); ``None`` without products."""
        return self._analysis.mfu

    @property
    def bound(self) -> str | None:
        """What the step is bound by: a kind of ``Operation``, or ``"host"``."""
        return self.step_time.bound if self.step_time else None

    @property
    def findings(self) -> tuple[Finding, ...]:
        """What could be better, the gravest first."""
        return self._analysis.findings

    @property
    def operations(self) -> tuple[Operation, ...]:
        """Operations of the compiled step, the dearest first. Their seconds are not calibrated."""
        return self._analysis.operations

    @property
    def analysis(self) -> Analysis:
        """Everything that was found."""
        return self._analysis

    @property
    def batch_size(self) -> int | None:
        """Examples in one global batch, where the program has a batch."""
        leaves = [leaf for leaf in self._analysis.program.leaves if leaf.role == "batch"]
        sizes = [leaf.shape[0] for leaf in leaves if leaf.shape]
        return sizes[0] if sizes else None

    def calibrated(self, seconds: float) -> float:
        """Return the estimated seconds for seconds of the compiler's schedule."""
        if self.step_time is None:
            return math.nan
        total = sum(operation.seconds for operation in self.operations)
        return seconds * self.step_time.device_seconds / total if total else 0.0

    def cost(
        self,
        steps: int = 1,
        *,
        region: str = "us",
        commitment: str = "on-demand",
        usd_per_chip_hour: float | None = None,
    ) -> Cost:
        """Return what ``steps`` steps cost at the estimated step time.

        Args:
            steps: how many.
            region: ``"us"`` or a region that ``chips.price`` knows.
            commitment: ``"on-demand"``, ``"1-year"``, ``"3-year"`` or ``"spot"``.
            usd_per_chip_hour: your own price, in place of the list's.

        Raises:
            ArgumentError: the program does not fit, so it has no step time; or ``steps`` < 0.
        """
        if self.step_time is None:
            raise ArgumentError(f"{self.name} does not run on {self.slice.name}: no cost.")
        if steps < 0:
            raise ArgumentError(f"steps must be 0 or more; got {steps}.")
        price = None
        rate = usd_per_chip_hour
        if rate is None:
            price = chips.price(self.slice.generation.name, region, commitment=commitment)
            rate = price.usd_per_chip_hour if price else None
        seconds = steps * self.step_time.seconds
        chip_hours = seconds * self.slice.num_chips / 3600
        usd = chip_hours * rate if rate is not None else None
        low, high = (
            None if usd is None else usd * bound / self.step_time.seconds
            for bound in (self.step_time.low, self.step_time.high)
        )
        return Cost(usd, low, high, chip_hours, seconds, price, rate)

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, of the schema named by ``"schema"``. All times are estimates."""
        time, where, program = self.step_time, self.slice, self._analysis.program
        return {
            "schema": SCHEMA,
            "program": program.name,
            "slice": {
                "name": where.name,
                "topology": where.topology_name,
                "chips": where.num_chips,
                "devices": where.num_devices,
                "hosts": where.num_hosts,
            },
            "mesh": program.axes,
            "fits": self.fits,
            "estimated_step_time": None
            if time is None
            else {
                "seconds": time.seconds,
                "low": time.low,
                "high": time.high,
                "device_seconds": time.device_seconds,
                "host_seconds": time.host_seconds,
                "basis": time.basis,
                "shares": time.shares,
            },
            "bound": self.bound,
            "mfu": self.mfu,
            "model_flops": program.model_flops,
            "hbm_per_device": {
                name: value for name, value in vars(self.hbm).items() if name != "buffers"
            },
            "findings": [
                {**vars(finding), "source": str(finding.source) if finding.source else None}
                for finding in self.findings
            ],
            "operations": [
                {
                    "name": operation.name,
                    "opcode": operation.opcode,
                    "kind": operation.kind,
                    "estimated_seconds": self.calibrated(operation.seconds),
                    "count": operation.count,
                    "flops": operation.flops,
                    "bytes": operation.bytes,
                    "source": str(operation.source) if operation.source else None,
                }
                for operation in self.operations
            ],
            "notes": list(self._analysis.notes),
            "compile_seconds": self._analysis.compile_seconds,
            "from_cache": self._analysis.from_cache,
        }

    def to_json(self, path: str | os.PathLike[str]) -> None:
        """Write ``to_dict()`` to a file, whole or not at all."""
        _write(path, json.dumps(self.to_dict(), indent=1))

    def to_html(self, path: str | os.PathLike[str]) -> None:
        """Write a page that needs nothing but itself, whole or not at all."""
        _write(path, html.page(self))

    def __str__(self) -> str:
        where, memory, time = self.slice, self.hbm, self.step_time
        lines = [
            f"Preflight of {self.name} on {where.name}: "
            f"{amount(where.num_chips, 'chip')} ({where.generation.device_kind}), "
            f"{amount(where.num_devices, 'device')}, {amount(where.num_hosts, 'host')}",
            f"  fits         {'yes' if self.fits else 'NO'}, "
            f"{bytes_text(memory.peak_bytes)} of {bytes_text(memory.limit_bytes)} HBM on each "
            f"device ({memory.peak_bytes / memory.limit_bytes:.1%})",
        ]
        if time is not None:
            lines += [
                f"  step time    {seconds_text(time.seconds)} estimated "
                f"({seconds_text(time.low)} to {seconds_text(time.high)}), bound by "
                f"{KIND_NAMES[time.bound]}",
                f"  rates        {self._rates()}",
                f"  time goes to {self._shares(time)}",
                f"  memory       {self._memory()}",
                f"  cost         {self._cost()}",
            ]
        lines += self._finding_lines(5)
        lines += [f"  note: {note}" for note in self._analysis.notes]
        if time is not None:
            lines.append(
                f"  Times are estimates, calibrated on {time.basis}; nothing ran on a TPU."
            )
        return "\n".join(lines)

    def _rates(self) -> str:
        parts = []
        if self.mfu is not None:
            parts.append(f"{self.mfu:.1%} MFU")
        if self.batch_size and self.step_time:
            parts.append(f"{self.batch_size / self.step_time.seconds:,.0f} examples/s")
        return ", ".join(parts) or "no matrix products"

    @staticmethod
    def _shares(time: StepTime) -> str:
        return ", ".join(
            f"{KIND_NAMES[kind]} {share:.0%}" for kind, share in time.shares.items() if share > 0
        )

    def _memory(self) -> str:
        memory = self.hbm
        parts = [f"{role} {bytes_text(size)}" for role, size in memory.roles.items() if size]
        parts.append(f"temporaries {bytes_text(memory.temporaries_bytes)}")
        new = memory.outputs_bytes - memory.aliased_bytes
        parts.append(f"new results {bytes_text(new)}")
        parts.append(f"code {bytes_text(memory.code_bytes)}")
        if memory.padding_bytes:
            parts.append(f"of it padding {bytes_text(memory.padding_bytes)}")
        if memory.aliased_bytes:
            parts.append(f"donated, so updated in place, {bytes_text(memory.aliased_bytes)}")
        return ", ".join(parts)

    def _cost(self) -> str:
        cost = self.cost(1000)
        if cost.usd is None or cost.usd_per_chip_hour is None:
            return (
                f"no public price for {self.slice.generation.name}; give cost(usd_per_chip_hour=…)"
            )
        hourly = cost.usd_per_chip_hour * self.slice.num_chips
        as_of = f", as of {cost.price.as_of}" if cost.price else ""
        return f"{cost.usd:.4g} USD for 1,000 steps ({hourly:.2f} USD an hour{as_of})"

    def _finding_lines(self, shown: int) -> list[str]:
        lines = []
        for number, finding in enumerate(self.findings[:shown], start=1):
            effect = ""
            if finding.effect_seconds > 0:
                effect = f" [≈ {seconds_text(finding.effect_seconds)} of a step]"
            lines.append(
                f"  {number}. {finding.severity}: {finding.message}{effect}{place(finding)}"
            )
            lines.append(f"     → {finding.fix}")
        if len(self.findings) > shown:
            lines.append(f"  … and {len(self.findings) - shown} more in report.findings")
        return lines


def place(finding: Finding) -> str:
    """Return ``" (scope, file:line)"`` of a finding, or an empty string.

    Example:
        >>> place(Finding("r", "note", "m", "f", scope="Conv2d_0"))
        ' (Conv2d_0)'
    """
    parts = [finding.scope, source_text(finding.source)]
    known = ", ".join(part for part in parts if part)
    return f" ({known})" if known else ""


def _write(path: str | os.PathLike[str], text: str) -> None:
    target = Path(path)
    partial = target.with_name(f"{target.name}.{os.getpid()}.partial")
    try:
        partial.write_text(text, encoding="utf-8")
        os.replace(partial, target)
    finally:
        partial.unlink(missing_ok=True)
