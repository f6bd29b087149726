"""The programs in ``examples/``, run as their readers run them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.multiprocess, pytest.mark.newest]

EXAMPLES = Path(__file__).parent.parent / "examples"
ON_A_SLICE = sorted(path.name for path in EXAMPLES.glob("0[1-7]_*.py"))

EXPECTED = {
    "01_devices.py": ["TPU is available", "TPU backend initialized:", "tpu:0 True True"],
    "02_tensors.py": ["Result: [[19 22]", "cpu:0"],
    "03_model.py": ["(1, 5) tpu:0", "Linear"],
    "04_replicas.py": ["replicas: 8", "PerReplica"],
    "05_fit.py": ["(360, 10)"],
    "06_custom_loop.py": ["step 300,", "step 350,", "PerReplica"],
    "07_preflight.py": ["v5e-8", "USD"],
}


def run(*arguments: str, cwd: Path, timeout: float = 540) -> subprocess.CompletedProcess[str]:
    hidden = ("NPROC", "XLA_FLAGS", "NEURENIX_SIMULATE")
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=cwd,
        env={name: value for name, value in os.environ.items() if name not in hidden},
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


def test_every_example_is_run() -> None:
    assert set(ON_A_SLICE) == set(EXPECTED)
    assert {path.name for path in EXAMPLES.glob("*.py")} == {
        *EXPECTED, "08_llama.py", "09_from_torch.py", "demo.py",
    }  # fmt: skip


@pytest.mark.parametrize("name", ON_A_SLICE)
def test_example_on_a_simulated_slice(name: str, tmp_path: Path) -> None:
    done = run("-m", "neurenix", "run", "--simulate", "v5e-8", str(EXAMPLES / name), cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    for text in EXPECTED[name]:
        assert text in done.stdout, f"{text!r} is not in:\n{done.stdout}"


@pytest.mark.parametrize("name", ["01_devices.py", "05_fit.py", "06_custom_loop.py"])
def test_example_on_a_plain_cpu(name: str, tmp_path: Path) -> None:
    done = run(str(EXAMPLES / name), cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.tpu_compile
def test_the_example_of_the_readme_with_a_small_model(tmp_path: Path) -> None:
    done = run(str(EXAMPLES / "08_llama.py"), "tiny", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Preflight of training step on v5e-8" in done.stdout and "fits " in done.stdout


@pytest.mark.tpu_compile
def test_the_demo_trains_and_reports(tmp_path: Path) -> None:
    done = run(str(EXAMPLES / "demo.py"), cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    (accuracy,) = re.findall(r"validation accuracy +(\d+\.\d+) %", done.stdout)
    assert float(accuracy) > 98
    assert "v5e-8" in done.stdout
    page = (tmp_path / "out" / "preflight.html").read_text()
    assert page.lstrip().lower().startswith("<!doctype html>")
