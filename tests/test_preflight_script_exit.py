"""Scripts that catch what should stop them, and scripts without a step that would."""

from __future__ import annotations

import os
import sys
import threading
import time
from pathlib import Path

import pytest

from neurenix._core.errors import ArgumentError
from neurenix.preflight.script import run_script as script_module
from neurenix.preflight.script.run_script import first_step

pytestmark = [pytest.mark.cpu8, pytest.mark.newest]

BEGIN = """
import time
import jax.numpy as jnp
import neurenix as nx
compiled = nx.jit(lambda w, x: w + x.sum())
def step():
    compiled(jnp.ones(3), jnp.ones(4))
    open("taken", "w").close()
"""
FIT = """
import numpy as np
import neurenix as nx
model = nx.nn.Sequential(nx.nn.Linear(4, 4)).compile("sgd", "mse")
def step():
    model.fit(np.ones((8, 4), "float32"), np.ones((8, 4), "float32"), verbose=0)
    open("taken", "w").close()
"""
CATCHING = {
    "exceptions": "try: step()\nexcept Exception: open('taken', 'w').close()",
    "few times": "for _ in range(5):\n  try: step()\n  except: pass",
    "for ever": "while True:\n  try: step()\n  except: pass",
    "with a name": "while True:\n  try: step()\n  except BaseException as error: print(error)",
    "in a function": "def run():\n  while True:\n    try: step()\n    except: pass\nrun()",
    "again": "try: step()\nexcept:\n  while True:\n    try: step()\n    except: continue",
    "return": "def run():\n  try: step()\n  finally: return\nwhile True: run()",
}


@pytest.mark.parametrize("begin", [BEGIN, FIT], ids=["nx.jit", "fit"])
@pytest.mark.parametrize("rest", CATCHING.values(), ids=CATCHING)
def test_the_first_step_is_known_and_none_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, begin: str, rest: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(begin + rest)
    tracing = sys.gettrace()
    target, args, *_ = first_step("train.py", timeout_seconds=60)
    assert callable(getattr(target, "fit", target))
    assert len(args) == (3 if begin is FIT else 2)  # with weights, as its batch is filled up
    assert not (tmp_path / "taken").exists()
    assert sys.gettrace() is tracing


@pytest.mark.parametrize("then", ["time.sleep(60)", ""], ids=["main sleeps", "main ends"])
def test_a_step_in_a_thread_ends_the_script(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, then: str
) -> None:
    ended: list[object] = []  # by what; Python says nothing of SystemExit
    monkeypatch.setattr(threading, "excepthook", lambda args: ended.append(args.exc_type))
    thread = "import threading, time\nthreading.Thread(target=step).start()\n"
    went_on = tmp_path / "went_on"
    ending = f"{then}\nopen({str(went_on)!r}, 'w').close()" if then else ""
    (tmp_path / "train.py").write_text(BEGIN + thread + ending)
    before, started = threading.enumerate(), time.monotonic()
    assert len(first_step(tmp_path / "train.py", timeout_seconds=60)[1]) == 2
    assert time.monotonic() - started < 30
    assert not went_on.exists()
    for started_by_it in set(threading.enumerate()) - set(before):
        started_by_it.join(10)
    assert ended == [SystemExit]


def test_what_a_script_does_on_its_way_out_is_done(tmp_path: Path) -> None:
    done = tmp_path / "done"
    ending = f"try: step()\nfinally:\n  time.sleep(0.1)\n  open({str(done)!r}, 'w').close()"
    (tmp_path / "train.py").write_text(BEGIN + ending)
    first_step(tmp_path / "train.py")
    assert done.exists()


def test_what_it_does_for_ever_after_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(script_module, "_GRACE_SECONDS", 0.5)
    (tmp_path / "train.py").write_text(BEGIN + "try: step()\nexcept: pass\ntime.sleep(300)")
    started = time.monotonic()
    first_step(tmp_path / "train.py")
    assert time.monotonic() - started < 60


