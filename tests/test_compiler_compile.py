"""Workers and the cache: crashes, time limits, Ctrl-C, damage. No compiler runs in here."""

from __future__ import annotations

import contextlib
import errno
import functools
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from pathlib import Path

import jax
import pytest
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec
from jaxlib import xla_client

from neurenix import chips
from neurenix._core.errors import (
    ArgumentError,
    ArgumentTypeError,
    CompilationError,
    DeviceInitializationError,
)
from neurenix.compiler import lowering
from neurenix.compiler import workers as workers_module
from neurenix.compiler.abstract_placement import UnplacedSpec, abstract_mesh
from neurenix.compiler.cache import Cache, key
from neurenix.compiler.compile import (
    Compiled,
    CompileOptions,
    Refusal,
    check_machine,
    compile_all,
)
from neurenix.compiler.program import Program, TraceOptions, spec, trace
from neurenix.compiler.target import Target
from neurenix.compiler.workers import NOT_WRITTEN, kept_workers

pytestmark = [
    pytest.mark.multiprocess,
    pytest.mark.usefixtures("own_compilers"),
    pytest.mark.newest,
]

TARGET = Target.of(chips.resolve("v5e-1"))


@functools.cache
def program() -> Program:
    return trace(jax.numpy.sin, (spec((8, 128)),), axes={"data": 1})


def worker(monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    """Let workers run ``code``, after the first request; ``folder`` is its directory."""
    code = f"import sys; folder = sys.stdin.readline().strip()\n{textwrap.dedent(code)}"
    monkeypatch.setattr(workers_module, "_command", lambda: [sys.executable, "-c", code])


def run(**options) -> object:
    return compile_all([(program(), TARGET)], CompileOptions(cache=False, **options))[0]


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
    options = CompileOptions(cache_directory=str(tmp_path))
    (answer,) = compile_all([(program(), TARGET)], options)
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
    (
        "RESOURCE_EXHAUSTED: XLA:TPU compile permanent error. Ran out of memory in memory space "
        "vmem. Used 160.80M of 128.00M vmem. Exceeded vmem capacity by 32.80M.\n\n [type."
        "googleapis.com/tensorflow.tpu.CompilationResultProto='\\x08Ran out']",
        "vmem",
        None,
    ),
    (
        "RESOURCE_EXHAUSTED: Ran out of memory in memory space hbm. Used 20.00G of 15.75G hbm.",
        "hbm",
        20 * 2**30,
    ),
    ("RESOURCE_EXHAUSTED: Ran out of memory on HBM.", "hbm", None),
    ("INVALID_ARGUMENT: something else", "error", None),
]


def refusing(monkeypatch, text: str) -> None:
    """Put a worker in the place of the real one that answers so."""
    answer = {"outcome": "refused", "error_type": "E", "error": text}
    worker(
        monkeypatch,
        f"""
        import pathlib
        part = pathlib.Path(folder, "part")
        part.write_text({json.dumps(answer)!r})
        part.rename(pathlib.Path(folder, "result.json"))  # whole, or not there
        """,
    )


@pytest.mark.parametrize(("text", "kind", "needed"), REFUSALS)
def test_what_the_compiler_says_is_told_apart(monkeypatch, text, kind, needed) -> None:
    refusing(monkeypatch, text)
    answer = run()
    assert isinstance(answer, Refusal)
    assert (answer.kind, answer.needed_bytes) == (kind, needed)
    assert "CompilationResultProto" not in answer.message


EXPLAINING = {
    "out of time": ("time.sleep(60)", "ended with timeout (3 s)"),
    "a crash": ("import os; os.kill(os.getpid(), 11)", "ended with crashed"),
    "a full disk": (f"raise SystemExit({NOT_WRITTEN + errno.ENOSPC})", "no space left"),
}


