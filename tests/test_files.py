"""Files that are written whole or not at all, and what is no regular file."""

from __future__ import annotations

import os
import stat
import threading
from pathlib import Path

import pytest

from neurenix._core.errors import ArgumentError
from neurenix._core.files import write_whole

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
    with pytest.raises(ArgumentError, match=r"^no/x\.html cannot be written: No such file"):
        write_whole("no/x.html", "text")
    with pytest.raises(ArgumentError, match=r"^\. cannot be written: Is a directory\.$"):
        write_whole(".", "text")
    assert list(tmp_path.iterdir()) == []
