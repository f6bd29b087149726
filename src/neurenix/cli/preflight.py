"""``neurenix preflight script.py --on v5e-8,v6e-8``: report how a script's step runs on slices.

``--hf`` and ``--torch`` name a PyTorch model in place of a script; ``.onnx`` files are models too.

Exit status: 0; 1 if ``--fail-if`` is true for a slice; 2 for an error in the command or the script.
``neurenix.preflight`` compiles and analyses.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from neurenix._core.errors import NeurenixError
from neurenix._core.limits import check_seconds
from neurenix.cli.failure import MISTAKE, show
from neurenix.cli.model_options import (
    Dtype,
    HuggingFace,
    LossName,
    ModelOptions,
    OptimizerName,
    ScriptOrModel,
    Sequence_,
    TorchFile,
    is_onnx,
)
from neurenix.cli.output import check_files, output_for, show_text, write_text
from neurenix.cli.script_options import (
    Arguments,
    Commitment,
    Price,
    Region,
    Slices,
    Step,
    StepExamples,
    StepTimeout,
    Xla,
)
from neurenix.cli.scripts import hint_at_steps, simulate_first, slices_of, xla_options

if TYPE_CHECKING:
    from neurenix.preflight.cost import Pricing
    from neurenix.preflight.report.compare import Comparison
    from neurenix.preflight.report.report import Report

_DOES_NOT_FIT = "not fits"


def preflight(
    script: ScriptOrModel = None,
    arguments: Arguments = None,
    *,
    on: Slices,
    hf: HuggingFace = None,
    torch: TorchFile = None,
    batch: Annotated[
        int | None, typer.Option(help="--hf, --torch, FILE.onnx: examples of one global batch")
    ] = None,
    sequence: Sequence_ = None,
    dtype: Dtype = None,
    loss: LossName = None,
    optimizer: OptimizerName = None,
    remat: Annotated[
        str | None,
        typer.Option(
            help="--hf, --torch: what the backward pass computes again: none, minimal, full, dots"
        ),
    ] = None,
    json_path: Annotated[
        Path | None,
        typer.Option("--json", help="write all reports to this file; - is the standard output"),
    ] = None,
    html_path: Annotated[
        Path | None,
        typer.Option("--html", help="write a page that compares the slices"),
    ] = None,
    mesh: Annotated[
        str | None,
        typer.Option(
            help="axes and sizes: fsdp=8 or data=2,fsdp=4; default: the script's; of a model: "
            "fsdp over all devices"
        ),
    ] = None,
    xla: Xla = None,
    no_suggest: Annotated[
        bool,
        typer.Option("--no-suggest", help="do not compile changes if the step does not fit"),
    ] = False,
    fail_if: Annotated[
        str,
        typer.Option(help='exit with 1 if true for a slice: "not fits or step_time > 200 ms"'),
    ] = _DOES_NOT_FIT,
    compare: Annotated[
        Path | None, typer.Option(help="show what changed since this --json file")
    ] = None,
    region: Region = "us",
    commitment: Commitment = "on-demand",
    price: Price = None,
    examples_per_step: StepExamples = None,
    step: Step = None,
    timeout: StepTimeout = 600,
    compile_timeout: Annotated[
        float, typer.Option(help="time limit of the compiler for a slice, in seconds")
    ] = 1800,
) -> None:
    """Run a script up to its first training step and report how that step runs on TPU slices.

    With --hf or --torch the step is that of a PyTorch model, which is built without its weights.
    Of an .onnx file it is the forward pass, or with --loss the training step.

    No TPU is needed and nothing is trained: the TPU compiler compiles the step on this machine.

    The exit status is 1 if --fail-if is true for a slice, and 2 if there is no answer.

    --fail-if accepts fits, step_time, step_time_low, step_time_high, hbm_peak_bytes,
    hbm_headroom, mfu, cost_per_step, findings, errors and warnings, with and, or, not,
    < <= > >= == != and + - * /.
    Units: s, ms, us, min, h; B, KiB, MiB, GiB, TiB, kB, MB, GB; %; USD.
    """
    from neurenix.compiler.compile import CompileOptions
    from neurenix.preflight.cost import Pricing, prices_of
    from neurenix.preflight.describe_program import PreflightOptions, axes_on
    from neurenix.preflight.fail_if import parse
    from neurenix.preflight.onnx_workload import preflight_onnx
    from neurenix.preflight.page.html import page
    from neurenix.preflight.report.report_json import load_reports
    from neurenix.preflight.script.run_script import preflight_script
    from neurenix.preflight.search.workload import mesh_of
    from neurenix.preflight.torch_workload import preflight_workload

    try:
        model = ModelOptions(hf, torch, sequence, dtype, loss, optimizer)
        is_model = model.given(script, batch=batch, remat=remat)
        slices = slices_of(on)
        axes = None if mesh is None else mesh_of(mesh)
        for where in slices:
            axes_on(where, axes)
        condition = parse(fail_if)
        pricing = Pricing(region, commitment, None if price is None else prices_of(price))
        earlier = load_reports(compare) if compare is not None else None
        check_seconds("--timeout", timeout)
        check_seconds("--compile-timeout", compile_timeout)
        options = PreflightOptions(
            compiler=CompileOptions(xla_options(xla or ()), timeout_seconds=compile_timeout),
            suggest=not no_suggest,
            examples=examples_per_step,
        )
        check_files(json_path, html_path, keep=script)
        with output_for(json_path) as output:
            if is_onnx(script) and script is not None:
                reports = preflight_onnx(
                    script,
                    on=slices,
                    batch=batch,
                    loss=loss,
                    optimizer=optimizer,
                    mesh=axes,
                    options=options,
                )
            elif is_model:
                reports = preflight_workload(
                    model.workload(batch), on=slices, mesh=axes, remat=remat, options=options
                )
            elif script is not None:
                hint_at_steps(script, step)
                simulate_first(slices)
                reports = preflight_script(
                    script,
                    arguments or [],
                    on=slices,
                    mesh=axes,
                    timeout_seconds=timeout,
                    options=options,
                    step=step,
                )
            if html_path is not None:
                write_text(html_path, page(reports, pricing), output)
            if json_path is not None:
                documents = [report.to_dict(pricing) for report in reports]
                write_text(json_path, json.dumps(documents, indent=1), output)
            for report in reports:
                show_text(report.text(pricing=pricing))
                if earlier is not None:
                    show_text(_compared(report, earlier, str(compare), pricing))
                print()
            failed = [
                report
                for report in reports
                if condition.holds(values := report.record(pricing).values())
                and _failed(report, f"{condition.text} ({condition.values(values)})")
            ]
    except BrokenPipeError:  # an OSError, but not a user error
        raise
    except (NeurenixError, OSError) as error:
        show(error)
        raise typer.Exit(MISTAKE) from None
    if failed:
        raise typer.Exit(1)


def _failed(report: Report, why: str) -> bool:
    print(f"neurenix: failed on {report.slice.name}: {why}", file=sys.stderr)
    return True


def _compared(report: Report, earlier: Sequence[Any], name: str, pricing: Pricing) -> str:
    from neurenix.preflight.report.compare import compare, matching
    from neurenix.preflight.report.report_text import width_here

    now = report.record(pricing)
    before = matching(earlier, now)
    if before is None:
        return f"{name} has no report for {report.slice.name} to compare with."
    comparison: Comparison = compare(before, now)
    return comparison.text(width_here())
