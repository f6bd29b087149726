"""Files that are written whole or not at all, and what is no regular file."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from neurenix._core.errors import ArgumentError, CheckpointError
from neurenix._core.files import check_writable, write_whole

pytestmark = pytest.mark.pure


def test_a_file_is_replaced_and_nothing_else_stays(tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    path.write_text("before")
    write_whole(path, "é")
    assert path.read_bytes() == "é".encode()
    write_whole(str(path), b"\x00")
    assert path.read_bytes() == b"\x00"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("there", [True, False])
def test_a_link_stays_and_its_target_is_written(tmp_path: Path, there: bool) -> None:
    (tmp_path / "kept").mkdir()
    target, link = tmp_path / "kept" / "r.json", tmp_path / "link.json"
    if there:
        target.write_text("before")
    link.symlink_to(target)
    write_whole(link, "after")
    assert link.is_symlink() and target.read_text() == "after"
    assert not target.is_symlink() and list(target.parent.iterdir()) == [target]


def test_a_pipe_is_written_to(tmp_path: Path) -> None:
    pipe, read = tmp_path / "pipe", []
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: read.append(pipe.read_text()))
    reader.start()
    write_whole(pipe, "through")
    reader.join(30)
    assert read == ["through"] and stat.S_ISFIFO(pipe.stat().st_mode)


def test_a_pipe_by_its_number_is_written_to() -> None:
    reads, writes = os.pipe()
    write_whole(f"/dev/fd/{writes}", "through")
    os.close(writes)
    with open(reads, encoding="utf-8") as file:
        assert file.read() == "through"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
def test_a_device_stays_a_device_and_its_refusal_is_ours(tmp_path: Path) -> None:
    link = tmp_path / "full"  # as root, /dev/full itself could be replaced
    link.symlink_to("/dev/full")
    with pytest.raises(ArgumentError, match=r"full cannot be written: No space left on device\.$"):
        write_whole(link, "text")
    assert stat.S_ISCHR(os.stat("/dev/full").st_mode)
    assert list(tmp_path.iterdir()) == [link]


def test_what_cannot_be_written_is_named_as_the_user_did(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file").write_text("before")
    with pytest.raises(ArgumentError, match=r"^file/x\.html cannot be written: Not a directory\.$"):
        write_whole("file/x.html", "text")
    with pytest.raises(ArgumentError, match=r"^\. cannot be written: Is a directory\.$"):
        write_whole(".", "text")
    with pytest.raises(ArgumentError, match=r"cannot be written: embedded null byte\.$"):
        write_whole("a\0b", "text")
    assert [path.read_text() for path in tmp_path.iterdir()] == ["before"]


def test_the_folder_is_made_and_a_name_may_be_as_long_as_a_name_can_be(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / ("é" * 127)  # 254 bytes
    check_writable(path)
    assert not list(tmp_path.iterdir())
    write_whole(path, "text")
    assert path.read_text() == "text" and list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize(
    ("path", "why"),
    [
        (".", "it is a folder; name a file in it"),
        ("file/x", "Not a directory"),
        ("file/a/b/x", "Not a directory"),
        ("link/x", "Not a directory"),
        ("loop", "Too many levels of symbolic links"),
        ("x" * 300, "File name too long"),
        ("a\0b", "embedded null byte"),
        ("/proc/x.json", "no file can be made in /proc (No such file or directory)"),
        ("/proc/a/b/x.json", "no file can be made in /proc (No such file or directory)"),
    ],
)
def test_what_could_not_be_written_is_found_before(
    path: str, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file").write_text("before")
    Path("link").symlink_to("file")
    Path("loop").symlink_to("loop")
    for check in (check_writable, lambda path: write_whole(path, "after")):
        with pytest.raises(ArgumentError, match="cannot be written: "):
            check(path)
    with pytest.raises(CheckpointError) as found:
        check_writable(path, error=CheckpointError, what="weights")
    assert str(found.value) == f"The weights cannot be written to {path}: {why}."
    assert sorted(os.listdir()) == ["file", "link", "loop"] and Path("file").read_text() == "before"


@pytest.mark.parametrize("path", ["/dev/null", "new.json", "a/b/new.json", "file", "dangling"])
def test_a_check_of_what_can_be_written_changes_nothing(
    path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file").write_text("before")
    Path("dangling").symlink_to("elsewhere/file")
    check_writable(path)
    assert sorted(os.listdir()) == ["dangling", "file"] and Path("file").read_text() == "before"
    write_whole(path, "after")
    if path != "/dev/null":
        assert Path(path).read_text() == "after"


_STOPPED = """
import os, sys, time
from neurenix._core.files import write_whole
def stop(handle):
    print("stopped", flush=True)
    time.sleep(600)
os.fsync = stop
write_whole(sys.argv[1], "half")
"""


@contextmanager
def stopped_save(path: Path) -> Iterator[subprocess.Popen[str]]:
    """Run a process that stops in the middle of a save."""
    command = [sys.executable, "-c", _STOPPED, str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None and process.stdout.readline() == "stopped\n"
            yield process
        finally:
            process.kill()


def test_what_a_killed_save_left_is_removed_by_the_next_of_any_name(tmp_path: Path) -> None:
    with stopped_save(tmp_path / "r-01.json"), stopped_save(tmp_path / "r-02.json"):
        pass
    assert len(list(tmp_path.iterdir())) == 2
    write_whole(tmp_path / "r-03.json", "whole")
    assert os.listdir(tmp_path) == ["r-03.json"]


def test_what_a_live_save_writes_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    with stopped_save(path):
        (part,) = tmp_path.iterdir()
        write_whole(path, "whole")
        assert sorted(tmp_path.iterdir()) == [part, path]
    write_whole(path, "again")
    assert os.listdir(tmp_path) == ["r.json"]


def test_parts_of_others_are_kept(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        pass
    left = f".r.json.{ended.pid}.part"  # as it was called before parts had locks
    others = [
        *("film.part", ".r.json.part", ".r.json.x.part", "r.json.1.part", ".r.json.1.partial"),
        *(f".other.json.{ended.pid}.part", f".r.json.{os.getpid()}.part"),
    ]
    folder, link = f".r.json.{ended.pid}-1.neurenix.part", f".r.json.{ended.pid}-2.neurenix.part"
    for name in (left, *others):
        (tmp_path / name).write_text(name)
    (tmp_path / folder).mkdir()
    (tmp_path / link).symlink_to("film.part")
    write_whole(tmp_path / "r.json", "whole")
    assert sorted(os.listdir(tmp_path)) == sorted([*others, folder, link, "r.json"])


def test_threads_that_save_one_file_do_not_meet(tmp_path: Path) -> None:
    path, texts = tmp_path / "r.json", [str(n) * 100_000 for n in range(8)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda text: write_whole(path, text), texts * 4))
    assert path.read_text() in texts and os.listdir(tmp_path) == ["r.json"]
