"""The README: its examples are run, and what it says of versions and figures is so."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer

from neurenix.cli.app import app

REPOSITORY = Path(__file__).parent.parent
README = (REPOSITORY / "README.md").read_text()
EXAMPLES = re.findall(r"```python\n(.*?)```", README, re.DOTALL)

pytestmark = [pytest.mark.multiprocess, pytest.mark.newest]


def test_there_are_five_examples() -> None:
    assert len(EXAMPLES) == 5


@pytest.mark.parametrize("number", range(len(EXAMPLES)))
def test_example_in_the_readme(number: int, tmp_path: Path) -> None:
    hidden = ("NPROC", "XLA_FLAGS", "NEURENIX_SIMULATE")
    done = subprocess.run(
        [sys.executable, "-c", EXAMPLES[number]],
        cwd=tmp_path,
        env={name: value for name, value in os.environ.items() if name not in hidden},
        capture_output=True,
        text=True,
        timeout=540,
        check=False,
    )
    assert done.returncode == 0, f"{EXAMPLES[number]}\n{done.stdout}\n{done.stderr}"
    # A comment `# prints: …` is what the line prints.
    for text in re.findall(r"# prints: (.*)", EXAMPLES[number]):
        assert text.strip() in done.stdout, f"{text!r} is not in:\n{done.stdout}"


@pytest.mark.pure
def test_every_command_and_file_that_it_names_is_there() -> None:
    targets = set(re.findall(r"^([a-z]+):", (REPOSITORY / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"`?make ([a-z]+)", README)) <= targets
    for target in re.findall(r"\]\(([^)#]+)\)", README):
        assert (REPOSITORY / target).exists(), target


@pytest.mark.cpu8
def test_every_option_that_it_writes_is_one() -> None:
    commands: Any = typer.main.get_command(app)
    written = re.findall(r"neurenix (\w+)((?:\s+(?!neurenix )[^\s`|]+)*)", README)
    known = [(name, rest) for name, rest in written if name in commands.commands]
    assert {name for name, _ in known} == set(commands.commands)
    for name, rest in known:
        options = {option for param in commands.commands[name].params for option in param.opts}
        for option in re.findall(r"(?<!\S)--[\w-]+", rest):
            assert option in options, (name, option)


@pytest.mark.pure
def test_the_versions_that_it_says_were_run_are_the_locked_ones() -> None:
    lock = (REPOSITORY / "requirements.lock").read_text()
    rows = re.findall(r"^\| (3\.\d+) \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \|", README, re.MULTILINE)
    assert [row[0] for row in rows] == ["3.11", "3.12"]
    for _, jax, flax, libtpu in rows:
        for name, version in (("jax", jax), ("flax", flax), ("libtpu", libtpu)):
            assert re.search(rf"^{name}=={re.escape(version)} ", lock, re.MULTILINE), (
                name,
                version,
            )
