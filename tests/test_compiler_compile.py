"""Workers and the cache: crashes, time limits, Ctrl-C, damage. No compiler runs in here."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from neurenix import chips
from neurenix._core.errors import ArgumentError, DeviceInitializationError
from neurenix.compiler import compile as compile_module
from neurenix.compiler.cache import Cache, key
from neurenix.compiler.compile import CompileOptions, Refusal, check_machine, compile_all
from neurenix.compiler.program import Program
from neurenix.compiler.target import Target

pytestmark = pytest.mark.multiprocess

PROGRAM = Program("step", b"not a program", "", {"data": 1}, (), (), 0.0, 0)
TARGET = Target.of(chips.resolve("v5e-1"))


def worker(monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    monkeypatch.setattr(compile_module, "_command", lambda folder: [sys.executable, "-c", code])


def run(**options) -> object:
    return compile_all([(PROGRAM, TARGET)], CompileOptions(cache=False, **options))[0]


def test_a_crash_is_an_answer_that_names_signal_target_and_versions(monkeypatch) -> None:
    crash = "import os, sys; print('last words', flush=True); os.kill(os.getpid(), 11)"
    worker(monkeypatch, crash)
    answer = run()
    assert isinstance(answer, Refusal)
    assert answer.kind == "crash"
    for text in ("SIGSEGV", "v5e-1", "libtpu", "last words", "report it"):
        assert text in answer.message


def test_a_crash_is_not_kept_in_the_cache(monkeypatch, tmp_path: Path) -> None:
    worker(monkeypatch, "import os; os._exit(7)")
    options = CompileOptions(cache_directory=tmp_path)
    (answer,) = compile_all([(PROGRAM, TARGET)], options)
    assert isinstance(answer, Refusal)
    assert "exit code 7" in answer.message
    assert list(tmp_path.iterdir()) == []


def test_a_worker_without_end_is_stopped(monkeypatch) -> None:
    worker(monkeypatch, "import time; time.sleep(60)")
    started = time.monotonic()
    answer = run(timeout_seconds=1.0)
    assert isinstance(answer, Refusal)
    assert answer.kind == "timeout"
    assert "longer than 1 s and was stopped" in answer.message
    assert time.monotonic() - started < 30


REFUSALS = [
    (
        "RESOURCE_EXHAUSTED: Ran out of memory on HBM, the total memory required for HLO "
        "temporaries (40.00G) exceeds available HBM (15.75G).",
        "hbm",
        40 * 2**30,
    ),
    ("E1001: CompileTimeScopedVmemOom: kernel k uses 130M", "vmem", None),
    ("INVALID_ARGUMENT: something else", "error", None),
]


@pytest.mark.parametrize(("text", "kind", "needed"), REFUSALS)
def test_what_the_compiler_says_is_told_apart(monkeypatch, text, kind, needed) -> None:
    code = f"""
        import json, sys, pathlib
        (pathlib.Path({{folder!r}}) / "result.json").write_text(
            json.dumps({{"outcome": "refused", "error_type": "E", "error": {text!r}}}))
    """.replace("{{", "{").replace("}}", "}")
    monkeypatch.setattr(
        compile_module,
        "_command",
        lambda folder: [
            sys.executable, "-c", textwrap.dedent(code).replace("{folder!r}", repr(folder))
        ],
    )  # fmt: skip
    answer = run()
    assert isinstance(answer, Refusal)
    assert (answer.kind, answer.needed_bytes) == (kind, needed)


@pytest.mark.parametrize(("system", "machine"), [("Darwin", "arm64"), ("Linux", "aarch64")])
def test_machines_without_a_tpu_compiler(monkeypatch, system, machine) -> None:
    monkeypatch.setattr("platform.system", lambda: system)
    monkeypatch.setattr("platform.machine", lambda: machine)
    with pytest.raises(DeviceInitializationError, match=f"this is {system} on {machine}"):
        check_machine()


def test_a_missing_compiler_says_what_to_install(monkeypatch) -> None:
    monkeypatch.setattr("platform.system", lambda: "Linux")
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(DeviceInitializationError, match="pip install libtpu"):
        check_machine()


def test_an_effort_that_ruins_estimates_is_refused() -> None:
    with pytest.raises(ArgumentError, match="no use"):
        CompileOptions(compiler_options={"exec_time_optimization_effort": -1.0})


SLEEPING = """
    import os, pathlib, sys, time
    from neurenix import chips
    from neurenix.compiler import compile as c
    from neurenix.compiler.program import Program
    from neurenix.compiler.target import Target
    note = pathlib.Path(sys.argv[1])
    child = "import os, sys, time; open(sys.argv[1], 'w').write(str(os.getpid())); time.sleep(60)"
    c._command = lambda folder: [sys.executable, "-c", child, str(note)]
    program = Program("step", b"", "", {"data": 1}, (), (), 0.0, 0)
    c.compile_all([(program, Target.of(chips.resolve("v5e-1")))], c.CompileOptions(cache=False))
"""


def test_ctrl_c_leaves_no_process_and_no_file(tmp_path: Path) -> None:
    note, scratch = tmp_path / "pid", tmp_path / "scratch"
    scratch.mkdir()
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(SLEEPING), str(note)],
        env={**os.environ, "TMPDIR": str(scratch)},
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 120
    while not (note.exists() and note.read_text()) and time.monotonic() < deadline:
        time.sleep(0.1)
    child = int(note.read_text())
    assert list(scratch.iterdir())
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert "KeyboardInterrupt" in errors
    assert not Path(f"/proc/{child}").exists()
    assert list(scratch.iterdir()) == []


def test_entries_come_back_as_they_were(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    assert cache.load("a") is None
    cache.store("a", {"outcome": "compiled", "hlo": "text"})
    assert cache.load("a") == {"outcome": "compiled", "hlo": "text"}
    assert [path.name for path in tmp_path.iterdir()] == ["a.bin"]
    assert cache.notes == []


@pytest.mark.parametrize("damage", ["shorten", "flip", "empty", "foreign"])
def test_a_damaged_entry_counts_as_none_and_is_told(tmp_path: Path, damage: str) -> None:
    cache = Cache(tmp_path)
    cache.store("a", {"outcome": "compiled"})
    path = tmp_path / "a.bin"
    content = path.read_bytes()
    flipped = content[:-3] + bytes([content[-3] ^ 1]) + content[-2:]
    damaged = {"shorten": content[:-4], "flip": flipped, "empty": b"", "foreign": b"PK" * 99}
    path.write_bytes(damaged[damage])
    assert cache.load("a") is None
    (note,) = cache.notes
    assert "damaged; compiled again" in note


def test_a_cache_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    cache = Cache(blocked / "below")
    cache.store("a", {})
    assert "could not be kept" in cache.notes[0]


def test_the_key_depends_on_everything_that_the_answer_does(monkeypatch) -> None:
    names = {key("p", {"a": 1}), key("q", {"a": 1}), key("p", {"a": 2})}
    monkeypatch.setenv("LIBTPU_INIT_ARGS", "--xla_tpu_x=1")
    names.add(key("p", {"a": 1}))
    monkeypatch.setattr("neurenix.compiler.cache.versions", lambda: {"libtpu": "0"})
    names.add(key("p", {"a": 1}))
    assert len(names) == 5
