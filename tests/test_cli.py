"""The command line, as its users see it: real processes, their output and exit status."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import neurenix
from neurenix.preflight import fail_if

pytestmark = [pytest.mark.cpu8, pytest.mark.newest]

CLI = ("-m", "neurenix")


def write(folder: Path, name: str, text: str) -> str:
    (folder / name).write_text(text)
    return str(folder / name)


def test_version(run_python) -> None:
    done = run_python(*CLI, "--version")
    assert (done.returncode, done.stdout) == (0, f"neurenix {neurenix.__version__}\n")
    assert done.stderr == ""


def test_version_loads_no_jax(run_python) -> None:
    code = (
        "import sys; sys.argv = ['neurenix', '--version']; from neurenix.cli.app import main\n"
        "try: main()\nexcept SystemExit: print('jax' in sys.modules)"
    )
    assert run_python(code=code).stdout.endswith("False\n")


def test_help_names_the_commands(run_python) -> None:
    done = run_python(*CLI, "--help")
    for command in ("devices", "run", "env"):
        assert command in done.stdout


def test_help_of_preflight_names_what_a_condition_may_ask_about(run_python) -> None:
    words = set(re.split(r"[\s,;:.]+", run_python(*CLI, "preflight", "--help").stdout))
    assert not {*fail_if.NAMES, *fail_if.UNITS, "and", "or", "not"} - {"\u00b5s", "\u03bcs"} - words


def test_devices(run_python) -> None:
    done = run_python(*CLI, "devices", env={"JAX_PLATFORMS": "cpu"})
    lines = dict(line.split(maxsplit=1) for line in done.stdout.splitlines())
    assert lines["cpu:0"].strip() == "cpu"
    assert "installed" in lines["webgpu"] or "adapter" in lines["webgpu"]
    assert done.returncode == 0


def test_devices_of_a_simulated_slice(run_python) -> None:
    for arguments, env in (
        (("--simulate", "v6e-4"), {}),
        ((), {"NEURENIX_SIMULATE": "v6e-4"}),
    ):
        done = run_python(*CLI, "devices", *arguments, env=env)
        lines = [line.split(maxsplit=1) for line in done.stdout.splitlines()]
        assert [name for name, _ in lines][:5] == ["tpu:0", "tpu:1", "tpu:2", "tpu:3", "cpu:0"]
        assert lines[0][1].split() == ["TPU", "v6", "lite", "simulated"]


def test_an_error_of_ours_is_a_message_and_no_traceback(run_python) -> None:
    done = run_python(*CLI, "devices", env={"NEURENIX_SIMULATE": "v6e-5"})
    assert done.returncode == 2
    assert done.stderr.startswith("neurenix: There is no slice 'v6e-5'. Did you mean 'v6e-4'")
    assert "NEURENIX_SIMULATE=v6e-5" in done.stderr
    assert "Traceback" not in done.stderr


def test_env_is_a_block_to_paste(run_python) -> None:
    done = run_python(
        *CLI,
        "env",
        env={"NEURENIX_SIMULATE": "v5e-4", "JAX_ENABLE_X64": "0", "A_SECRET": "hunter2"},
    )
    lines = done.stdout.splitlines()
    assert (lines[0], lines[-1]) == ("```", "```")
    rows = dict(line.split(maxsplit=1) for line in lines[1:-1])
    assert rows["neurenix"] == neurenix.__version__
    assert rows["python"].startswith(".".join(map(str, sys.version_info[:3])))
    assert rows["simulation"] == "simulated v5e-4 (4 devices)"
    assert rows["devices"].startswith("tpu:0 (TPU v5 lite)")
    assert {"jax", "jaxlib", "flax", "NEURENIX_SIMULATE", "JAX_ENABLE_X64"} <= set(rows)
    assert "hunter2" not in done.stdout


ARGUMENTS = "import sys; print(sys.argv[1:], __name__, __file__ if '__file__' in dir() else '')"


def test_run_gives_the_program_its_own_arguments(run_python, tmp_path: Path) -> None:
    script = write(tmp_path, "show.py", ARGUMENTS)
    done = run_python(
        *CLI,
        "run",
        script,
        "--numerics",
        "x",
        "-m",
        "--help",
        "plain",
        env={"JAX_PLATFORMS": "cpu"},
    )
    assert done.stdout.split(" __main__ ") == [
        "['--numerics', 'x', '-m', '--help', 'plain']",
        f"{script}\n",
    ], done.stderr


def test_run_a_script_that_knows_only_jax(run_python, tmp_path: Path) -> None:
    write(tmp_path, "beside.py", "NUMBER = 7")
    script = write(
        tmp_path,
        "plain.py",
        "import jax, beside; print(len(jax.devices()), jax.devices('tpu') == jax.devices(), "
        "beside.NUMBER, float(jax.numpy.matmul(jax.numpy.full((1, 1), 1.001), "
        "jax.numpy.eye(1))[0, 0]))",
    )
    exact = run_python(*CLI, "run", "--simulate", "v5e-8", script)
    assert exact.stdout.split()[:3] == ["8", "True", "7"], exact.stderr
    assert float(exact.stdout.split()[3]) == pytest.approx(1.001, abs=1e-6)
    rounded = run_python(*CLI, "run", "--simulate", "v5e-8", "--numerics", "tpu", script)
    assert float(rounded.stdout.split()[3]) == 1.0


def test_run_keeps_the_slice_and_numerics_that_the_command_names(run_python, tmp_path) -> None:
    script = write(
        tmp_path,
        "own.py",
        "import neurenix as nx; nx.simulate('v5e-8'); "
        "print(len(nx.devices('tpu')), float(nx.matmul(nx.full((1, 1), 1.001), nx.eye(1))[0, 0]))",
    )
    done = run_python(*CLI, "run", "--simulate", "v5e-4", "--numerics", "tpu", script)
    assert done.stdout.split() == ["4", "1.0"], done.stderr
    assert "the program asks for v5e-8 and runs on simulated v5e-4" in done.stderr


def test_run_a_module(run_python, tmp_path: Path) -> None:
    package = tmp_path / "shown"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "__main__.py").write_text(ARGUMENTS)
    done = run_python(*CLI, "run", "-m", "shown", "--flag", "1")
    assert done.stdout.startswith("['--flag', '1'] __main__"), done.stderr


def test_run_passes_on_how_the_program_ended(run_python, tmp_path: Path) -> None:
    assert run_python(*CLI, "run", write(tmp_path, "a.py", "raise SystemExit(3)")).returncode == 3
    script = write(tmp_path, "b.py", "def inner():\n    raise KeyError('lost')\n\ninner()\n")
    done = run_python(*CLI, "run", script)
    assert done.returncode == 1
    assert done.stderr.splitlines() == [
        "Traceback (most recent call last):",
        f'  File "{script}", line 4, in <module>',
        "    inner()",
        f'  File "{script}", line 2, in inner',
        "    raise KeyError('lost')",
        "KeyError: 'lost'",
    ]


def test_run_shows_our_errors_in_a_program_with_their_place(run_python, tmp_path: Path) -> None:
    script = write(
        tmp_path, "late.py", "import jax; jax.devices()\nimport neurenix as nx\nnx.simulate('v4-8')"
    )
    done = run_python(*CLI, "run", script, env={"JAX_PLATFORMS": "cpu"})
    assert done.returncode == 1
    assert f'File "{script}", line 3' in done.stderr
    assert "neurenix run --simulate v4-8" in done.stderr


AS_PYTHON_DOES = """
import atexit, multiprocessing, os, pathlib, pickle, signal, sys, threading, time

