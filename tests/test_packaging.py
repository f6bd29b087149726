"""The lock files and the package's metadata say the same, on every Python."""

from __future__ import annotations

import re
import sys
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest
from packaging.markers import Marker
from packaging.requirements import Requirement

pytestmark = pytest.mark.pure

REPOSITORY = Path(__file__).parent.parent
LOCKS = ("requirements.lock", "requirements-dev.lock")
PYTHONS = ("3.11", "3.12", "3.13")


def locked(name: str, python: str) -> dict[str, str]:
    """Return the versions that a lock file holds for Linux x86-64 and a Python version."""
    place = {
        "python_full_version": f"{python}.1",
        "python_version": python,
        "sys_platform": "linux",
        "platform_machine": "x86_64",
        "implementation_name": "cpython",
        "platform_python_implementation": "CPython",
    }
    found: dict[str, str] = {}
    for line in (REPOSITORY / name).read_text().splitlines():
        match = re.match(r"([A-Za-z0-9_.-]+)==(\S+)(?: ; (.*?))? ?\\?$", line)
        if match and (match[3] is None or Marker(match[3]).evaluate(place)):
            assert match[1] not in found, f"{name}: {match[1]} twice for Python {python}"
            found[match[1]] = match[2]
    return found


@pytest.mark.parametrize("name", LOCKS)
def test_every_locked_file_has_a_hash(name: str) -> None:
    text = (REPOSITORY / name).read_text()
    pins = re.findall(
        r"^[A-Za-z0-9_.-]+==[^\n]*\n((?:    --hash=sha256:[0-9a-f]{64}[ \\]*\n)*)", text, re.M
    )
    assert len(pins) > 50
    assert all(pins)


@pytest.mark.parametrize("python", PYTHONS)
def test_the_lock_satisfies_the_metadata(python: str) -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    pins = locked("requirements.lock", python)
    for text in project["dependencies"]:
        requirement = Requirement(text)
        assert requirement.specifier.contains(pins[requirement.name]), (text, pins)
    assert pins.items() <= locked("requirements-dev.lock", python).items()


@pytest.mark.parametrize(
    ("python", "jax", "libtpu"), [("3.11", "0.10", "0.0.42"), ("3.12", "0.12", "0.0.50")]
)
def test_each_python_gets_its_newest_jax_and_the_compiler_that_fits(
    python: str, jax: str, libtpu: str
) -> None:
    pins = locked("requirements.lock", python)
    assert pins["jax"].startswith(jax + ".")
    assert pins["jaxlib"] == pins["jax"]
    assert pins["libtpu"].startswith(libtpu + ".")


def test_what_runs_here_is_what_the_lock_says() -> None:
    pins = locked("requirements.lock", f"{sys.version_info.major}.{sys.version_info.minor}")
    here = {name: version(name) for name in ("jax", "jaxlib", "flax", "optax", "numpy")}
    assert here == {name: pins[name] for name in here}
