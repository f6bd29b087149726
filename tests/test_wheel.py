"""The wheel, installed where the checkout cannot be seen: nothing may depend on the checkout."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.multiprocess

REPOSITORY = Path(__file__).parent.parent


def run(*command: str | Path, cwd: Path, timeout: float = 300) -> str:
    hidden = ("PYTHONPATH", "NPROC", "XLA_FLAGS", "NEURENIX_SIMULATE")
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env={name: value for name, value in os.environ.items() if name not in hidden},
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    # Built from a copy: the build must not need, or leave, anything in the checkout.
    source = tmp_path_factory.mktemp("source")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(REPOSITORY / name, source)
    shutil.copytree(
        REPOSITORY / "src", source / "src", ignore=shutil.ignore_patterns("__pycache__")
    )
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", cwd=source)
    (built,) = (source / "dist").glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the ``bin`` of an environment with the wheel, and this one's other packages."""
    folder = tmp_path_factory.mktemp("installed")
    run(sys.executable, "-m", "venv", folder / "venv", cwd=folder)
    binaries = folder / "venv" / "bin"
    run(binaries / "python", "-m", "pip", "install", "-qq", "--no-deps", wheel, cwd=folder)
    code = "import sysconfig; print(sysconfig.get_path('purelib'))"
    site_packages = Path(run(binaries / "python", "-c", code, cwd=folder).strip())
    # A plain path: an editable install of Neurenix in there is not followed.
    dependencies = sysconfig.get_path("purelib")
    (site_packages / "dependencies.pth").write_text(dependencies + "\n")
    return binaries


def test_the_wheel_holds_the_package_its_types_and_nothing_else(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0] for name in names} == {"neurenix", "neurenix-0.1.0.dist-info"}
    sources = {
        str(path.relative_to(REPOSITORY / "src"))
        for path in (REPOSITORY / "src" / "neurenix").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert {name for name in names if name.startswith("neurenix/")} == sources
    assert "neurenix/py.typed" in sources


PROGRAM = """
import neurenix as nx
from neurenix import nn

train, test = nx.data.digits()
with nx.distribute.auto().scope():
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    loss = nx.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss, metrics=["accuracy"])
model.fit(train.shuffle(seed=0).batch(100), epochs=2, validation_data=test.batch(100))
print(model.predict(test.batch(100)).shape)
print(nx.preflight(model, on="v5e-8", input_shape=(800, 8, 8, 1)).fits)
"""


def test_versions_agree_and_the_main_job_runs(installed: Path, tmp_path: Path) -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    code = (
        "import json, neurenix, importlib.metadata as m;"
        "print(json.dumps([neurenix.__version__, m.version('neurenix'), neurenix.__file__]))"
    )
    here, recorded, file = json.loads(run(installed / "python", "-c", code, cwd=tmp_path))
    assert here == recorded == project["version"]
    assert Path(file).is_relative_to(installed.parent)
    assert project["version"] in run(installed / "neurenix", "--version", cwd=tmp_path)

    (tmp_path / "program.py").write_text(PROGRAM)
    simulated = ("run", "--simulate", "v5e-8", "program.py")
    printed = run(installed / "neurenix", *simulated, cwd=tmp_path, timeout=600)
    assert printed.split("\n")[-3:] == ["(360, 10)", "True", ""]
