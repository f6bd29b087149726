"""README and docs: examples run; commands, options, links and versions exist."""

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
PAGES = [REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").glob("*.md"))]
TEXT = {page.relative_to(REPOSITORY).as_posix(): page.read_text() for page in PAGES}
EXAMPLES = [
    pytest.param(example, id=f"{name}-{number}")
    for name, text in TEXT.items()
    for number, example in enumerate(re.findall(r"```python\n(.*?)```", text, re.DOTALL))
]

pytestmark = [pytest.mark.multiprocess, pytest.mark.newest]


@pytest.mark.pure
def test_the_readme_is_short_and_has_examples() -> None:
    assert TEXT["README.md"].count("\n") < 200
    assert TEXT["README.md"].count("```python\n") >= 2


@pytest.mark.parametrize("example", EXAMPLES)
def test_example(example: str, tmp_path: Path) -> None:
    hidden = ("NPROC", "XLA_FLAGS", "NEURENIX_SIMULATE")
    done = subprocess.run(
        [sys.executable, "-c", example],
        cwd=tmp_path,
        env={name: value for name, value in os.environ.items() if name not in hidden},
        capture_output=True,
        text=True,
        timeout=540,
        check=False,
    )
    assert done.returncode == 0, f"{example}\n{done.stdout}\n{done.stderr}"
    # A comment `# prints: …` is what the line prints.
    for text in re.findall(r"# prints: (.*)", example):
        assert text.strip() in done.stdout, f"{text!r} is not in:\n{done.stdout}"


@pytest.mark.pure
@pytest.mark.parametrize("name", TEXT)
def test_make_targets_and_linked_files_exist(name: str) -> None:
    makefile = (REPOSITORY / "Makefile").read_text()
    targets = set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))
    assert set(re.findall(r"(?:\$ |`)make ([a-z-]+)", TEXT[name])) <= targets
    for target in re.findall(r"\]\(([^)#:]+)\)", TEXT[name]):
        assert (REPOSITORY / name).parent.joinpath(target).exists(), target


@pytest.mark.cpu8
def test_commands_and_options_exist() -> None:
    commands: Any = typer.main.get_command(app)
    text = "\n".join(TEXT.values())
    written = re.findall(r"neurenix (\w+)((?:\s+(?!neurenix )[^\s`|]+)*)", text)
    known = [(name, rest) for name, rest in written if name in commands.commands]
    assert {name for name, _ in known} == set(commands.commands)
    for name, rest in known:
        options = {option for param in commands.commands[name].params for option in param.opts}
        for option in re.findall(r"(?<!\S)--[\w-]+", rest):
            assert option in options, (name, option)


@pytest.mark.pure
def test_the_versions_in_the_docs_are_the_locked_ones() -> None:
    lock = (REPOSITORY / "requirements.lock").read_text()
    text = TEXT["docs/what-was-run.md"]
    rows = re.findall(r"^\| (3\.\d+) \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \|", text, re.MULTILINE)
    assert [row[0] for row in rows] == ["3.11", "3.12"]
    for _, jax, flax, libtpu in rows:
        for name, version in (("jax", jax), ("flax", flax), ("libtpu", libtpu)):
            assert re.search(rf"^{name}=={re.escape(version)} ", lock, re.MULTILINE), (
                name,
                version,
            )
