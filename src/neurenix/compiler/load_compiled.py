"""Run a compiled program from its file, without compiling.

Checks versions, devices and slice of this machine, loads the executable into PJRT, and calls it.
``nxc_format`` owns the file and its own checks.

On CPUs everything is tested, including execution on one and on eight devices. For TPUs every step
up to PJRT's ``deserialize_executable`` is tested; no TPU executable has been run from a file yet.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from neurenix import chips
from neurenix._core.errors import (
    ArgumentTypeError,
    ArtefactError,
    DeviceNotFoundError,
    ShapeError,
    differing_names,
)
from neurenix._jax import device_list
from neurenix._jit.flat_modules import Bindings
from neurenix._jit.random_keys import like, numbers_of
from neurenix.compiler import cpu_features, pytree_json
from neurenix.compiler import nxc_format as artefact_module
from neurenix.compiler.call_signature import Calling
from neurenix.compiler.nxc_format import Artefact
from neurenix.hardware.tpu import TPUBackend
from neurenix.hardware.tpu_topology import TPUTopology
from neurenix.simulation import simulated


class LoadedProgram:
    """A compiled program on this machine's devices. Calling it does not compile.

    Call it like the compiled function: the same positions and names, with arrays of the same global
    shapes and dtypes. Python numbers are accepted if the dtype can hold them, and 64-bit NumPy
    arrays if ``jax.jit`` converts them to 32 bits. Modules, optimizers and metrics are passed as
    modules with the same variables and hold the new arrays after the call, as with ``nx.jit``.
    Static arguments are part of the program: pass the same values again, or omit all of them.
    Arrays are transferred to the devices if necessary, sharded as ``shardings`` says. The call
    deletes donated arguments.

    Dictionaries, lists and tuples in the result keep their structure. A dataclass or another
    registered node is returned, and accepted, as a dictionary of its fields.

    Attributes:
        artefact: the file's content.
        mesh: the mesh of its devices.
    """

    def __init__(self, artefact: Artefact, devices: Sequence[Any]) -> None:
        manifest = artefact.manifest
        self.artefact = artefact
        self._arguments = {entry["path"]: entry for entry in manifest["arguments"]}
        self._unused = frozenset(manifest["unused_arguments"])
        self._calling = artefact.calling
        try:
            self._expected = {
                path: entry | {"path": self._shown(path)} for path, entry in self._arguments.items()
            }
            axes = dict(manifest["axes"])
            grid = np.array(devices, dtype=object).reshape(tuple(axes.values()))
            self.mesh = Mesh(grid, tuple(axes), axis_types=(AxisType.Auto,) * len(axes))
            self._placed = [self._sharding(entry) for entry in manifest["arguments"]]
            self._results = [
                (tuple(entry["shape"]), self._sharding(entry)) for entry in manifest["outputs"]
            ]
            for entry in manifest["arguments"]:
                jax.numpy.dtype(entry["dtype"])
        except Exception as error:  # JAX raises various types for invalid names and sizes
            raise ArtefactError(f"The manifest of {artefact.path} is invalid: {error}") from error
        self._executable = _deserialize(artefact, devices)
        self._bindings = Bindings()

    @property
    def shardings(self) -> dict[str, NamedSharding]:
        """Sharding of each argument by its path, such as ``"0.layers.0.kernel"``."""
        return dict(zip(self._arguments, self._placed, strict=True))

    def __call__(self, *args: Any, **named: Any) -> Any:
        """Run the program once.

        Raises:
            ArgumentTypeError: an argument is missing, unknown or of another dtype; it is positional
                instead of named, or the reverse; a module has other variables; or a donated array
                is passed twice, in this call or in an earlier one.
            ArgumentError: a static argument differs from the compiled one.
            ShapeError: an argument has another shape.
            ArtefactError: the results differ from those that the file lists.
        """
        name, calling = self.artefact.manifest["name"], self._calling or Calling(len(args))
        arrays = calling.traced(name, args, named)
        if not calling.modules:
            return self._run(arrays)
        binding, fresh = self._bindings.of(calling.modules_of(name, arrays))
        if fresh:
            binding.check_held()
            calling.check_variables(name, binding)
        rest = [value for place, value in enumerate(arrays) if place not in calling.modules]
        return binding.update(self._run_on_leaves, binding.read_apart(), rest)

    def _run_on_leaves(self, leaves: list[Any], rest: list[Any]) -> tuple[Any, list[Any]]:
        """Run the program on the arrays of modules; return its result and their new arrays.

        Random keys are passed as their key data.
        """
        out, after = self._run(([numbers_of(leaf) for leaf in leaves], rest))
        return out, list(map(like, leaves, after))

    def _run(self, args: tuple[Any, ...]) -> Any:
        given = self._matched(args)
        with jax.enable_x64(True):  # the program keeps its 64-bit types in every caller's mode
            arrays = [
                jax.device_put(leaf, sharding)
                for leaf, sharding in zip(given, self._placed, strict=True)
            ]
        try:
            outcome = self._executable.execute_sharded(arrays)
        except jax.errors.JaxRuntimeError as error:
            if "donate" in str(error):
                self._explain_donation(given, arrays, error)
            raise
        shards = outcome.disassemble_into_single_device_arrays()
        try:
            results = [
                jax.make_array_from_single_device_arrays(shape, sharding, list(parts))
                for (shape, sharding), parts in zip(self._results, shards, strict=True)
            ]
        except ValueError as error:
            raise ArtefactError(
                f"The manifest of {self.artefact.path} does not match its executable, which gives "
                f"other results. Do not run it; copy it again from its source. ({error})"
            ) from error
        return pytree_json.build(self.artefact.manifest["output_tree"], iter(results))

    def _explain_donation(
        self, given: Sequence[Any], arrays: Sequence[jax.Array], error: Exception
    ) -> None:
        """Raise for an array that is passed twice and donated at least once.

        It compares buffers. This waits for their computation, so it runs only after an error.
        """
        donated = {path for path, entry in self._arguments.items() if entry["donated"]}
        first: dict[int, str] = {}
        for path, leaf, array in zip(self._arguments, given, arrays, strict=True):
            if not isinstance(leaf, jax.Array):  # NumPy arrays are copied
                continue
            other = first.setdefault(array.addressable_data(0).unsafe_buffer_pointer(), path)
            if other != path and donated & {other, path}:
                raise ArgumentTypeError(
                    f"Arguments {other} and {path} of {self.artefact.manifest['name']} are one "
                    f"array, and {other if other in donated else path} is donated: its memory is "
                    "reused by the results. Pass a copy for one of them: jnp.copy(…)."
                ) from error

    def _matched(self, args: tuple[Any, ...]) -> list[Any]:
        flat, _ = jax.tree_util.tree_flatten_with_path(args)
        given = {
            jax.tree_util.keystr(path, simple=True, separator="."): leaf for path, leaf in flat
        }
        if said := differing_names(self._arguments, given.keys() - self._unused):
            raise ArgumentTypeError(
                f"{self.artefact.manifest['name']} takes {len(self._arguments)} arrays, and these "
                f"are others: {said} (The first number of a path is the argument's position, "
                "static ones not counted.)"
            )
        return [_checked(given[path], entry) for path, entry in self._expected.items()]

    def _shown(self, path: str) -> str:
        """Return the name of an argument in messages: for a module's array, its path in the module.

        For others it is the caller's position or name, without static arguments.
        """
        if self._calling is None:
            return path
        first, *inside = path.split(".")
        if self._calling.modules and first == "0":
            return self._calling.variables[int(inside[0])]
        if self._calling.modules:
            first, *inside = inside
        return ".".join([self._calling.shown(int(first)), *inside])

    def _sharding(self, entry: dict[str, Any]) -> NamedSharding:
        parts = [tuple(p) if isinstance(p, list) else p for p in entry["partition"]]
        return NamedSharding(self.mesh, PartitionSpec(*parts), memory_kind=entry["memory_kind"])


def load_compiled(path: str | os.PathLike[str], *, sha256: str | None = None) -> LoadedProgram:
    """Load a program that ``neurenix compile`` or ``nx.compile_for`` wrote. Experimental.

    Nothing is compiled. CPU executables have been run from files; TPU executables have not (see
    the module).

    Loading runs the machine code in the file. Load only files from people whom you trust.

    Args:
        path: of the file.
        sha256: expected digest of the whole file, as printed by ``neurenix compile``. By default
            only the file's own checksums are verified.

    Returns:
        A callable that takes the arguments of the compiled function.

    Raises:
        ArtefactError: in this order: the file is not an artefact or is truncated; its manifest has
            another schema; a member was changed; it was written by other versions of jax, jaxlib or
            libtpu; or it is for another slice.
        ArgumentTypeError: the path or the digest has another type.
        DeviceNotFoundError: it is for a TPU and there is none, or for more CPU devices than there
            are.
        DeviceInitializationError: there is a TPU that does not start.

    Example:
        On the laptop, and then on the TPU machine::

            nx.compile_for(step, state, batch, on="v5e-8", path="step.nxc")

            step = nx.load_compiled("step.nxc")
            state, logs = step(state, batch)
    """
    if not isinstance(path, (str, os.PathLike)):
        raise ArgumentTypeError(f"path must be that of a file; got {path!r}.")
    if sha256 is not None and not isinstance(sha256, str):
        raise ArgumentTypeError(f"sha256 must be text of 64 digits; got {sha256!r}.")
    artefact = artefact_module.read(Path(path), sha256=sha256)
    artefact_module.check_versions(artefact)
    if artefact.manifest["platform"] == "cpu":
        devices = _cpu_devices(artefact)
    else:
        devices = _tpu_devices(artefact)
    return LoadedProgram(artefact, devices)


def check_slice(artefact: Artefact, topology: TPUTopology) -> None:
    """Check that the devices are the slice that the program was compiled for.

    Raises:
        ArtefactError: it is another slice; the message names both.
    """
    wanted = chips.resolve(artefact.target)
    if (topology.slice_name, topology.num_devices) != (wanted.name, wanted.num_devices):
        raise ArtefactError(
            f"{artefact.path} was compiled for {wanted.name} ({wanted.num_devices} devices), and "
            f"this is {topology}. Start it on {wanted.name}, or compile it for this slice: "
            f"neurenix compile {artefact.path} --on {topology.slice_name} -o FILE"
        )


def arrange(artefact: Artefact, devices: Sequence[Any]) -> list[Any]:
    """Return the devices in the order of the program's mesh.

    The executable refers to devices by number, and their coordinates decide which links it uses.

    Raises:
        ArtefactError: the compiler numbered the devices differently.
    """
    numbered = {device.id: device for device in devices}
    ids = artefact.manifest["device_ids"]
    places = artefact.manifest["coordinates"]
    if sorted(ids) != sorted(numbered) or places != [
        list(getattr(numbered[number], "coords", ())) for number in ids
    ]:
        raise ArtefactError(
            f"This machine numbers its devices differently from those that "
            f"{artefact.path} was compiled for ({artefact.target}). Compile it again on this "
            "machine, and report it at https://github.com/jax-ml/jax/issues."
        )
    return [numbered[number] for number in ids]


def _tpu_devices(artefact: Artefact) -> list[Any]:
    active = simulated()
    if active is not None:
        raise DeviceNotFoundError(
            f"{artefact.path} is a program for real TPUs ({artefact.target}), and this process "
            f"simulates {active.name} on the CPU, which cannot run it. Load it on {artefact.target}"
            ', or compile the function for this machine: on="cpu".'
        )
    backend = TPUBackend()
    try:
        backend.initialize()
    except DeviceNotFoundError as error:
        raise DeviceNotFoundError(
            f"{artefact.path} is a program for {artefact.target}, and this machine has no TPU. "
            f"Load it on a machine of {artefact.target}."
        ) from error
    check_slice(artefact, backend.topology)
    return arrange(artefact, backend.devices)


def _cpu_devices(artefact: Artefact) -> list[Any]:
    made, here = artefact.manifest["machine"], cpu_features.cpu()
    lacking = sorted(set(made["features"]) - set(here["features"]))
    if made["architecture"] != here["architecture"] or lacking:
        without = f", without {', '.join(lacking[:5])}" if lacking else ""
        raise ArtefactError(
            f"{artefact.path} was compiled for a CPU ({made['architecture']}) that has what "
            f"this one ({here['architecture']}{without}) has not. Compile it again here: neurenix "
            f"compile {artefact.path} -o FILE"
        )
    devices = jax.devices("cpu")
    wanted = artefact.manifest["target"]["num_devices"]
    if len(devices) < wanted:
        raise DeviceNotFoundError(
            f"{artefact.path} is a program for {wanted} CPU devices, and this process has "
            f"{len(devices)}. Set JAX_NUM_CPU_DEVICES={wanted} before it starts."
        )
    return arrange(artefact, devices[:wanted])


def _deserialize(artefact: Artefact, devices: Sequence[Any]) -> Any:
    client = devices[0].client
    # In mesh order: otherwise the runtime aborts the process.
    ordered = device_list(devices)
    try:
        return client.deserialize_executable(artefact.executable, executable_devices=ordered)
    except jax.errors.JaxRuntimeError as error:
        raise ArtefactError(
            f"The runtime does not take the executable of {artefact.path}, although versions and "
            f"devices are those it was compiled for. Compile it again. It said: {error}"
        ) from error


def _checked(leaf: Any, entry: dict[str, Any]) -> Any:
    path, shape, dtype = entry["path"], tuple(entry["shape"]), jax.numpy.dtype(entry["dtype"])
    if isinstance(leaf, jax.Array) and leaf.is_deleted():
        raise ArgumentTypeError(
            f"Argument {path} has been deleted: an earlier call took it as a donated argument, and "
            "its memory is given to the results. Give what that call returned, or a copy to it: "
            "jnp.copy(…)."
        )
    if isinstance(leaf, (bool, int, float, complex)):
        leaf = _number(leaf, path, dtype)
    elif isinstance(leaf, (np.ndarray, np.generic)):
        leaf = _canonical(leaf, dtype)
    if not hasattr(leaf, "shape") or not hasattr(leaf, "dtype"):
        raise ArgumentTypeError(f"Argument {path} is a {type(leaf).__name__}, not an array.")
    if tuple(leaf.shape) != shape:
        raise ShapeError(
            f"Argument {path} has shape {tuple(leaf.shape)}; the program was compiled for {shape}."
        )
    if leaf.dtype != dtype:
        raise ArgumentTypeError(
            f"Argument {path} is of {leaf.dtype}; the program was compiled for {dtype}. Convert it "
            f"with .astype({str(dtype)!r})."
        )
    return leaf


def _canonical(array: Any, dtype: np.dtype) -> Any:
    """Return a NumPy array as ``jax.jit`` takes it: with 32 bits unless x64 is enabled."""
    narrows = array.dtype != dtype and array.dtype.kind in "iufc"
    if narrows and jax.dtypes.canonicalize_dtype(array.dtype) == dtype:
        with np.errstate(over="ignore"):
            return array.astype(dtype)
    return array


def _number(value: complex, path: str, dtype: np.dtype) -> Any:
    """Return a Python number as a scalar of ``dtype``; a float may lose digits.

    Raises:
        ArgumentTypeError: ``dtype`` cannot represent it.
    """
    kind = np.complexfloating if isinstance(value, complex) else np.inexact
    rounds = isinstance(value, (float, complex)) and jax.numpy.issubdtype(dtype, kind)
    exact = int if jax.numpy.issubdtype(dtype, np.integer) else complex
    try:
        with np.errstate(all="ignore"):
            number = dtype.type(value)
        same = bool(np.isfinite(number)) or not np.isfinite(value) if rounds else None
        if same is None:
            same = exact(number) == value
    except (OverflowError, TypeError, ValueError):
        number, same = None, False
    if not same:
        raise ArgumentTypeError(
            f"Argument {path} is {value!r}; the program was compiled for {dtype}, which cannot "
            "hold it."
        )
    return number
