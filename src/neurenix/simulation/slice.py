"""A TPU slice simulated on the CPU: virtual devices and the real SPMD partitioner.

Sets up the simulation before JAX starts its backends. Properties of slices are in
``neurenix.chips``; ``neurenix.device`` maps the devices, so code above it never checks whether a
TPU is real.

The devices compute on threads of this process. Times measured on them are not TPU times, and their
memory is the machine's.

The environment variables ``NEURENIX_SIMULATE=v5e-8`` and ``NEURENIX_SIMULATE_NUMERICS=tpu`` have
the effect of calling ``simulate``. They are read when this module is first imported, which every
module that uses a device does.
"""

from __future__ import annotations

import os
import resource
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, cast

import jax

from neurenix._core.errors import NeurenixError, SimulationError, unknown_name
from neurenix._jax import (
    backends_are_started,
    check_simulation,
    cpu_client,
    register_backend,
)
from neurenix.chips import Slice, resolve
from neurenix.simulation.numerics import use_tpu_numerics

Numerics = Literal["float32", "tpu"]
NUMERICS = ("float32", "tpu")

SLICE_VARIABLE = "NEURENIX_SIMULATE"
NUMERICS_VARIABLE = "NEURENIX_SIMULATE_NUMERICS"

# The CPU client has as many threads as devices. Steps in flight occupy them until a collective
# waits forever for a free thread. Twice the number of devices suffices; this is twice that.
_THREADS_PER_DEVICE = 4
_MANY_DEVICES = 64
_THREADS_TAKEN = 10  # per device, measured on 256 and 1,024 devices


@dataclass(frozen=True)
class SimulatedSlice:
    """The slice that this process simulates.

    Attributes:
        slice: its chips, topology, hosts and devices.
        numerics: ``"float32"``, or ``"tpu"`` if matrix multiplications round as on a TPU.
    """

    slice: Slice
    numerics: Numerics

    @property
    def name(self) -> str:
        """Name of the slice, such as ``"v5e-8"``."""
        return self.slice.name

    @property
    def num_devices(self) -> int:
        """Number of devices that JAX sees."""
        return self.slice.num_devices

    @property
    def device_kind(self) -> str:
        """The ``device_kind`` of a real device of the slice, such as ``"TPU v5 lite"``."""
        return self.slice.generation.device_kind

    def __str__(self) -> str:
        rounding = ", TPU numerics" if self.numerics == "tpu" else ""
        return f"simulated {self.name} ({_counted(self.num_devices, 'device')}{rounding})"


_active: SimulatedSlice | None = None
_held = False
_told = False


def simulate(slice_name: str | Slice, *, numerics: Numerics = "float32") -> SimulatedSlice:
    """Simulate the devices of a TPU slice on this process's CPU.

    Must be called before JAX starts its backends, that is before the first array. A second call for
    the same slice and numerics does nothing; a slice chosen by ``neurenix run --simulate`` takes
    precedence. The simulation is announced once on stderr.

    Slices of 64 devices or more are slow: each device takes about 1 MB of memory and ten threads,
    and collectives are slower. To analyse a program on such a slice use ``preflight``, which needs
    no devices.

    Args:
        slice_name: any name of a slice, such as ``"v5e-8"``: see ``neurenix.chips.resolve``.
        numerics: ``"float32"``: the CPU's float32 matrix multiplications. ``"tpu"``: operands of
            float32 matrix multiplications and convolutions of default precision are rounded to
            bfloat16 and products summed in float32, as on a TPU.

    Returns:
        The simulated slice.

    Raises:
        UnknownNameError: unknown slice or numerics.
        SimulationError: JAX has already started its backends, or the slice needs more threads than
            this process may have.
        IncompatibleVersionError: this version of JAX cannot simulate a slice.

    Example:
        >>> import neurenix as nx
        >>> nx.simulate("v5e-8").num_devices
        8
    """
    global _active
    wanted = resolve(slice_name)
    if numerics not in NUMERICS:
        raise unknown_name("numerics", str(numerics), NUMERICS)
    request = SimulatedSlice(wanted, numerics)
    if request == _active:
        return request
    if _held and _active is not None:
        if _told and wanted != _active.slice:
            print(
                f"neurenix: the program asks for {wanted.name} and runs on {_active}, which was "
                "chosen for it.",
                file=sys.stderr,
            )
        return _active
    if backends_are_started():
        raise SimulationError(_too_late(request))
    check_simulation()
    _check_threads(request)
    _prepare_process(wanted.num_devices)
    use_tpu_numerics(numerics == "tpu")
    register_backend(
        "tpu",
        lambda: cpu_client(wanted.num_devices),
        priority=1000,
        fail_quietly=False,
    )
    _active = request
    _announce(request)
    return request


