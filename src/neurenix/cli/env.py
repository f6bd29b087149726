"""``neurenix env``: describe this machine for a bug report."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import sys

_PACKAGES = (
    *(
        "jax",
        "jaxlib",
        "libtpu",
        "flax",
        "optax",
        "orbax-checkpoint",
        "grain",
        "numpy",
        "ml-dtypes",
    ),
    *("safetensors", "scikit-learn", "rich", "typer", "jax-cuda12-plugin", "jax-cuda13-plugin"),
    *("jax-rocm7-plugin", "torch", "torch-xla", "torchax", "keras", "tensorflow", "tensorflow-tpu"),
    *("ai-edge-litert", "wgpu"),
)
# Only variables with these names are printed: others may hold secrets.
_VARIABLES = ("NEURENIX_", "JAX_", "XLA_", "TPU_", "LIBTPU_", "PJRT_", "MEGASCALE_", "CLOUD_TPU_")
_MORE_VARIABLES = (
    *("NPROC", "ALLOW_MULTIPLE_LIBTPU_LOAD", "CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"),
    "HIP_VISIBLE_DEVICES",
)


def env() -> None:
    """Print versions, devices and settings for a bug report."""
    variables = _variables()  # before JAX and libtpu set their own
    rows = [
        ("neurenix", sys.modules["neurenix"].__version__),
        ("python", f"{platform.python_version()} ({platform.python_implementation()})"),
        ("system", platform.platform()),
        ("cpu", f"{os.cpu_count()} cores, {platform.machine()}"),
        ("memory", f"{_memory_gib():.1f} GiB"),
        *_versions(),
        *_devices(),
        *(variables or [("environment", "no relevant variable is set")]),
    ]
    width = max(len(name) for name, _ in rows) + 2
    print("```")
    for name, value in rows:
        print(f"{name:<{width}}{value}".rstrip())
    print("```")


def _versions() -> list[tuple[str, str]]:
    found = []
    for package in _PACKAGES:
        try:
            found.append((package, importlib.metadata.version(package)))
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def _devices() -> list[tuple[str, str]]:
    from neurenix import device as device_module
    from neurenix._core.errors import NeurenixError
    from neurenix.simulation import simulated

    rows = [("simulation", str(simulated() or "none"))]
    rows += [
        (str(kind), f"{state.found} attached, {state.count} usable. {state.problem}".strip())
        for kind, state in device_module.availability().items()
    ]
    try:
        here = ", ".join(f"{one} ({one.kind})" for one in device_module.devices())
    except (NeurenixError, RuntimeError) as error:
        here = f"{type(error).__name__}: {error}"
    return [*rows, ("devices", here)]


def _variables() -> list[tuple[str, str]]:
    return sorted(
        (name, value or "(set, empty)")
        for name, value in os.environ.items()
        if name.startswith(_VARIABLES) or name in _MORE_VARIABLES
    )


def _memory_gib() -> float:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
