"""What commands print where the output is no terminal of today, and when its reader has gone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from cli_helpers import SCRIPT

pytestmark = pytest.mark.cpu8

CLI = (sys.executable, "-m", "neurenix")
COMMANDS = ("devices", "run", "preflight", "plan", "compile", "check", "rule", "env")
NARROW = {
    "ascii": {"PYTHONIOENCODING": "ascii"},
    "cp1252": {"PYTHONIOENCODING": "cp1252"},
    "latin-1": {"PYTHONIOENCODING": "latin-1"},
    "the C locale": {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
}
_EACH = """
import sys
from neurenix.cli.app import main
for arguments in {arguments!r}:
    sys.argv = ["neurenix", *arguments]
    try:
        main()
    except SystemExit as left:
        assert not left.code, (arguments, left.code)
"""
_QUIET = """
import numpy as np
import neurenix as nx
model = nx.nn.Linear(4, 1)
model.compile("sgd", "mse")
model.fit(np.ones((8, 4), "float32"), np.ones((8, 1), "float32"))
"""
_FIT = """
import numpy as np
import neurenix as nx
from neurenix import nn
def größe(y_true, y_pred):
    return nx.losses.mean_absolute_error(y_true, y_pred)
größe.__name__ = "größe\\x1b[31m"
model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
model.compile("adam", "mse", metrics=[größe])
x, y = np.ones((8, 4), "float32"), np.ones((8, 1), "float32")
log = nx.callbacks.CSVLogger("log.csv")
print(model.fit(x, y, epochs=3, validation_data=(x, y), callbacks=log))
print(model.summary((None, 4)))
for wrong in (lambda: nn.Embedding(4, 4)(np.array([9])), lambda: nx.chips.resolve("v5e-9")):
    try:
        wrong()
    except nx.NeurenixError as error:
        print(error)