@pytest.mark.parametrize("case", EXPLAINING)
def test_a_refusal_stays_one_where_its_schedule_cannot_be_had(
    monkeypatch, tmp_path: Path, case: str
) -> None:
    happens, said = EXPLAINING[case]
    code = f"""
        import json, pathlib, time
        folder = pathlib.Path(folder)
        if json.loads((folder / "request.json").read_text()).get("dump"):
            {happens}
        said = {{"seconds": {{}}, "outcome": "refused", "error_type": "X", "again": False,
                "error": "Ran out of memory in memory space hbm. Used 20.00G of 15.75G hbm."}}
        (folder / "partial").write_text(json.dumps(said))
        (folder / "partial").rename(folder / "result.json")
    """
    worker(monkeypatch, code)
    options = CompileOptions(timeout_seconds=3, cache_directory=tmp_path)
    for from_cache in (False, True):  # what is kept is the refusal, and the rest is tried again
        (answer,) = compile_all([(program(), TARGET)], options, explain=True)
        assert isinstance(answer, Refusal)
        assert (answer.kind, answer.needed_bytes, answer.hlo) == ("hbm", 20 * 2**30, "")
        assert answer.from_cache is from_cache
        (note,) = answer.notes
        assert note.startswith("The parts of its memory are unknown") and said in note


@pytest.mark.tpu_compile
def test_what_does_not_fit_is_compiled_once_more_for_its_schedule(monkeypatch, tmp_path) -> None:
    large = trace(jax.numpy.sin, (spec((2**31,)),), axes={"data": 1})
    asked = [(large, TARGET)], CompileOptions(cache_directory=tmp_path)
    (plain,) = compile_all(*asked)
    (explained,) = compile_all(*asked, explain=True)
    worker(monkeypatch, "raise SystemExit(7)")  # from now on the cache has to know
    (again,) = compile_all(*asked, explain=True)
    assert isinstance(plain, Refusal) and isinstance(explained, Refusal)
    assert (plain.kind, plain.hlo, plain.from_cache) == ("hbm", "", False)
    assert explained.hlo.startswith("HloModule") and "is_scheduled=true" in explained.hlo
    assert explained.needed_bytes == plain.needed_bytes
    assert again == explained and again.from_cache


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("INVALID_ARGUMENT: No such compile option: 'foo'", "has no option 'foo'"),
        (
            "INVALID_ARGUMENT: Failed to parse 'abc' into flag xla_tpu_limit_kib:",
            "rejects the value 'abc' of xla_tpu_limit_kib",
        ),
    ],
)
def test_an_option_that_the_compiler_refuses_is_no_verdict(monkeypatch, text, says) -> None:
    refusing(monkeypatch, text)
    with pytest.raises(ArgumentError, match=says):
        run()


def test_a_compiler_that_another_process_holds_is_no_verdict(monkeypatch) -> None:
    refusing(monkeypatch, "The TPU is in use; the lockfile /tmp/libtpu_lockfile is held.")
    with pytest.raises(DeviceInitializationError, match=r"could not start for v5e-1.*lockfile"):
        run()


def test_options_of_a_type_that_no_option_has() -> None:
    with pytest.raises(ArgumentTypeError, match=r"compiler_options\['a'\] must be text"):
        CompileOptions(compiler_options={"a": [1]})


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
def test_a_worker_that_cannot_write_is_no_crash(monkeypatch, tmp_path, number: int) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    worker(monkeypatch, f"import os; os._exit({NOT_WRITTEN + number})")
    with pytest.raises(CompilationError) as caught:
        run()
    full = f"there is no space left in {tmp_path}"
    says = f"{tmp_path} cannot be used ({os.strerror(number)})" if number == errno.EIO else full
    assert says in str(caught.value) and "crash" not in str(caught.value)
    assert "set TMPDIR" in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_the_worker_itself_says_what_kept_it_from_its_files(tmp_path: Path) -> None:
    done = subprocess.run(
        workers_module._command(),
        input=f"{tmp_path / 'none'}\n", text=True, capture_output=True, timeout=120, check=False,
        env=workers_module._environment(),
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (NOT_WRITTEN + errno.ENOENT, "")


def test_without_a_folder_for_temporary_files(monkeypatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "none"))
    with pytest.raises(CompilationError, match=r"none cannot be used \(No such file or directory"):
        run()


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
    with pytest.raises(ArgumentError, match="estimate would be useless"):
        CompileOptions(compiler_options={"exec_time_optimization_effort": -1.0})
    with pytest.raises(ArgumentError, match="is a number; got 'low'"):
        CompileOptions(compiler_options={"exec_time_optimization_effort": "low"})
    with pytest.raises(ArgumentTypeError, match="has a name; got 5"):
        CompileOptions(compiler_options={5: 1})  # pyright: ignore[reportArgumentType]


