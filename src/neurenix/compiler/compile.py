"""Compile programs for absent slices, each in a worker process.

Looks in the cache, then runs a worker, and turns its answer into a ``Compiled``, a ``Refusal`` or
an error. ``peak_memory``, ``step_time`` and ``findings`` interpret the numbers.
"""

from __future__ import annotations

import base64
import importlib.util
import json
import os
import platform
import re
import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Event
from typing import Any

from neurenix._core.errors import (
    ArgumentError,
    ArgumentTypeError,
    CompilationError,
    DeviceInitializationError,
)
from neurenix._core.limits import check_seconds
from neurenix.compiler import cache as cache_module
from neurenix.compiler.program import Program
from neurenix.compiler.target import Target
from neurenix.compiler.workers import (
    NOT_WRITTEN,
    Worker,
    Workers,
    kept_workers,
    temporary_folder,
)

_TOTAL_NEEDED = re.compile(r"\(([\d.]+)([KMGT])\) exceeds available HBM \(([\d.]+)([KMGT])\)")
_USED_OF = re.compile(r"Used ([\d.]+)([KMGT]) of ([\d.]+)([KMGT]) hbm")
_NO_OPTION = re.compile(r"No such compile option: '([^']*)'")
_NO_VALUE = re.compile(r"Failed to parse '([^']*)' into flag (\w+)")
_DATA = re.compile(r"\s*\[type\.googleapis\.com/[\w.]*CompilationResultProto='.*?'\]", re.DOTALL)
"""A serialized copy of the message, which the compiler appends to it."""
_NO_ANSWER = ("crashed", "timeout")
_UNITS = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


