"""Write files atomically: a file is complete, or it does not exist.

Creates missing folders, removes what killed processes have left, and explains write errors.

A file is written to ``.NAME.PID-NUMBER.neurenix.part`` in its folder and then renamed. The writer
locks the part; the lock ends with its process, so an unlocked part is a leftover.
"""

from __future__ import annotations

import fcntl
import itertools
import os
import re
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from neurenix._core.errors import ArgumentError, NeurenixError

_PART = re.compile(r"\.(?P<of>.+)\.(?P<pid>\d+)(-\d+)?(?P<ours>\.neurenix)?\.part")
_NUMBERS = itertools.count()  # no two saves of a process have one name
_LONGEST = 50  # characters of a name in that of its part; a name has up to 255 bytes


def write_whole(
    path: str | os.PathLike[str],
    content: str | bytes,
    *,
    error: type[NeurenixError] = ArgumentError,
    what: str = "",
) -> None:
    """Write a file atomically, and create its folder if missing.

    A symbolic link is kept, and its target is written. A device, a pipe or another path that is not
    a regular file is written in place, since it cannot be replaced.

    Args:
        path: of the file.
        content: bytes, or text that is written in UTF-8.
        error: the class of the error.
        what: the name of the content in the message.

    Raises:
        ArgumentError: or ``error``; it cannot be written. The message names ``path`` and the cause.
    """
    data = content if isinstance(content, bytes) else content.encode(errors="replace")
    with _explained(path, error, what):
        if _is_special(path):
            with open(path, "wb") as file:
                file.write(data)
        else:
            _replace(Path(os.path.realpath(path)), data)


def check_writable(
    path: str | os.PathLike[str], *, error: type[NeurenixError] = ArgumentError, what: str = ""
) -> None:
    """Check that ``write_whole`` can write a file, before there is content.

    An empty file is created in the nearest existing folder and removed again.

    Raises:
        ArgumentError: or ``error``, as ``write_whole``.
    """
    with _explained(path, error, what):
        if not _is_special(path):
            _check_folder(Path(os.path.realpath(path)))
        elif os.path.isdir(path):
            raise IsADirectoryError(0, "it is a folder; name a file in it")
        elif not os.access(path, os.W_OK):
            raise PermissionError(0, "Permission denied")


@contextmanager
def _explained(
    path: str | os.PathLike[str], error: type[NeurenixError], what: str
) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError) as cause:  # the second for a path that no system takes
        why = (cause.strerror or cause) if isinstance(cause, OSError) else cause
        subject = f"The {what} cannot be written to {os.fspath(path)}"
        if not what:
            subject = f"{os.fspath(path)} cannot be written"
        raise error(f"{subject}: {why}.") from cause


def _is_special(path: str | os.PathLike[str]) -> bool:
    try:
        return not stat.S_ISREG(os.stat(path).st_mode)
    except FileNotFoundError:
        return False


def _check_folder(target: Path) -> None:
    for folder in target.parents:
        try:
            is_folder = stat.S_ISDIR(os.stat(folder).st_mode)
        except FileNotFoundError:  # it will be made
            continue
        if not is_folder:
            raise NotADirectoryError(0, f"{folder} is no folder")
        try:
            handle, probe = tempfile.mkstemp(prefix=".neurenix-", dir=folder)
        except OSError as error:
            why = f"no file can be made in {folder} ({error.strerror})"
            raise OSError(error.errno, why) from error
        os.close(handle)
        os.unlink(probe)
        return


def _replace(target: Path, data: bytes) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    _remove_left_overs(target)
    part, handle = _new_part(target)
    with open(handle, "wb") as file:
        try:
            file.write(data)
            file.flush()
            os.fsync(handle)
            os.replace(part, target)
        except BaseException:  # a later save would remove it, and there may be none
            part.unlink(missing_ok=True)
            raise


def _new_part(target: Path) -> tuple[Path, int]:
    """Create the part that becomes ``target``, and lock it."""
    for number in _NUMBERS:
        name = f".{target.name[:_LONGEST]}.{os.getpid()}-{number}.neurenix.part"
        part = target.with_name(name)
        try:
            handle = os.open(part, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666)
        except FileExistsError:  # of a process that has this number elsewhere
            continue
        with suppress(OSError):  # a file system without locks, where leftovers are not removed
            fcntl.flock(handle, fcntl.LOCK_EX)
        if os.fstat(handle).st_nlink:
            return part, handle
        os.close(handle)  # another process removed it before it was locked
    raise AssertionError("the numbers have no end")


def _remove_left_overs(target: Path) -> None:
    """Remove the parts that killed processes have left in the folder: those without a lock."""
    with os.scandir(target.parent) as entries:
        found = [(entry.name, match) for entry in entries if (match := _PART.fullmatch(entry.name))]
    for name, match in found:
        part = target.with_name(name)
        if match["ours"] or (match["of"] == target.name and not _is_alive(int(match["pid"]))):
            _remove_unless_held(part)


def _remove_unless_held(part: Path) -> None:
    try:
        handle = os.open(part, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:  # it is gone, a link, or not ours to read
        return
    try:
        if stat.S_ISREG(os.fstat(handle).st_mode):
            with suppress(OSError):  # its writer holds the lock, or there are no locks here
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                part.unlink(missing_ok=True)
    finally:
        os.close(handle)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True