report = nx.preflight(model, on="v5e-8", input_shape=(8, 4))
print(report)
print(report.text(40))
print(report.compare(report))
print(report.cost(1000))
"""


@pytest.mark.parametrize("output", NARROW)
def test_what_a_program_prints_is_spelled(tmp_path: Path, output: str) -> None:
    (tmp_path / "fit.py").write_text(_FIT, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "fit.py"],
        env=os.environ | {"COLUMNS": "80"} | NARROW[output],
        cwd=tmp_path,
        capture_output=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode("latin-1")
    encoding = {"the C locale": "ascii"}.get(output, output)
    text = done.stdout.decode(encoding)
    assert "\x1b" not in text and "\r" not in text
    lines = text.splitlines()
    epochs = [line for line in lines if line.startswith("Epoch ")]
    assert [line.split()[1] for line in epochs] == ["1/3", "2/3", "3/3"]
    name = "grosse?[31m" if encoding == "ascii" else "größe?[31m"
    assert all(f"  {name} " in line and f"  val_{name} " in line for line in epochs)
    assert "->" in text and ("~ " in text)
    assert ("50 us" if encoding == "ascii" else "50 µs") in text
    starts = [n for n, line in enumerate(lines) if line.startswith("Preflight of ")]
    assert len(starts) == 2 and max(map(len, lines[starts[0] : starts[1]])) <= 80
    assert "größe" in (tmp_path / "log.csv").read_text("utf-8")


def test_a_terminal_of_today_gets_the_signs_themselves() -> None:
    from neurenix._core.output_encoding import plain

    assert plain("≈ 3 µs → é", "utf-8") == "≈ 3 µs → é"
    assert plain("≈ 3 µs → é", "ascii") == "~ 3 us -> e"
    assert plain("≈ 3 µs → é 漢\udcff", "latin-1") == "~ 3 µs -> é ??"


@pytest.mark.parametrize("output", NARROW)
def test_no_command_fails_for_want_of_a_character(output: str) -> None:
    from neurenix import rules

    arguments = [(name, "-h") for name in COMMANDS]
    arguments += [("rule",), ("devices",), ("env",), *(("rule", name) for name in rules.names())]
    done = subprocess.run(
        [sys.executable, "-c", _EACH.format(arguments=arguments)],
        env=os.environ | NARROW[output],
        capture_output=True,
        timeout=300,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.parametrize("option", ["-h", "--help"])
def test_help_of_every_command(run_python, option: str) -> None:
    arguments = [(option,), *((name, option) for name in COMMANDS)]
    done = run_python(code=_EACH.format(arguments=arguments))
    usages = [line for line in done.stdout.splitlines() if line.startswith("Usage: ")]
    assert [line.split()[2] for line in usages] == ["[OPTIONS]", *COMMANDS], done.stderr
    assert done.stdout.isascii()


def test_help_of_a_program_is_the_programs(run_python, tmp_path: Path) -> None:
    (tmp_path / "show.py").write_text("import sys; print(sys.argv[1:])")
    done = run_python("-m", "neurenix", "run", "show.py", "-h")
    assert done.stdout == "['-h']\n", done.stderr


def test_a_program_that_is_run_has_the_output_that_python_gives(run_python, tmp_path) -> None:
    (tmp_path / "show.py").write_text("import sys; print(sys.stdout.errors, sys.stderr.errors)")
    said = [run_python(*how, "show.py").stdout for how in ((), ("-m", "neurenix", "run"))]
    assert said[0] and said[0] == said[1]


@pytest.mark.parametrize("command", ["rule", "devices", "env", "preflight -h", "-h"])
def test_a_reader_that_has_gone_ends_it_quietly(tmp_path: Path, command: str) -> None:
    reads, writes = os.pipe()
    os.close(reads)
    done = subprocess.run(
        [*CLI, *command.split()], stdout=writes, stderr=subprocess.PIPE, cwd=tmp_path, timeout=60,
        check=False,
    )  # fmt: skip
    os.close(writes)
    assert done.stderr == b"" and done.returncode == (1 if "-h" in command else 141)


def test_an_output_that_is_closed_is_none(tmp_path: Path) -> None:
    for command in ("rule", "devices"):
        shell = f"{sys.executable} -m neurenix {command} >&-"
        done = subprocess.run(
            ["sh", "-c", shell], stderr=subprocess.PIPE, cwd=tmp_path, timeout=60, check=False
        )
        assert (done.stderr, done.returncode) == (b"", 0)


def test_ctrl_c_is_no_traceback(tmp_path: Path) -> None:
    (tmp_path / "wait.py").write_text("import time\nprint('ready', flush=True)\ntime.sleep(60)")
    pipe = subprocess.PIPE
    command = [*CLI, "preflight", "wait.py", "--on", "v5e-1"]
    with subprocess.Popen(
        command, stdout=pipe, stderr=pipe, text=True, cwd=tmp_path, start_new_session=True
    ) as process:
        try:
            assert process.stdout is not None and process.stdout.readline() == "ready\n"
            time.sleep(0.5)
            os.killpg(process.pid, signal.SIGINT)  # as a terminal does, to all that it started
            _, said = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == 130
    assert "Traceback" not in said and said.endswith("neurenix: interrupted\n")


@pytest.mark.parametrize("command", ["preflight", "plan"])
def test_files_are_written_before_anything_is_printed(tmp_path: Path, command: str) -> None:
    (tmp_path / "train.py").write_text(_QUIET)
    files = ("--json", "new/r.json", "--html", "new/deep/r.html")
    shell = f"exec {sys.executable} -m neurenix {command} train.py --on v5e-1 {' '.join(files)}"
    done = subprocess.run(
        ["sh", "-c", f"{shell} > /dev/full"], stderr=subprocess.PIPE, cwd=tmp_path, timeout=120,
        check=False,
    )  # fmt: skip
    assert done.returncode == 2 and b"No space left on device" in done.stderr
    assert b"Traceback" not in done.stderr
    assert (tmp_path / "new/r.json").stat().st_size and (tmp_path / "new/deep/r.html").exists()


@pytest.mark.parametrize(
    ("command", "option"),
    [("preflight", "--json"), ("preflight", "--html"), ("plan", "--json"), ("plan", "--html"),
     ("compile", "-o")],
)  # fmt: skip
def test_what_cannot_be_written_is_found_before_the_script_runs(
    commands: Callable[..., list], tmp_path: Path, command: str, option: str
) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("before")
    paths = ("folder", "file/x", "/proc/x.json", "x" * 300, "train.py")
    cases = [(SCRIPT, ("train.py", "--on", "v5e-1", option, path)) for path in paths]
    for done, path in zip(commands(command, cases), paths, strict=True):
        assert (done.status, done.stdout) == ("2", ""), done
        assert done.stderr.startswith("neurenix: ") and path in done.stderr, done
        assert "Traceback" not in done.stderr
    assert (tmp_path / "train.py").read_text() == SCRIPT
