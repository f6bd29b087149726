"""``neurenix plan script.py --on v5e-8,v6e-8``: find the best slice and options for a step.

Exit status: 0 if a candidate qualifies; 1 if none does, because of memory, the deadline or missing
prices; 2 for an error in the command or the script. ``neurenix.preflight.search`` searches.
"""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from neurenix._core.errors import ArgumentError, NeurenixError
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
)
from neurenix.cli.scripts import hint_at_steps, listed, simulate_first, slices_of, xla_options

if TYPE_CHECKING:
    from neurenix.preflight.cost import Pricing
    from neurenix.preflight.search.plan_data import Candidate, Deadline

_AUTO = "auto"


def plan(
    script: ScriptOrModel = None,
    arguments: Arguments = None,
    *,
    on: Slices,
    hf: HuggingFace = None,
    torch: TorchFile = None,
    sequence: Sequence_ = None,
    dtype: Dtype = None,
    loss: LossName = None,
    optimizer: OptimizerName = None,
    objective: Annotated[
        str, typer.Option(help="what to minimise for each example: time or cost")
    ] = "time",
    deadline_hours: Annotated[
        float | None, typer.Option(help="drop candidates that need more hours for --examples")
    ] = None,
    examples: Annotated[
        float | None, typer.Option(help="number of examples to train on by the deadline")
    ] = None,
    batch: Annotated[
        str | None,
        typer.Option(
            help="global batch sizes to try: 64,128; default: the script's; --hf needs it"
        ),
    ] = None,
    mesh: Annotated[
        str | None,
        typer.Option(
            help='meshes to try: auto, or "fsdp=8;data=2,fsdp=4"; default: the script\'s; of a '
            "model: auto"
        ),
    ] = None,
    remat: Annotated[
        str | None,
        typer.Option(help="recomputation to try: auto, or none,dots; default: the script's"),
    ] = None,
    xla: Annotated[
        str | None,
        typer.Option(help='XLA options to try: auto, or "name=value;name=value,name=value"'),
    ] = None,
    budget: Annotated[
        float, typer.Option(help="compile no further candidate after this many seconds")
    ] = 600,
    json_path: Annotated[
        Path | None,
        typer.Option("--json", help="write the plan to this file; - is the standard output"),
    ] = None,
    html_path: Annotated[
        Path | None, typer.Option("--html", help="write a page with the cost-time frontier")
    ] = None,
    region: Region = "us",
    commitment: Commitment = "on-demand",
    price: Price = None,
    examples_per_step: StepExamples = None,
    step: Step = None,
    timeout: StepTimeout = 600,
) -> None:
    """Run a script up to its first training step and find the best slice and options for it.

    With --hf or --torch the step is that of a PyTorch model, which is built without its weights.

    No TPU is needed and nothing is trained: the TPU compiler compiles the step on this machine.

    Every candidate is printed with the reason why it lost. The exit status is 1 if no candidate
    qualifies, and 2 if there is no answer.
    """
    from neurenix.compiler.compile import compiler_ready
    from neurenix.preflight.cost import Pricing, prices_of
    from neurenix.preflight.describe_program import PreflightOptions
    from neurenix.preflight.page.plan_page import plan_page
    from neurenix.preflight.script.run_script import step_for
    from neurenix.preflight.search.search import check_objective, search
    from neurenix.preflight.search.search_space import SearchSpace
    from neurenix.preflight.search.workload import Workload, mesh_of
    from neurenix.preflight.torch_workload import target_of

    try:
        model = ModelOptions(hf, torch, sequence, dtype, loss, optimizer)
        if is_onnx(script):
            raise ArgumentError(
                "plan takes a script, --hf or --torch; preflight takes .onnx files."
            )
        is_model = model.given(script)
        mesh = _AUTO if is_model and mesh is None else mesh
        slices = slices_of(on)
        check_objective(objective)
        space = SearchSpace(
            meshes=_choices(mesh, mesh_of),
            batches=None if batch is None else [_whole("--batch", part) for part in listed(batch)],
            remats=remat if remat in (None, _AUTO) else listed(remat),
            compiler_options=_choices(xla, lambda text: xla_options([text])),
        )
        space.check(slices)
        pricing = Pricing(region, commitment, None if price is None else prices_of(price))
        deadline = _deadline(examples, deadline_hours)
        check_seconds("--budget", budget)
        check_seconds("--timeout", timeout)
        options = PreflightOptions(examples=examples_per_step)
        check_files(json_path, html_path, keep=script)
        with output_for(json_path) as output:
            with compiler_ready():
                if is_model:
                    batches: Any = space.batches
                    workload = model.workload(batches[0] if batches else None)
                    print(f"neurenix: {workload.description}", file=sys.stderr)
                    target, args = target_of(workload)
                elif script is not None:
                    hint_at_steps(script, step)
                    simulate_first(slices)
                    target, args, options = step_for(
                        script,
                        arguments or [],
                        slices,
                        timeout_seconds=timeout,
                        step=step,
                        options=options,
                    )
                found = search(
                    target,
                    *args,
                    on=slices,
                    objective=objective,
                    space=space,
                    deadline=deadline,
                    budget_seconds=budget,
                    pricing=pricing,
                    options=options,
                )
            if html_path is not None:
                write_text(html_path, plan_page(found, pricing), output)
            if json_path is not None:
                write_text(json_path, json.dumps(found.to_dict(), indent=1), output)
            show_text(found.text())
            if found.winner is not None:
                own = Workload.of(target, args, None, None, None)
                changes = "" if is_model else _changes(found.winner, own.batch, own.remat)
                print(f"Its whole report{changes}:")
                what = [str(script), *(arguments or [])]
                if is_model:
                    what = model.words(_of_model(found.winner, own.batch if batches else None))
                print(f"  {_command(what, found.winner, pricing, examples_per_step, step)}")
    except BrokenPipeError:  # an OSError, but not a user error
        raise
    except (NeurenixError, OSError) as error:
        show(error)
        raise typer.Exit(MISTAKE) from None
    if found.winner is None:
        raise typer.Exit(1)


