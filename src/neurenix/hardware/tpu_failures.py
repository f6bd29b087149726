"""Why a TPU does not start: messages of libtpu and XLA, their causes and fixes.

The messages were collected from the issue threads that each entry names. The first matching entry
is used, so specific patterns come first.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from neurenix.hardware import machine

LOCKFILE = "/tmp/libtpu_lockfile"  # libtpu's own choice
_CHIP_NODES = ("accel[0-9]*", "vfio/[0-9]*")


@dataclass(frozen=True)
class Failure:
    """One known failure.

    Attributes:
        name: short name of the failure.
        pattern: regular expression searched in the message.
        cause: what happened, as a sentence.
        fix: what to do, as one or more sentences.
        reference: where it was reported.
    """

    name: str
    pattern: str
    cause: str
    fix: str
    reference: str


@dataclass(frozen=True)
class Diagnosis:
    """A recognised failure and the processes that hold the chips."""

    failure: Failure
    holders: tuple[machine.Holder, ...] = ()

    def __str__(self) -> str:
        lines = [self.failure.cause]
        if self.failure.name in ("held", "permission", "lockfile"):
            lines += [f"Held by process {h.pid} ({h.command}): {h.path}" for h in self.holders]
        lines.append(f"What to do: {self.failure.fix}")
        return "\n".join(lines)


CATALOGUE: tuple[Failure, ...] = (
    Failure(
        "held",
        r"The TPU is already in use by process with pid (?P<pid>\d+)"
        r"|libtpu\.so already in use(?:d)? by another process",
        "The TPU chips of this machine are held by another process: only one at a time can use "
        "them. A message about falling back to the CPU says nothing about this cause.",
        "End that process (kill PID), or wait for it. If none is listed it is another user's: "
        "run `sudo lsof -w /dev/accel* /dev/vfio/*` to see it.",
        "jax-ml/jax#10192, jax-ml/jax#22070, pytorch/xla#3214",
    ),
    Failure(
        "lockfile",
        r"Internal error when accessing libtpu multi-process lockfile",
        "Another process has loaded libtpu, or one that crashed left its lock behind "
        f"({LOCKFILE}).",
        f"End the other process. If there is none, remove the lock: sudo rm {LOCKFILE}. To compile "
        "for a TPU only, without using one, set ALLOW_MULTIPLE_LIBTPU_LOAD=1.",
        "libtpu 0.0.42.1, two processes on one machine",
    ),
    Failure(
        "permission",
        r"(?:Couldn't open device: |open\()/dev/(?:accel|vfio/)\d+\)?"
        r"(?:: | \()(?:Operation not permitted|Permission denied)",
        "This process may not open the TPU chips: another process or user holds them, or the "
        "image of the machine does not fit its TPU.",
        "End the process that holds them, or run as a user who may open /dev/accel* or /dev/vfio/* "
        "(in a container: --privileged). If nobody holds them, create the machine again with the "
        "runtime version that its TPU generation asks for.",
        "pytorch/xla#3883, pytorch/xla#9604, jax-ml/jax#21761",
    ),
    Failure(
        "hosts",
        r"TPU backend initialization is taking more than [\d.]+ seconds"
        r"|Barrier timed out\. Barrier_id: PjRT_Client_Connect",
        "The chips of this slice are on several hosts, and the program does not run on all of "
        "them: each waits for the others.",
        "Start the same program on every host at the same time: `gcloud compute tpus tpu-vm ssh "
        "NAME --worker=all --command=...`, or one JobSet over all hosts on GKE. If it runs on all, "
        "let the hosts reach each other on port 8482 (8476 before JAX 0.8.1), and look at the log "
        "of the host that failed first.",
        "jax-ml/jax#19971, jax-ml/jax#22436, jax-ml/jax#12456, jax-ml/jax#35905",
    ),
    Failure(
        "version",
        r"Mismatched PJRT plugin PJRT API version \((?P<plugin>[\d.]+)\) "
        r"and framework PJRT API version \(?(?P<framework>[\d.]+)\)?"
        r"|Unexpected PJRT_\w+_Args size"
        r"|Tpu\w+ not available in this library"
        r"|jaxlib is version [\d.]+, but this version of jax requires version"
        r"|jaxlib version [\d.]+ is newer than and incompatible with jax version",
        "The versions of jax, jaxlib and libtpu do not fit each other.",
        'Install all three through one extra: pip install --upgrade "jax[tpu]". Where another '
        "framework pins its own libtpu, give each its own environment.",
        "pytorch/xla#6949, Kaggle/docker-python#1499, jax-ml/jax#7247, jax-ml/jax#6797",
    ),
    Failure(
        "shadowed",
        r"module 'libtpu' has no attribute 'get_library_path'",
        "Another package (tensorflow-tpu) has replaced `libtpu` by its own.",
        'Uninstall tensorflow-tpu and libtpu, then: pip install "jax[tpu]".',
        "jax-ml/jax#29989, jax-ml/jax#28811",
    ),
    Failure(
        "coral",
        r"Failed to open \S*libtpu\.so: .*cannot open shared object file",
        "libtpu cannot be loaded. A Coral Edge TPU, if plugged in, may have been taken for a "
        "Cloud TPU, which it is not.",
        'For a Cloud TPU: pip install "jax[tpu]" (Linux x86-64). An Edge TPU runs compiled '
        ".tflite models, not JAX programs.",
        "jax-ml/jax#18486",
    ),
    Failure(
        "libtpu",
        r"either a TPU-enabled jaxlib or libtpu is not installed"
        r"|Failed to open libtpu\.so"
        r"|No module named 'libtpu'"
        r"|No jaxlib wheel with TPU support|Could not find libtpu",
        "libtpu, the TPU's compiler and runtime, is not installed, or could not be loaded.",
        'Install it with: pip install "jax[tpu]" (Linux x86-64 only). If it is installed, the '
        "chips are busy: see which process holds them with `sudo lsof -w /dev/accel* /dev/vfio/*`.",
        "google-deepmind/alphafold3#656, jax-ml/jax#22070",
    ),
    Failure(
        "node",
        r"grpc://[\d.]+:8470|jax\.tools\.colab_tpu",
        "This is the API of TPU Nodes (grpc://…), which no longer exist.",
        "Run the program on the TPU VM itself, and drop setup_tpu().",
        "jax-ml/jax#17495, googlecolab/colabtools#4481",
    ),
    Failure(
        "device node",
        r"(?:open\()?/dev/(?:accel|vfio/)\d+\)?: No such file or directory",
        "The chip's device file is missing: the machine's TPU did not come up.",
        "Create the TPU VM again. If TensorFlow was imported first it may have taken the TPU: "
        "install tensorflow-cpu.",
        "jax-ml/jax#13260",
    ),
    Failure(
        "no chips",
        r"No jellyfish device found|no TPU devices found|No Cloud TPU is attached",
        "libtpu finds no TPU chip on this machine.",
        "Run on a machine that has one, or unset JAX_PLATFORMS, which asks for a TPU; to go on "
        "without one: `neurenix run --simulate v5e-8 SCRIPT`.",
        "libtpu 0.0.42.1 with JAX_PLATFORMS=tpu",
    ),
    Failure(
        "unknown platform",
        r"Unknown backend:? '?tpu'?|no platforms that are instances of tpu are present",
        "JAX has no TPU backend in this process.",
        'Install libtpu: pip install "jax[tpu]", and do not set JAX_PLATFORMS without tpu.',
        "JAX 0.10.2",
    ),
)


def diagnose(text: str, *, root: Path = machine.ROOT) -> Diagnosis | None:
    """Return the diagnosis of a message of XLA or libtpu, or ``None`` if it is unknown.

    Args:
        text: the message of an exception or a log.
        root: of the file system in which processes that hold the chips are searched.

    Example:
        >>> diagnose("libtpu.so already in used by another process.").failure.name
        'held'
        >>> diagnose("all is well") is None
        True
    """
    for failure in CATALOGUE:
        match = re.search(failure.pattern, text)
        if match:
            return Diagnosis(failure, _holders(match.groupdict().get("pid"), root))
    return None


def _holders(pid: str | None, root: Path) -> tuple[machine.Holder, ...]:
    files = [Path("/") / path.relative_to(root) for path in machine.nodes(*_CHIP_NODES, root=root)]
    opened = machine.holders([*files, Path(LOCKFILE)], root)
    found = [holder for holder in opened if holder.pid != os.getpid()]
    if pid is not None and all(holder.pid != int(pid) for holder in found):
        found.append(machine.holder(int(pid), "the TPU, says libtpu", root))
    return tuple(found)