SLEEPING = """
    import os, pathlib, sys, time
    from neurenix import chips
    from neurenix.compiler import compile as c, workers
    from neurenix.compiler.program import spec, trace
    from neurenix.compiler.target import Target
    note = pathlib.Path(sys.argv[1])
    child = "import os, sys, time; open(sys.argv[1], 'w').write(str(os.getpid())); time.sleep(60)"
    workers._command = lambda: [sys.executable, "-c", child, str(note)]
    program = trace(lambda x: x + 1, (spec((8, 128)),), axes={"data": 1})
    c.compile_all([(program, Target.of(chips.resolve("v5e-1")))], c.CompileOptions(cache=False))
"""


ORPHANING = """
    import neurenix as nx
    nx.preflight(lambda x: x @ x, nx.spec((256, 256)), on="v5e-1")
"""


def worker_of(process: subprocess.Popen[str], *, having: str) -> int:
    """The process that compiles for ``process``, once it has mapped a file named ``having``."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(FileNotFoundError):  # a child that ended meanwhile
            for children in Path(f"/proc/{process.pid}/task").glob("*/children"):
                for child in children.read_text().split():
                    command = Path(f"/proc/{child}/cmdline").read_text()
                    mapped = Path(f"/proc/{child}/maps").read_text()
                    if "compiler.worker" in command and having in mapped:
                        return int(child)
        time.sleep(0.01)
    process.kill()
    raise AssertionError(f"no worker has mapped {having}: {process.communicate()[1]}")


@pytest.mark.parametrize("having", ["python", "libtpu.so"])  # being started, or compiling
def test_the_worker_of_a_killed_process_removes_its_folders(tmp_path: Path, having: str) -> None:
    scratch, cache = tmp_path / "scratch", tmp_path / "cache"
    scratch.mkdir()
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(ORPHANING)],
        env={**os.environ, "TMPDIR": str(scratch), "NEURENIX_CACHE_DIR": str(cache)},
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            worker = worker_of(process, having=having)
            os.kill(worker, signal.SIGSTOP)  # it must not be done before its parent is killed
            assert list(scratch.glob("neurenix-*"))
            process.kill()
            process.wait()
            os.kill(worker, signal.SIGCONT)
        finally:
            process.kill()
    deadline = time.monotonic() + 120
    while list(scratch.glob("neurenix-*")) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert list(scratch.glob("neurenix-*")) == []


def test_ctrl_c_leaves_no_process_and_no_file(tmp_path: Path) -> None:
    note, scratch = tmp_path / "pid", tmp_path / "scratch"
    scratch.mkdir()
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(SLEEPING), str(note)],
        env={**os.environ, "TMPDIR": str(scratch)},
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            deadline = time.monotonic() + 120
            while not (note.exists() and note.read_text()) and time.monotonic() < deadline:
                time.sleep(0.1)
            child = int(note.read_text())
            assert list(scratch.iterdir())
            process.send_signal(signal.SIGINT)
            _, errors = process.communicate(timeout=60)
        finally:
            process.kill()
    assert "KeyboardInterrupt" in errors
    assert not Path(f"/proc/{child}").exists()
    assert list(scratch.iterdir()) == []


ECHO = """
import json, os, pathlib
while folder:
    answer = {"outcome": "refused", "error": str(os.getpid()), "again": AGAIN}
    part = pathlib.Path(folder, "part")
    part.write_text(json.dumps(answer))
    part.rename(pathlib.Path(folder, "result.json"))
    folder = sys.stdin.readline().strip()