class Record:
    pass

def wait():
    time.sleep(60)

def at_exit():
    print("at exit:", pickle.loads(pickle.dumps(Record())).__class__ is Record)

def later():
    main.join()
    print("thread:", sys.modules["__main__"].Record is Record)

atexit.register(at_exit)
main = threading.main_thread()
threading.Thread(target=later).start()
os.chdir("/")
print("file:", len(pathlib.Path(__file__).read_text()) > 100)
print("handler:", signal.getsignal(signal.SIGTERM) is signal.SIG_DFL)
child = multiprocessing.get_context("fork").Process(target=wait)
child.start()
child.terminate()
child.join()
print("child:", child.exitcode)
"""


@pytest.mark.parametrize("program", [("as_python.py",), ("-m", "as_python"), ("folder",)])
def test_run_is_as_python_runs_it(tmp_path: Path, program: tuple[str, ...]) -> None:
    write(tmp_path, "as_python.py", AS_PYTHON_DOES)
    (tmp_path / "folder").mkdir()
    write(tmp_path / "folder", "__main__.py", AS_PYTHON_DOES)
    said = [
        subprocess.run(
            [sys.executable, *command, *program],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=60,
        )
        for command in ((), (*CLI, "run"))
    ]
    assert said[0].stdout.splitlines() == [
        "file: True", "handler: True", "child: -15", "thread: True", "at exit: True",
    ]  # fmt: skip
    assert (said[1].stdout, said[1].returncode) == (said[0].stdout, 0), said[1].stderr


def test_run_interrupted(tmp_path: Path) -> None:
    script = write(tmp_path, "wait.py", "import time\nprint('ready', flush=True)\ntime.sleep(60)")
    command, pipe = [sys.executable, *CLI, "run", script], subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            process.send_signal(signal.SIGINT)
            _, said = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == 130
    assert said.endswith("KeyboardInterrupt\n")


@pytest.mark.parametrize(
    ("arguments", "status", "says"),
    [
        (("run", "no_such_file.py"), 2, "there is no file 'no_such_file.py'"),
        (("run", "."), 2, "'.' is a folder, and has no __main__.py"),
        (("run", "-m", "no_such.module"), 2, "there is no module 'no_such'"),
        (("run", "--simulate", "v5e-9", __file__), 2, "Did you mean 'v5e-8'"),
        (("run", "--numerics", "tpu", __file__), 2, "requires --simulate"),
        (("run", "--simulate", "v5e-8", "--numerics", "int8", __file__), 2, "Known: float32, tpu"),
        (("run",), 2, "PROGRAM"),
        (("rnu", "x.py"), 2, "rnu"),
    ],
)
def test_run_mistakes(run_python, arguments: tuple[str, ...], status: int, says: str) -> None:
    done = run_python(*CLI, *arguments)
    assert done.returncode == status
    assert says in done.stderr
    assert "Traceback" not in done.stderr


def test_compile_takes_one_slice(run_python, tmp_path: Path) -> None:
    script = write(tmp_path, "train.py", "raise SystemExit('it was run')")
    done = run_python(*CLI, "compile", script, "--on", "v5e-1,v6e-1", "-o", str(tmp_path / "a.nxc"))
    assert done.returncode == 2
    assert "compile takes one slice" in done.stderr
    assert "it was run" not in done.stdout + done.stderr
