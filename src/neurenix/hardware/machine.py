"""What Linux reports as attached: PCI and USB devices, device nodes, and processes that use them.

Reads ``/sys``, ``/dev`` and ``/proc``; the modules beside this one interpret vendor numbers. Every
function takes the root of the file system as an argument, for tests.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path("/")
_COMMAND_LENGTH = 100


@dataclass(frozen=True)
class PciDevice:
    """Vendor, device and class of a PCI device, as in ``/sys``: ``"0x1ae0"``."""

    vendor: str
    device: str
    device_class: str


@dataclass(frozen=True)
class Holder:
    """A process that has a file open."""

    pid: int
    command: str
    path: str


def pci_devices(root: Path = ROOT) -> list[PciDevice]:
    """Return every PCI device; empty if the kernel shows none."""
    return [
        PciDevice(*(text(folder / name) for name in ("vendor", "device", "class")))
        for folder in sorted((root / "sys/bus/pci/devices").glob("*"))
    ]


def usb_ids(root: Path = ROOT) -> list[str]:
    """Return ``"vendor:product"`` of every USB device."""
    return [
        f"{text(folder / 'idVendor')}:{text(folder / 'idProduct')}"
        for folder in sorted((root / "sys/bus/usb/devices").glob("*"))
        if (folder / "idVendor").exists()
    ]


def nodes(*patterns: str, root: Path = ROOT) -> list[Path]:
    """Return the files under ``/dev`` that match one of the patterns, such as ``"accel[0-9]*"``."""
    return [path for pattern in patterns for path in sorted((root / "dev").glob(pattern))]


def holders(paths: Iterable[Path], root: Path = ROOT) -> list[Holder]:
    """Return the processes that have one of the files open.

    Processes of other users are visible to root only.
    """
    wanted = {str(path) for path in paths}
    found = {
        (pid, target): Holder(pid, _command(root, pid), target)
        for pid, target in _open_files(root)
        if target in wanted
    }
    return [found[key] for key in sorted(found)]


def holder(pid: int, path: str, root: Path = ROOT) -> Holder:
    """Return the record of a process known to hold ``path``."""
    return Holder(pid, _command(root, pid), path)


def _open_files(root: Path) -> Iterator[tuple[int, str]]:
    for process in (root / "proc").glob("[0-9]*"):
        try:
            for link in (process / "fd").iterdir():
                yield int(process.name), str(link.readlink())
        except OSError:  # the process ended meanwhile, or belongs to another user
            continue


def _command(root: Path, pid: int) -> str:
    raw = text(root / "proc" / str(pid) / "cmdline")
    command = " ".join(raw.replace("\0", " ").split())
    if len(command) > _COMMAND_LENGTH:
        return command[:_COMMAND_LENGTH] + "…"
    return command or "unknown command"


def text(path: Path) -> str:
    """Return the stripped text of a file, or an empty string if it cannot be read.

    In a container, the kernel lists files of other containers that cannot be read.
    """
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""