def simulate_alone(
    slice_name: str | Slice, *, numerics: Numerics = "float32", told: bool = False
) -> SimulatedSlice:
    """Call ``simulate``, and return the same slice to later calls that ask for another.

    For tools that run a user's program on a slice of their choice. With ``told``, a program that
    asks for another slice gets a notice on stderr.
    """
    global _held, _told
    chosen = simulate(slice_name, numerics=numerics)
    _held, _told = True, told
    return chosen


def simulated() -> SimulatedSlice | None:
    """Return the slice that this process simulates, or ``None``.

    Raises:
        SimulationError: the environment asks for a simulation, and JAX started without it.

    Example:
        >>> import neurenix as nx
        >>> nx.simulate("v5e-8") == nx.simulated()
        True
    """
    if _active is None:
        _obey_environment()
    return _active


def _obey_environment() -> None:
    name = os.environ.get(SLICE_VARIABLE, "").strip()
    if not name:
        return
    numerics = os.environ.get(NUMERICS_VARIABLE, "").strip() or "float32"
    try:
        simulate(name, numerics=cast(Numerics, numerics))
    except NeurenixError as error:
        error.add_note(
            f"The environment asks for it: {SLICE_VARIABLE}={name}, {NUMERICS_VARIABLE}={numerics}."
        )
        raise


def _prepare_process(num_devices: int) -> None:
    """Set the variables that the CPU client and JAX read when backends start."""
    present = os.environ.get("NPROC", "")
    threads = _THREADS_PER_DEVICE * num_devices
    os.environ["NPROC"] = str(max(int(present) if present.isdigit() else 0, threads))
    platforms = jax.config.jax_platforms  # pyright: ignore[reportAttributeAccessIssue]  dynamic
    if platforms:
        others = [name for name in platforms.split(",") if name not in ("tpu", "cpu", "")]
        jax.config.update("jax_platforms", ",".join(["tpu", *others, "cpu"]))


def _check_threads(request: SimulatedSlice) -> None:
    needed = _THREADS_TAKEN * request.num_devices
    soft, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    limits = [] if soft == resource.RLIM_INFINITY else [soft]
    cgroup = Path("/sys/fs/cgroup/pids.max")
    if cgroup.exists() and (written := cgroup.read_text().strip()).isdigit():
        limits.append(int(written))
    if limits and needed > min(limits):
        raise SimulationError(
            f"{request.name} has {request.num_devices} devices, whose simulation takes about "
            f"{needed} threads; this process may have {min(limits)}. Simulate a smaller slice, or "
            "use preflight, which compiles for any slice without its devices."
        )


def _announce(request: SimulatedSlice) -> None:
    cost = ""
    if request.num_devices >= _MANY_DEVICES:
        cost = (
            f" So many devices take about {_THREADS_TAKEN * request.num_devices} threads and "
            "make collectives slow; preflight needs no devices."
        )
    print(
        f"neurenix: {request.slice.name} is simulated on this machine's CPU "
        f"({_counted(request.num_devices, 'device')}, {_counted(request.slice.num_chips, 'chip')}"
        f"{', TPU numerics' if request.numerics == 'tpu' else ''}); "
        f"times measured here are not a TPU's.{cost}",
        file=sys.stderr,
    )


def _counted(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _too_late(request: SimulatedSlice) -> str:
    running = str(_active) if _active else "no simulation"
    return (
        f"{request.name} cannot be simulated: JAX has already started its backends in this "
        f"process, with {running}, and devices cannot be added afterwards. An earlier line created "
        "an array or listed devices. Either call nx.simulate before it, "
        f"or start the program with: neurenix run --simulate {request.name} SCRIPT"
    )


if not backends_are_started():
    _obey_environment()