"""


def pids(count: int) -> list[int]:
    answers = [run() for _ in range(count)]
    return [int(answer.message) for answer in answers if isinstance(answer, Refusal)]


def test_a_worker_is_used_again_inside_of_a_block_and_stopped_after_it(monkeypatch) -> None:
    worker(monkeypatch, ECHO.replace("AGAIN", "True"))
    with kept_workers(ahead=1):
        first, second = pids(2)
        assert first == second
        assert Path(f"/proc/{first}").exists()
    assert not Path(f"/proc/{first}").exists()
    assert len(set(pids(2))) == 2  # outside of a block each request has a worker of its own


def test_a_worker_is_dismissed_by_the_outermost_block_alone(monkeypatch) -> None:
    worker(monkeypatch, ECHO.replace("AGAIN", "True"))
    with kept_workers() as outer:
        (first,) = pids(1)
        with kept_workers() as inner:
            inner.dismiss()
            assert pids(1) == [first]
        outer.dismiss()
        deadline = time.monotonic() + 10
        while "Z" not in Path(f"/proc/{first}/stat").read_text() and time.monotonic() < deadline:
            time.sleep(0.01)
        (second,) = pids(1)
        assert second != first
    assert not any(Path(f"/proc/{pid}").exists() for pid in (first, second))


def test_a_worker_that_is_not_to_be_used_again_or_is_of_another_environment(monkeypatch) -> None:
    with kept_workers():
        worker(monkeypatch, ECHO.replace("AGAIN", "False"))
        assert len(set(pids(2))) == 2
        worker(monkeypatch, ECHO.replace("AGAIN", "True"))
        before = pids(1)
        monkeypatch.setenv("LIBTPU_INIT_ARGS", "--changed")
        assert pids(1) != before


def test_a_crash_while_it_waits_is_not_the_next_programs(monkeypatch) -> None:
    worker(monkeypatch, ECHO.replace("AGAIN", "True"))
    with kept_workers():
        (first,) = pids(1)
        os.kill(first, signal.SIGKILL)
        deadline = time.monotonic() + 10
        while "Z" not in Path(f"/proc/{first}/stat").read_text() and time.monotonic() < deadline:
            time.sleep(0.01)
        assert pids(1) != [first]


def on_host(shape: tuple[int, ...]) -> jax.ShapeDtypeStruct:
    mesh = AbstractMesh((8,), ("data",), axis_types=(AxisType.Auto,))
    sharding = NamedSharding(mesh, PartitionSpec("data"), memory_kind="pinned_host")
    return jax.ShapeDtypeStruct(shape, "float32", sharding=sharding)


def training(weights: jax.Array, unused: jax.Array, batch: jax.Array) -> jax.Array:
    return weights - 0.1 * jax.grad(lambda w: ((batch @ w) ** 2).mean())(weights)


def from_host(kept: jax.Array) -> jax.Array:
    return jax.device_put(kept, jax.memory.Space.Device) * 2


def of_nothing() -> jax.Array:
    return jax.lax.iota("float32", 1024) @ jax.numpy.ones((1024, 128))


def over_a_mesh_of_its_own(weights: jax.Array, batch: jax.Array) -> tuple[jax.Array, jax.Array]:
    rows = NamedSharding(abstract_mesh({"data": 8}), PartitionSpec("data"))
    return weights * 2, jax.lax.with_sharding_constraint(batch, rows) @ weights


WEIGHTS, BATCH = spec((512, 512)), spec((64, 512), partition=("data",))
DIVIDED = spec((512, 512), partition=("model", None))
PROGRAMS = {
    "a step": ("v5e-8", {"data": 8}, training, (WEIGHTS, spec((7,)), BATCH), (0,)),
    "two axes": ("v6e-8", {"data": 2, "model": 4}, training, (DIVIDED, WEIGHTS, BATCH), (0,)),
    "two slices": (
        "2x v5e-8", {"data": 4, "model": 4}, training, (DIVIDED, WEIGHTS, BATCH), (),
    ),
    "from the host": ("v5e-8", {"data": 8}, from_host, (on_host((64, 128)),), ()),
    "placed by nobody": (
        "v5e-8", {"data": 8}, over_a_mesh_of_its_own,
        (UnplacedSpec((512, 512), "float32"), UnplacedSpec((64, 512), "float32")), (0,),
    ),
    "no arguments": ("v4-8", {"data": 4}, of_nothing, (), ()),
    "64 bits": ("v5e-1", {"data": 1}, lambda x: x + 2**40, (spec((8, 128), "int64"),), ()),
}  # fmt: skip


@pytest.mark.parametrize("name", PROGRAMS)
def test_what_is_estimated_is_what_jax_would_run(name: str) -> None:
    """The worker compiles without JAX for an estimate, and by way of JAX for an executable."""
    where, axes, function, args, donated = PROGRAMS[name]
    with jax.enable_x64(name == "64 bits"):
        options = TraceOptions(donate_argnums=donated, exported=True)
        traced = trace(function, args, axes=axes, options=options)
    asked = [(traced, Target.of(chips.resolve(where)))]
    without_cache = CompileOptions(cache=False)
    with kept_workers():
        (estimated,) = compile_all(asked, without_cache)
        (executable,) = compile_all(asked, without_cache, executables=True)
    assert isinstance(estimated, Compiled) and isinstance(executable, Compiled)
    assert not estimated.executable and executable.executable
    assert estimated.memory == executable.memory
    assert estimated.device_kind == executable.device_kind
    assert without_names(estimated.hlo) == without_names(executable.hlo)
    if name == "64 bits":
        assert "s64[" in estimated.hlo


def without_names(hlo: str) -> list[str]:
    """The instructions of a module, each called by its number.

    The lines of Python that called the program are not in them, nor is the call of the exported
    program, of which an executable is made.
    """
    start = min(hlo.index(line) for line in re.findall(r"^(?:%|ENTRY ).*$", hlo, re.MULTILINE))
    head = re.sub(r"^HloModule \w+", "", hlo[: hlo.index("\n")])
    body = re.sub(r" ?stack_frame_id=\d+|jit\(call\)/call_exported/?", "", hlo[start:])
    body = re.sub(r', metadata={(op_name="")?}', "", body)
    body = re.sub(r"\b(leaves|given|args)([\[_])\d+", r"argument\2", body)
    numbers: dict[str, str] = {}
    body = re.sub(r"%[\w.-]+", lambda name: numbers.setdefault(name[0], f"%{len(numbers)}"), body)
    return [head, *body.splitlines()]


def test_very_many_parameters_are_one_tuple(monkeypatch) -> None:
    """As ``jax.jit`` has it for a TPU, whose 2,000 take long to trace."""
    assert lowering._MOST_PARAMETERS == 2000
    monkeypatch.setattr(lowering, "_MOST_PARAMETERS", 20)
    for count, one_tuple in ((20, False), (21, True)):
        program = trace(
            lambda *arrays: jax.lax.concatenate(arrays, 0), (spec((8,)),) * count, axes={"data": 1}
        )
        told = xla_client.CompileOptions.ParseFromString(program.lowered.options({}))
        assert told.parameter_is_tupled_arguments is one_tuple


def test_a_worker_of_estimates_needs_no_jax(monkeypatch) -> None:
    """Its start is as long as compiling a small program otherwise."""
    code = "from neurenix.compiler import worker_estimates; print('jax' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-P", "-c", f"import sys; {code}"],
        text=True, capture_output=True, timeout=120, check=True,
        env=workers_module._environment(),
    )  # fmt: skip
    assert done.stdout == "False\n"


def test_a_jaxlib_of_another_kind_is_no_crash_of_the_compiler(monkeypatch, tmp_path: Path) -> None:
    (tmp_path / "jaxlib").mkdir()
    (tmp_path / "jaxlib" / "__init__.py").touch()
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    answer = run()
    assert isinstance(answer, Refusal)
    assert answer.kind == "error"
    assert "jaxlib.xla_client.pjrt_plugin_loaded, an internal name" in answer.message


def test_an_option_that_jax_cannot_read_is_no_verdict() -> None:
    options = {"xla_tpu_scoped_vmem_limit_kib": "32768", "optimization_level": "highest"}
    with pytest.raises(ArgumentError, match=r"\['optimization_level'\] has a value .*: 'highest'"):
        run(compiler_options=options)


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
    assert "could not be cached" in cache.notes[0]


def test_the_key_depends_on_everything_that_the_answer_does(monkeypatch) -> None:
    names = {key("p", {"a": 1}), key("q", {"a": 1}), key("p", {"a": 2})}
    monkeypatch.setenv("LIBTPU_INIT_ARGS", "--xla_tpu_x=1")
    names.add(key("p", {"a": 1}))
    monkeypatch.setattr("neurenix.compiler.cache.versions", lambda: {"libtpu": "0"})
    names.add(key("p", {"a": 1}))
    assert len(names) == 5
