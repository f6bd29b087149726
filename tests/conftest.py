"""What every test runs on: a simulated v5e-8, and one order of random numbers.

Tests that must see a process before anything started do so in a subprocess of their own, with
``run_python``.
"""

from __future__ import annotations

import gc
import importlib.metadata
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

import cli_helpers

# Ahead-of-time compilation takes libtpu's process lock too; tests run in several processes.
os.environ.setdefault("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")
# No machine here is a Cloud TPU VM: do not wait for its metadata server.
os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")
os.environ.pop("NEURENIX_SIMULATE", None)
# Progress is another in CI, and CI runs these tests; those of it set the variable themselves.
os.environ.pop("CI", None)
# Most of a test of a model is XLA's time to optimise a program for the CPU that runs a few times.
# What runs in a process of its own (examples, the demo, commands) is optimised as a user's is, and
# what is compiled for a TPU is the same either way.
_QUICK = "--xla_backend_optimization_level=0 --xla_cpu_parallel_codegen_split_count=1"
# The newer emitters of kernels are half of what is left. Later versions have no others, and abort
# at a flag that they do not know.
if importlib.metadata.version("jaxlib").startswith("0.10."):
    _QUICK += " --xla_cpu_use_fusion_emitters=false"
os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {_QUICK}".strip()

# A shell that starts the tests in the background has them ignore Ctrl-C, and all that they start.
signal.signal(signal.SIGINT, signal.default_int_handler)

SLICE = "v5e-8"

# Skips that tell a fact of the machine or of the compiler, and not that a package is missing.
FACTS = ("this machine has", "this libtpu has")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--no-skips``, for CI, which installs all that any test needs."""
    parser.addoption(
        "--no-skips",
        action="store_true",
        help="fail where a test is skipped because something is not installed",
    )


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """With ``--no-skips``, name the tests that were skipped and fail."""
    terminal = session.config.pluginmanager.get_plugin("terminalreporter")
    if terminal is None or not session.config.getoption("--no-skips"):
        return  # a worker of xdist, which reports to the process that has the terminal
    skipped = []
    for report in terminal.stats.get("skipped", []):
        _, _, reason = report.longrepr
        reason = reason.removeprefix("Skipped: ")
        if not reason.startswith(FACTS):
            skipped.append(f"{report.nodeid}: {reason}")
    if skipped:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
        terminal.write_line("")
        terminal.write_line("--no-skips, and these were skipped:", red=True)
        for line in skipped:
            terminal.write_line(f"  {line}", red=True)


@pytest.fixture(scope="session", autouse=True)
def simulated_slice(tmp_path_factory: pytest.TempPathFactory) -> object:
    """Start the session's one backend: eight TPU devices simulated on the CPU.

    Many tests train the same small model, each in functions of its own. What XLA made of one is
    kept on the disk and taken for the next, by this process alone.
    """
    import jax

    from neurenix.simulation import simulate

    # What is imported by now stays. To look through it again and again, for what tests leave
    # behind, took 7 of 94 s.
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)
    # What libtpu compiled is kept for all processes of a run, and not for the next run. Where tests
    # run in several, each has a folder of its own in the one of the run.
    folder = tmp_path_factory.getbasetemp()
    run = folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder
    os.environ["NEURENIX_CACHE_DIR"] = str(run / "preflight")
    jax.config.update("jax_compilation_cache_dir", str(tmp_path_factory.mktemp("xla")))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.03)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    return simulate(SLICE)


@pytest.fixture(scope="session", autouse=True)
def kept_compilers(simulated_slice: object) -> Iterator[None]:
    """Keep the TPU compiler's process from test to test: to start one takes half a second."""
    from neurenix.compiler.workers import kept_workers

    with kept_workers():
        yield


@pytest.fixture
def own_compilers(kept_compilers: None) -> Iterator[None]:
    """Let a test meet no compiler's process that another one has kept."""
    from neurenix.compiler import workers

    token = workers._KEPT.set(None)
    yield
    workers._KEPT.reset(token)


@pytest.fixture(autouse=True)
def fixed_seed(simulated_slice: object) -> None:
    """Give each test the same random numbers, whatever ran before it."""
    from neurenix import random

    random.seed(0)


RunPython = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def run_python(tmp_path: Path) -> RunPython:
    """Return ``run(*arguments, code=None, env=None, timeout=300)``: Python in a clean process.

    The process starts in an empty folder, without the simulation of this one.
    """

    def run(
        *arguments: str,
        code: str | None = None,
        env: dict[str, str] | None = None,
        timeout: float = 300,
    ) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, *(["-c", code] if code is not None else []), *arguments]
        environment = {k: v for k, v in os.environ.items() if k not in ("NPROC", "XLA_FLAGS")}
        return subprocess.run(
            command,
            env=environment | (env or {}),
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )

    return run


@pytest.fixture
def command(run_python: RunPython, tmp_path: Path) -> RunPython:
    """Return ``run(*arguments, script=…, prelude="")``: ``neurenix`` in a clean process.

    The script, ``cli_helpers.SCRIPT`` by default, is in ``train.py``; the prelude is Python that
    runs before Neurenix is imported.
    """

    def run(
        *arguments: str, script: str = cli_helpers.SCRIPT, prelude: str = ""
    ) -> subprocess.CompletedProcess[str]:
        (tmp_path / "train.py").write_text(script)
        code = f"import sys; sys.argv[0] = 'neurenix'; {prelude}"
        code += "\nfrom neurenix.cli.app import main; main()"
        return run_python(*arguments, code=code, env={"COLUMNS": "100"})

    return run


@pytest.fixture
def commands(run_python: RunPython, tmp_path: Path) -> Callable[..., list[cli_helpers.Done]]:
    """Return ``run(name, cases)``: a command on several scripts; see ``cli_helpers``."""
    return partial(cli_helpers.commands, run_python, tmp_path)


@pytest.fixture
def mistakes(run_python: RunPython, tmp_path: Path) -> Callable[..., list[str]]:
    """Return ``run(name, cases)``: what a command says to mistakes; see ``cli_helpers``."""
    return partial(cli_helpers.mistakes, run_python, tmp_path)
