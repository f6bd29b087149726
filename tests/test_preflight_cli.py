"""``neurenix preflight`` as its users and their CI see it: processes, output, exit status."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from cli_helpers import SCRIPT

pytestmark = [pytest.mark.tpu_compile, pytest.mark.newest]


@pytest.fixture
def preflight(command):
    """Return ``command`` for ``neurenix preflight``."""
    return partial(command, "preflight")


def test_options_may_follow_the_script_as_in_the_issue_of_a_ci(preflight, tmp_path: Path) -> None:
    condition = "not fits or step_time > 1 min"
    done = preflight(
        "train.py", "--on", "v5e-8,v6e-8", "--lr", "1", "--fail-if", condition, "--json", "r.json"
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "arguments: ['--lr', '1']" in done.stdout
    assert "trained" not in done.stdout
    assert "Preflight of training step on v5e-8" in done.stdout
    assert "Preflight of training step on v6e-8" in done.stdout
    assert "failed" not in done.stderr
    written = json.loads((tmp_path / "r.json").read_text())
    assert [report["slice"]["name"] for report in written] == ["v5e-8", "v6e-8"]
    for report in written:  # 640 examples in batches of 64
        cost = report["estimated_cost"]
        assert cost["usd_per_epoch"] == pytest.approx(10 * cost["usd_per_step"])
    assert " ".join(done.stdout.split()).count("USD for an epoch of 10 steps; 8 chips at") == 2
    assert max(len(line) for line in done.stdout.splitlines()) <= 100


def test_after_a_script_that_follows_on_everything_is_the_scripts(preflight) -> None:
    done = preflight("--on", "v5e-8", "train.py", "--json", "x", "--on", "y", "--", "-z")
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"arguments: \['--json', 'x', '--on', 'y', (?:'--', )?'-z'\]", done.stdout)


def test_a_condition_that_is_true_fails_and_says_where_and_why(preflight, tmp_path: Path) -> None:
    done = preflight(
        "train.py", "--on", "v5e-8,v6e-8", "--html", "r.html", "--price", "v5e=3,v6e=2",
        "--fail-if", "not fits or hbm_headroom < 20 GiB",
    )  # fmt: skip
    assert done.returncode == 1, done.stdout + done.stderr
    failures = [line for line in done.stderr.splitlines() if "failed on" in line]
    assert len(failures) == 1  # a v6e has 31.25 GiB
    assert failures[0].startswith(
        "neurenix: failed on v5e-8: not fits or hbm_headroom < 20 GiB "
        "(fits = true, hbm_headroom = 1.69"
    )
    # What was asked for is written all the same: one page of both slices, at the price given.
    page = (tmp_path / "r.html").read_text()
    assert page.count("<section class=target") == 2
    assert page.count("3 USD a chip-hour, your price") == 1
    assert page.count("2 USD a chip-hour, your price") == 1


def test_a_program_that_does_not_fit_fails_unless_told_otherwise(preflight) -> None:
    script = (
        "import jax.numpy as jnp, neurenix as nx\n"
        "@nx.jit\ndef f(x): return (x @ x) @ x\n"
        "import jax\nf(jax.ShapeDtypeStruct((65536, 65536), 'float32'))\n"
    )
    done = preflight("train.py", "--on", "v5e-1", script=script)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "neurenix: failed on v5e-1: not fits (fits = false)" in done.stderr
    assert re.search(r"fits +NO, .* too much", done.stdout)
    done = preflight("train.py", "--on", "v5e-1", "--fail-if", "errors > 5", script=script)
    assert done.returncode == 0, done.stdout + done.stderr


def test_what_the_output_holds_and_what_it_is_compared_with(commands, tmp_path: Path) -> None:
    one, both, wider = ("--on", "v5e-8"), ("--on", "v5e-8,v6e-8"), SCRIPT.replace("128", "512")
    own, far = ("--price", "5"), ("--region", "europe-west4")
    cases: dict[str, tuple[str, tuple[str, ...]]] = {
        "json": (SCRIPT, (*both, "--json", "-", "--price", "3")),
        "before": (SCRIPT, (*one, "--json", "before.json")),
        "changed": (wider, (*both, "--compare", "before.json")),
        "own": (SCRIPT, (*one, *own, "--json", "own.json")),
        "as own": (SCRIPT, (*one, *own, "--compare", "own.json")),
        "region": (SCRIPT, (*both, *far, "--fail-if", "fits")),
        "no price": (
            SCRIPT,
            (*one, *far, "--commitment", "3-year", "--fail-if", "cost_per_step > 1 USD"),
        ),
    }
    ended = commands("preflight", [(s, ("train.py", *given)) for s, given in cases.values()])
    done = dict(zip(cases, ended, strict=True))
    failed = {"region", "no price"}  # what is not known has not passed
    for name, one_done in done.items():
        assert one_done.status == ("1" if name in failed else "0"), (name, one_done)

    # JSON on the output is all there is.
    reports = json.loads(done["json"].stdout)
    assert [report["slice"]["name"] for report in reports] == ["v5e-8", "v6e-8"]
    assert reports[0]["estimated_cost"]["usd_per_chip_hour"] == 3
    for text in ("arguments: []", "from a child", "Preflight of training step"):
        assert text in done["json"].stderr

    assert "Compared with before.json: training step on v5e-8" in done["changed"].stdout
    grown = r"\n    parameters +41\.00 KiB → 1\d\d\.\d\d KiB \(\+"
    assert re.search(grown, done["changed"].stdout)
    assert "the slice was v5e-8 and is v6e-8" in done["changed"].stdout

    # A price of one's own changes nothing since a file with it.
    _, _, compared = done["as own"].stdout.partition("Compared with own.json")
    assert compared and "5 USD" not in compared and "cost" not in compared

    text = " ".join(done["region"].stdout.split())
    assert "8 chips at 1.56 USD an hour (europe-west4 on-demand" in text
    assert "8 chips at 2.97 USD an hour (europe-west4 on-demand" in text
    text = " ".join(done["no price"].stdout.split())
    assert "no public price for v5e in europe-west4, 3-year" in text
    assert "cost_per_step = not known" in done["no price"].stderr


# Mistakes: one message, status 2, no traceback.

COMMANDS: list[tuple[tuple[str, ...], str]] = [
    (("train.py", "--on", "v5e-9"), "There is no slice 'v5e-9'. Did you mean 'v5e-8'"),
    (("train.py", "--on", ","), "--on names no slice"),
    (("train.py",), "Missing option '--on'"),
    (("train.py", "--on", "v5e-8", "--fail-if", "step_tim > 1"), "Did you mean 'step_time'"),
    (("train.py", "--on", "v5e-8", "--fail-if", "open('x') == 1"), "is not a number"),
    (("train.py", "--on", "v5e-8", "--xla", "foo"), "'foo' is not of the form name=value."),
    (("train.py", "--on", "v5e-8", "--region", "mars"), "There is no region named 'mars'"),
    (("train.py", "--on", "v5e-8", "--commitment", "3year"), "Did you mean '3-year'"),
    (("train.py", "--on", "v5e-8", "--price", "-1"), "0 or more USD"),
    (("train.py", "--on", "v5e-8", "--price", "v5x=1"), "named 'v5x'. Did you mean 'v5"),
    (("train.py", "--on", "v5e-8", "--price", "cheap"), "'cheap' is not a price"),
    (("train.py", "--on", "v5e-8", "--compare", "no.json"), "no.json cannot be read"),
    (("train.py", "--on", "v5e-8", "--compare", "train.py"), "train.py is not JSON"),
    (("train.py", "--on", "v5e-8", "--timeout", "0"), "--timeout must be positive"),
    (("train.py", "--on", "v5e-8", "--compile-timeout", "0"), "--compile-timeout must be positive"),
    (("train.py", "--on", "v5e-8", "--compile-timeout", "nan"), "must be positive; got nan"),
    (
        ("train.py", "--on", "v5e-8", "--json", "train.py/r.json"),
        "r.json cannot be written: Not a directory.",
    ),
    (("train.py", "--on", "v5e-8,v5e-4", "--mesh", "fsdp=8"), "fsdp=8 has 8 devices, and v5e-4"),
    (("train.py", "--on", "v5e-8", "--mesh", "auto"), "'auto' is not a mesh"),
    (("train.py", "--on", "v5e-8", "--mesh", "data=2,data=4"), "Write each axis once"),
    (("trian.py", "--on", "v5e-8"), "There is no script 'trian.py'"),
]


def test_mistakes_in_the_command(mistakes, tmp_path: Path) -> None:
    cases = [("open('started', 'w')", arguments) for arguments, _ in COMMANDS]
    said = mistakes("preflight", cases)
    for (arguments, expected), text in zip(COMMANDS, said, strict=True):
        assert expected in text, arguments
    assert not (tmp_path / "started").exists()  # each is found before the script runs


def test_options_of_the_compiler_reach_it(mistakes) -> None:
    arguments = ("train.py", "--on", "v5e-8", "--xla", "xla_embed_ir_in_executable=true")
    (said,) = mistakes("preflight", [(SCRIPT, (*arguments, "--xla", "xla_a=1,xla_b=2"))])
    assert re.search("has no option 'xla_[ab]'", said)  # the compiler takes them in any order
    (said,) = mistakes("compile", [(SCRIPT, (*arguments, "--xla", "xla_a=1", "-o", "s.nxc"))])
    assert "has no option 'xla_a'" in said


SCRIPTS: list[tuple[str, tuple[str, ...]]] = [
    (
        SCRIPT.replace("batch_size=64", "batch_size=63"),
        ("A batch of 63 cannot be divided over the 8 replicas of v5e-8; take 56 or 64",),
    ),
    ("print('nothing')", ("train.py ended without a step", "nx.preflight(function")),
    ("raise SystemExit(3)", ("exit code 3", "before any step")),
    ("import os; os._exit(0)", ("train.py called os._exit(0) before any step",)),
    (
        "import os, threading, time\nthreading.Thread(target=os._exit, args=(0,)).start()\n"
        "time.sleep(60)",
        ("train.py called os._exit(0) before any step",),
    ),
    ("x = 1\nx.no_such()", ("AttributeError: 'int' object has no", 'train.py", line 2')),
    ("def f(:\n", ("SyntaxError", 'train.py", line 1')),
    ("import neurenix as nx\nnx.chips.resolve('v5-9')", ("no slice 'v5-9'", "line 2")),
]


def test_scripts_that_give_no_step(mistakes) -> None:
    said = mistakes("preflight", [(s, ("train.py", "--on", "v5e-8")) for s, _ in SCRIPTS])
    for (script, expected), text in zip(SCRIPTS, said, strict=True):
        for part in expected:
            assert part in text, script


def test_scripts_without_end(mistakes) -> None:
    endless = ["import time\nwhile True: time.sleep(0.1)", "while True: pass"]
    arguments = ("train.py", "--on", "v5e-8", "--timeout", "1")
    for text in mistakes("preflight", [(script, arguments) for script in endless]):
        assert "train.py reached no training step within 1 s" in text and "--timeout" in text


def one_message(done, *texts: str) -> None:
    assert done.returncode == 2, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    assert "Preflight of" not in done.stdout
    message = " ".join(done.stderr.split())
    for text in texts:
        assert text in message


def test_a_script_that_catches_what_should_stop_it(preflight) -> None:
    script = "import time\nwhile True:\n  try: time.sleep(30)\n  except: pass"
    done = preflight("train.py", "--on", "v5e-8", "--timeout", "1", script=script)
    one_message(done, "no training step within 1 s", "It catches what should stop it")


def test_a_step_that_the_script_catches_is_a_step(preflight) -> None:
    script = SCRIPT.replace("model.fit", "try: model.fit")
    script = script.replace('print("trained")', "except: print('caught')")
    done = preflight("train.py", "--on", "v5e-8", script=script)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "caught" in done.stdout and "Preflight of training step" in done.stdout


def test_a_step_in_a_thread_is_a_step_and_ends_the_script(preflight) -> None:
    script = SCRIPT.replace(
        "model.fit(",
        "import threading, time\nthread = threading.Thread(target=lambda: model.fit(",
    ).replace("batch_size=64)\n", "batch_size=64))\nthread.start()\n")
    script = script.replace('print("trained")', "thread.join()\ntime.sleep(60)\nprint(1, 2)")
    started = time.monotonic()
    done = preflight("train.py", "--on", "v5e-8", script=script)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Preflight of training step" in done.stdout
    assert "Traceback" not in done.stderr and "Exception" not in done.stderr
    assert "1 2" not in done.stdout
    assert time.monotonic() - started < 60


def test_a_step_in_a_pool_is_a_step(preflight) -> None:
    script = SCRIPT.replace(
        "model.fit(",
        "import concurrent.futures as c\npool = c.ThreadPoolExecutor()\npool.submit(model.fit, ",
    ).replace('print("trained")', "pool.shutdown()\nprint('went', 'on')")
    done = preflight("train.py", "--on", "v5e-8", script=script)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Preflight of training step" in done.stdout and "Traceback" not in done.stderr


def start(folder: Path, *arguments: str, **settings: Any) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "neurenix", "preflight", *arguments]
    environment = settings.pop("env", os.environ)
    # Output is kept back until it is enough, as users have it.
    env = {name: value for name, value in environment.items() if name != "PYTHONUNBUFFERED"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, cwd=folder, env=env, **pipes, **settings)


def test_sigterm_leaves_no_folder_and_is_status_143(tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    (tmp_path / "train.py").write_text("import time\nprint('on', flush=True)\ntime.sleep(120)")
    environment = {**os.environ, "TMPDIR": str(scratch)}
    process = start(tmp_path, "train.py", "--on", "v5e-8", env=environment)
    assert process.stdout is not None and process.stdout.readline() == "on\n"
    assert list(scratch.iterdir())
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 143
    assert "Traceback" not in said and "Error" not in said
    assert list(scratch.iterdir()) == []


def test_a_reader_that_is_gone_ends_it_quietly(tmp_path: Path) -> None:
    quiet = [line for line in SCRIPT.splitlines() if not line.startswith(("print", "os.system"))]
    (tmp_path / "train.py").write_text("\n".join(quiet))
    for arguments in ([], ["--json", "-"]):
        process = start(tmp_path, "train.py", "--on", "v5e-8", *arguments)
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        with process.stderr:
            said = process.stderr.read()
        assert process.wait(timeout=120) == 141, said
        assert "Broken pipe" not in said and "Error" not in said and "Exception" not in said


def test_json_through_a_pipe_by_its_number(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    reads, writes = os.pipe()
    process = start(
        tmp_path, "train.py", "--on", "v5e-8", "--json", f"/dev/fd/{writes}",
        pass_fds=(writes,),
    )  # fmt: skip
    os.close(writes)
    with open(reads, encoding="utf-8") as file:
        assert json.load(file)[0]["slice"]["name"] == "v5e-8"
    _, said = process.communicate(timeout=120)
    assert process.returncode == 0, said


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
def test_where_the_output_cannot_be_written() -> None:
    command = [sys.executable, "-m", "neurenix", "rule", "copy"]
    env = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            command, stdout=full, stderr=subprocess.PIPE, text=True, env=env, check=False
        )
    assert (done.returncode, done.stderr) == (
        2,
        "neurenix: The output cannot be written: No space left on device.\n",
    )


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
def test_json_where_there_is_no_room(preflight, tmp_path: Path) -> None:
    (tmp_path / "full").symlink_to("/dev/full")
    done = preflight("train.py", "--on", "v5e-8", "--json", "full")
    assert done.returncode == 2, done.stdout + done.stderr
    assert done.stderr.endswith("neurenix: full cannot be written: No space left on device.\n")
    assert (tmp_path / "full").is_symlink()


def test_a_full_folder_for_temporary_files_is_no_crash_of_the_compiler(preflight) -> None:
    # No file can become longer than this, as none can where there is no space.
    prelude = (
        "import resource, neurenix.compiler.compile as c; at = c.Path.write_bytes; "
        "c.Path.write_bytes = lambda *a: (resource.setrlimit(resource.RLIMIT_FSIZE, (99, 99)), "
        "at(*a))[1]"
    )
    done = preflight("train.py", "--on", "v5e-8", script=NOT_COMPILED, prelude=prelude)
    one_message(done, "cannot be used (File too large)", "set TMPDIR to another folder")


NOT_COMPILED = SCRIPT.replace("128", "136")


def test_without_libtpu(preflight) -> None:
    done = preflight(
        "train.py", "--on", "v5e-8", script=NOT_COMPILED, prelude="sys.modules['libtpu'] = None"
    )
    one_message(done, "libtpu is missing", "pip install libtpu")


def test_on_a_machine_for_which_there_is_no_libtpu(preflight) -> None:
    system, machine = "Darwin", "arm64"
    # The machine cannot be changed here; what Python says of it can.
    prelude = (
        "import platform, jax, jaxlib; "
        f"platform.system = lambda: {system!r}; platform.machine = lambda: {machine!r}"
    )
    done = preflight("train.py", "--on", "v5e-8", script=NOT_COMPILED, prelude=prelude)
    one_message(done, f"this is {system} on {machine}", "Simulated slices", "in CI")


def test_one_target_out_of_time_keeps_the_answers_of_the_others(preflight, tmp_path) -> None:
    assert preflight("train.py", "--on", "v5e-8").returncode == 0  # now it is in the cache
    done = preflight(
        "train.py", "--on", "v5p-8,v5e-8", "--compile-timeout", "0.2", "--json", "r.json"
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert "fits not known: the compiler's time was up" in " ".join(done.stdout.split())
    assert "failed on v5p-8" in done.stderr and "failed on v5e-8" not in done.stderr
    late, known = json.loads((tmp_path / "r.json").read_text())
    assert (late["fits"], late["refused"]) == (False, "timeout")
    assert known["fits"] and known["refused"] is None