def test_a_script_that_cannot_be_stopped_is_told_what_to_write(run_python, tmp_path: Path) -> None:
    nested = "while True:\n  try:\n    try: step()\n    except: pass\n  except: pass"
    (tmp_path / "train.py").write_text(BEGIN + nested)
    (tmp_path / "run.py").write_text(
        "from neurenix.preflight.script import run_script, script_exit\n"
        "run_script._GRACE_SECONDS = script_exit._AGAIN_SECONDS = 0.2\n"
        "run_script.first_step('train.py')\n"
    )
    done = run_python("run.py")
    assert done.returncode == 2, done.stdout + done.stderr
    assert "train.py reached a training step, and nothing ends it" in done.stderr
    assert "Write except Exception:" in done.stderr
    assert not (tmp_path / "taken").exists()


WAYS_OUT = {
    "_exit": ("os._exit(0)", r"os\._exit\(0\)"),
    "another program": ("os.execvp('true', ['true'])", r"os\.execv\(…\)"),
    "caught": ("try: os._exit(0)\nexcept: os._exit(3)", r"os\._exit\(0\)"),
}


@pytest.mark.parametrize(("code", "said"), WAYS_OUT.values(), ids=WAYS_OUT)
def test_a_script_that_ends_the_process_has_no_step(tmp_path: Path, code: str, said: str) -> None:
    (tmp_path / "train.py").write_text(f"import os\n{code}")
    before = os._exit, os.execv
    with pytest.raises(ArgumentError, match=f"train.py called {said} before any step"):
        first_step(tmp_path / "train.py", timeout_seconds=60)
    assert (os._exit, os.execv) == before


def test_a_script_that_ends_the_process_after_its_step_has_one(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(f"import os\n{BEGIN}try: step()\nfinally: os._exit(0)")
    assert len(first_step(tmp_path / "train.py")[1]) == 2


CHILDREN = """
import os, subprocess, sys
ends = [lambda: sys.exit(3), lambda: os._exit(4), lambda: None, lambda: 1 / 0, step]
for end in ends:
    child = os.fork()
    if child == 0:
        end()
        break
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
else:
    print(subprocess.run(["echo", "ran"], capture_output=True).stdout, flush=True)
    step()
"""


def test_children_end_as_they_wish_and_the_verdict_is_the_scripts(
    run_python, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(BEGIN + CHILDREN)
    code = (
        "from neurenix.preflight.script.run_script import first_step; "
        "print('verdict', first_step('train.py'))"
    )
    done = run_python(code=code, env={"PYTHONWARNINGS": "ignore", "JAX_PLATFORMS": "cpu"})
    lines = done.stdout.splitlines()
    assert lines[:6] == ["3", "4", "0", "1", "2", "b'ran\\n'"], done.stdout + done.stderr
    assert len([line for line in lines if line.startswith("verdict")]) == 1
    assert "ZeroDivisionError" in done.stderr
    assert "a process that the script forked reached a training step" in done.stderr


def test_a_script_that_only_speaks_of_jit_is_not(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print(1)  # no jax.jit here\n")
    with pytest.raises(ArgumentError, match="For plain JAX call nx.preflight"):
        first_step(tmp_path / "train.py")


def test_a_part_of_what_jax_traces_is_no_step(tmp_path: Path) -> None:
    code = "jax.jit(lambda w: part(w).sum())(jnp.ones(3))\nstep(jnp.ones(4))"
    parts = (
        "part = nx.jit(lambda w: w + 1)\nstep = nx.jit(lambda w: jax.grad(lambda w: part(w)[0])(w))"
    )
    begin = "import jax\nimport jax.numpy as jnp\nimport neurenix as nx\n"
    (tmp_path / "train.py").write_text(f"{begin}{parts}\n{code}")
    assert [arg.shape for arg in first_step(tmp_path / "train.py")[1]] == [(4,)]