def _choices(text: str | None, read: Any) -> Any:
    """Return the choices parsed by ``read``; None and ``"auto"`` are returned unchanged."""
    if text is None or text.strip() == _AUTO:
        return text and _AUTO
    return [read(part) for part in listed(text, ";")]


def _whole(option: str, text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise ArgumentError(f"{option}: {text!r} is not a positive integer.")
    return int(text)


def _deadline(examples: float | None, hours: float | None) -> Deadline | None:
    from neurenix.preflight.search.plan_data import Deadline

    if examples is None and hours is None:
        return None
    if examples is None or hours is None:
        given, other = ("--examples", "--deadline-hours")[:: 1 if hours is None else -1]
        raise ArgumentError(f"{given} requires {other}.")
    return Deadline(examples, hours)


def _of_model(winner: Candidate, batch: int | None) -> dict[str, Any]:
    """Return the winner's batch and recomputation, as options of preflight."""
    chosen = winner.choice.batch if winner.choice else None
    return {"batch": chosen or batch, "remat": None if winner.remat == "none" else winner.remat}


def _command(
    what: list[str],
    winner: Candidate,
    pricing: Pricing,
    examples: int | None,
    step: str | None,
) -> str:
    """Return the preflight command for the winner's slice, mesh and XLA options."""
    from neurenix.preflight.cost import price_text

    words = ["neurenix", "preflight", "--on", winner.slice.name]
    mesh = winner.choice.mesh if winner.choice else None
    own = pricing.usd_per_chip_hour
    if mesh:
        words += ["--mesh", ",".join(f"{name}={size}" for name, size in mesh.items())]
    if winner.compiler_options:
        words += ["--xla", winner.compiler_options.replace(", ", ",")]
    for option, given, default in (
        ("--step", step, None),
        ("--examples-per-step", examples, None),
        ("--price", None if own is None else price_text(own), None),
        ("--region", pricing.region, "us"),
        ("--commitment", pricing.commitment, "on-demand"),
    ):
        words += [] if given == default else [option, str(given)]
    return shlex.join([*words, *what])


def _changes(winner: Candidate, batch: int | None, remat: str) -> str:
    """Return the winner's changes that must be made in the script."""
    chosen = winner.choice.batch if winner.choice else None
    changes = [] if chosen in (None, batch) else [f"batch {chosen}"]
    changes += [f"remat {winner.remat}"] if winner.remat != remat else []
    return f", with {', '.join(changes)} in the script" if changes else ""