@dataclass(frozen=True)
class CompileOptions:
    """Options of the compiler and of its workers.

    Attributes:
        compiler_options: XLA options by name, as for ``jax.stages.Lowered.compile``: strings,
            numbers and booleans. They override those of the function's own ``jax.jit``. An effort
            below the default is rejected: it makes the program, and so the estimate, five times
            slower.
        timeout_seconds: time limit of a worker.
        cache: whether to use and store cached results.
        cache_directory: ``None`` means ``cache.default_directory()``.
        workers: maximum number of parallel workers; ``None`` means half of the cores, at least one.
    """

    compiler_options: Mapping[str, Any] = field(default_factory=dict)
    timeout_seconds: float = 1800.0
    cache: bool = True
    cache_directory: str | os.PathLike[str] | None = None
    workers: int | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.compiler_options, Mapping):
            raise ArgumentTypeError(
                f"compiler_options is a dict of XLA's options; got {self.compiler_options!r}."
            )
        for name, value in self.compiler_options.items():
            if not isinstance(name, str):
                raise ArgumentTypeError(f"An option of XLA has a name; got {name!r}.")
            if not isinstance(value, (str, int, float)):
                raise ArgumentTypeError(
                    f"compiler_options[{name!r}] must be text, a number or a truth; got {value!r}."
                )
            if name.endswith("optimization_effort") and _number(name, value) < 0:
                raise ArgumentError(
                    f"compiler_options[{name!r}] is {value}: below the default the compiler skips "
                    "optimisations (measured: 2.5 s became 13.8 s), and the estimate would be "
                    "useless. Remove the option."
                )
        check_seconds("timeout_seconds", self.timeout_seconds)
        if self.workers is not None and not (isinstance(self.workers, int) and self.workers > 0):
            raise ArgumentError(f"workers is 1 or more, or None; got {self.workers!r}.")

    @property
    def at_once(self) -> int:
        """Number of parallel compilations."""
        return self.workers or max(1, (os.cpu_count() or 1) // 2)


def _number(name: str, value: str | float) -> float:
    try:
        return float(value)
    except ValueError:
        raise ArgumentError(f"compiler_options[{name!r}] is a number; got {value!r}.") from None


@dataclass(frozen=True)
class Compiled:
    """The compiled program for one target.

    ``memory`` has the byte counts of ``memory_analysis`` for one device, ``hlo`` the text of the
    optimised module, ``seconds`` the worker's time, ``notes`` the cache's messages. ``executable``
    is PJRT's serialized program and ``placement`` its devices and shardings; both are set only if
    ``compile_all`` was called with ``executables=True``.
    """

    target: Target
    memory: dict[str, int]
    hlo: str
    device_kind: str
    seconds: dict[str, float]
    from_cache: bool
    notes: tuple[str, ...] = ()
    executable: bytes = b""
    placement: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Refusal:
    """No program. ``kind`` is ``"hbm"``, ``"vmem"``, ``"crash"``, ``"timeout"`` or ``"error"``.

    ``needed_bytes`` is the program's memory, if the compiler reports it. ``hlo`` is the text of the
    optimised module, if the compiler scheduled it.
    """

    target: Target
    kind: str
    message: str
    needed_bytes: int | None = None
    from_cache: bool = False
    notes: tuple[str, ...] = ()
    hlo: str = ""


def options_of(program: Program, options: CompileOptions) -> CompileOptions:
    """Return the options for a program: its function's own, overridden by ``options``.

    Raises:
        ArgumentError: the function has an effort below the default.
    """
    if not program.compiler_options:
        return options
    merged = {**program.compiler_options, **options.compiler_options}
    return replace(options, compiler_options=merged)


def compile_all(
    programs: Sequence[tuple[Program, Target]],
    options: CompileOptions | None = None,
    *,
    executables: bool = False,
    explain: bool = False,
) -> list[Compiled | Refusal]:
    """Compile each program for its target in parallel, and return the answers in order.

    A timeout or a crash of the compiler gives a ``Refusal``; the other programs continue. Ctrl-C
    stops every worker before it propagates. With ``executables``, answers include the executable,
    and a cached answer without one is compiled again. With ``explain``, a program that exceeds HBM
    is compiled once more to get its schedule.

    Raises:
        ArgumentError: ``compiler_options`` has an unknown name or an invalid value.
        DeviceInitializationError: the TPU compiler does not run on this machine.
        CompilationError: another compilation of the request failed, or no temporary folder has room
            for the program.
    """
    options = options or CompileOptions()
    owns = [options_of(program, options) for program, _ in programs]
    workers = options.at_once
    given_up = Event()
    with kept_workers() as kept, ThreadPoolExecutor(max_workers=workers) as pool:
        futures = [
            pool.submit(_compile, program, target, own, given_up, kept, executables, explain)
            for (program, target), own in zip(programs, owns, strict=True)
        ]
        try:
            _wait_aloud(futures, [target.name for _, target in programs])
            return [future.result() for future in futures]
        except BaseException:
            given_up.set()
            for future in futures:
                future.cancel()
            raise


def _wait_aloud(futures: Sequence[Future[Any]], names: Sequence[str]) -> None:
    """Wait for all futures or the first failure, and show the elapsed time on a terminal."""
    started = time.monotonic()
    shown = ""
    while True:
        done, running = wait(futures, timeout=1.0, return_when=FIRST_EXCEPTION)
        if not running or any(future.exception() for future in done):
            break
        if sys.stderr.isatty():
            left = [n for f, n in zip(futures, names, strict=True) if f in running]
            shown = f"Compiling for {', '.join(left)}: {time.monotonic() - started:.0f} s"
            print(f"\r\x1b[K{shown[:100]}", end="", file=sys.stderr, flush=True)
    if shown:
        print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def _compile(
    program: Program,
    target: Target,
    options: CompileOptions,
    given_up: Event,
    workers: Workers,
    executables: bool,
    explain: bool,
) -> Compiled | Refusal:
    request: dict[str, Any] = {
        "target": target.as_json(),
        "axes": [list(program.axes), list(program.axes.values())],
        "donated": list(program.donated),
        "compiler_options": dict(options.compiler_options),
    }
    cache = cache_module.Cache(Path(options.cache_directory or cache_module.default_directory()))
    name = cache_module.key(program.fingerprint, request)
    use_cache = (
        options.cache and target.platform == "tpu"
    )  # an executable for a CPU fits that CPU only
    entry = cache.load(name) if use_cache else None
    if executables and entry and entry["outcome"] == "compiled" and "executable" not in entry:
        entry = None
    cached = entry is not None
    if entry is None:
        if target.platform == "tpu":
            check_machine()
        request["executable"] = executables or target.platform != "tpu" or program.lowered is None
        entry = _run(program, request, options.timeout_seconds, given_up, workers)
    new = not cached
    if explain and program.lowered and _is_for_hbm(entry) and "hlo" not in entry:
        told = {**request, "executable": False, "dump": True}
        try:
            again = _run(program, told, options.timeout_seconds, given_up, workers)
        except CompilationError as error:
            if given_up.is_set():
                raise
            again = {"outcome": "crashed", "error": str(error)}
        if _is_for_hbm(again):
            entry, new = {**entry, "hlo": again.get("hlo", "")}, True
        else:
            cache.notes.append(
                "The parts of its memory are unknown: the second compilation ended with "
                f"{again['outcome']} ({again.get('error', '')})."
            )
    if use_cache and new and entry["outcome"] not in _NO_ANSWER:
        cache.store(name, entry)
    return _read(entry, target, cached, tuple(cache.notes))


@contextmanager
def compiler_ready(options: CompileOptions | None = None) -> Iterator[Workers]:
    """Start workers while programs are still traced, and keep them for the whole block.

    If the TPU compiler does not run on this machine, it starts none; ``compile_all`` raises the
    reason.
    """
    ahead = (options or CompileOptions()).at_once if not _why_not_here() else 0
    with kept_workers(ahead) as workers:
        yield workers


def check_machine() -> None:
    """Raise unless the TPU compiler can run here.

    Raises:
        DeviceInitializationError: not Linux on x86-64, or libtpu is not installed.
    """
    if why := _why_not_here():
        raise DeviceInitializationError(why)


def _why_not_here() -> str:
    system, machine = platform.system(), platform.machine()
    if system != "Linux" or machine not in ("x86_64", "AMD64"):
        return (
            f"The TPU compiler (libtpu) exists for Linux on x86-64 only, and this is {system} on "
            f"{machine}. Simulated slices, training and everything else work here; run preflight "
            "in a container, in CI or on a remote machine with Linux on x86-64."
        )
    if importlib.util.find_spec("libtpu") is None:
        return (
            "The TPU compiler is not installed: the package libtpu is missing. "
            "Install it with: pip install libtpu"
        )
    return ""


def _run(
    program: Program,
    request: dict[str, Any],
    timeout_seconds: float,
    given_up: Event,
    workers: Workers,
) -> dict[str, Any]:
    with temporary_folder("neurenix-compile-") as directory:
        folder = Path(directory)
        lowered = None if request["executable"] else program.lowered
        if lowered is None:
            if not program.serialized:
                raise ValueError(f"{program.name} was not exported, so it gives no executable")
            (folder / "program.bin").write_bytes(program.serialized)
        else:
            (folder / "options.bin").write_bytes(lowered.options(request["compiler_options"]))
            (folder / "module.bin").write_bytes(lowered.module)
        (folder / "request.json").write_text(json.dumps(request))
        # A process can set the number of CPU devices only once.
        worker = workers.take() if request["target"]["topology_name"] else Worker()
        again = False
        try:
            code = worker.compile(directory, timeout_seconds, given_up)
            if code is not None and code >= NOT_WRITTEN:
                raise OSError(code - NOT_WRITTEN, os.strerror(code - NOT_WRITTEN))
            if code is None:
                return {"outcome": "timeout", "error": f"{timeout_seconds:g} s"}
            if not (folder / "result.json").exists():
                return {"outcome": "crashed", "code": code, "error": worker.last_words()}
            entry = json.loads((folder / "result.json").read_text())
            again = entry.pop("again", False)
        finally:
            if again:
                workers.give(worker)
            else:
                worker.stop()
        optimized = folder / "optimized.hlo"
        if entry["outcome"] == "compiled" or optimized.exists():
            entry["hlo"] = optimized.read_text()
        if entry["outcome"] == "compiled":
            executable = folder / "executable.bin"
            if executable.exists():
                entry["executable"] = base64.b64encode(executable.read_bytes()).decode()
        return entry


def _is_for_hbm(entry: dict[str, Any]) -> bool:
    """Return whether the compiler refused a program because it exceeds HBM."""
    text = _DATA.sub("", entry["error"]) if entry["outcome"] == "refused" else ""
    said = ("Ran out of memory on HBM", "memory space hbm")
    return bool(_TOTAL_NEEDED.search(text) or _USED_OF.search(text)) or any(
        words in text for words in said
    )


def _read(
    entry: dict[str, Any], target: Target, cached: bool, notes: tuple[str, ...]
) -> Compiled | Refusal:
    if entry["outcome"] == "compiled":
        return Compiled(
            target=target,
            memory=entry["memory"],
            hlo=entry["hlo"],
            device_kind=entry["device_kind"],
            seconds=entry["seconds"],
            from_cache=cached,
            notes=notes,
            executable=base64.b64decode(entry.get("executable", "")),
            placement=entry.get("placement", {}),
        )
    if entry["outcome"] == "crashed":
        return Refusal(target, "crash", _crash_text(entry, target), notes=notes)
    if entry["outcome"] == "timeout":
        text = f"Compiling for {target.name} took longer than {entry['error']} and was stopped."
        return Refusal(target, "timeout", text, notes=notes)
    text = _DATA.sub("", entry["error"])
    _check_options(text)
    if "lockfile" in text or "Unable to initialize backend" in text:
        raise DeviceInitializationError(
            f"The TPU compiler could not start for {target.name}. It said: {text.strip()}"
        )
    if _is_for_hbm(entry):
        needed = _TOTAL_NEEDED.search(text) or _USED_OF.search(text)
        size = int(float(needed[1]) * _UNITS[needed[2]]) if needed else None
        return Refusal(target, "hbm", text, size, cached, notes, entry.get("hlo", ""))
    too_large = ("ScopedVmemOom", "E1001", "space=vmem", "memory space vmem")
    kind = "vmem" if any(words in text for words in too_large) else "error"
    return Refusal(target, kind, text, None, cached, notes)


def _check_options(text: str) -> None:
    """Raise if the compiler rejected an option rather than the program."""
    if unknown := _NO_OPTION.search(text):
        raise ArgumentError(
            f"compiler_options: the TPU compiler (libtpu {cache_module.versions()['libtpu']}) has "
            f"no option {unknown[1]!r}."
        )
    if unread := _NO_VALUE.search(text):
        raise ArgumentError(
            f"compiler_options: the TPU compiler rejects the value {unread[1]!r} of {unread[2]}."
        )


def _crash_text(entry: dict[str, Any], target: Target) -> str:
    code = entry["code"]
    how = f"exit code {code}"
    if code < 0:
        names = {s.value: s.name for s in signal.Signals}
        how = f"signal {names.get(-code, -code)}"
    installed = ", ".join(f"{k} {v}" for k, v in cache_module.versions().items())
    return (
        f"The TPU compiler itself crashed ({how}) on this program for {target.name} ({installed}). "
        "This is a bug of the compiler, not of the program: report it with the program at "
        "https://github.com/jax-ml/jax/issues, and try another slice or version meanwhile."
        f"\nLast output:\n{entry['error']}"
    )
