"""Files that are replaced as a whole."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnomon_core.whole_files import make_folder, replace_file, replacing
from tests.on_disk import Disk


@pytest.fixture
def usual_umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def mode_of(path: Path) -> int:
    return path.stat().st_mode & 0o7777


@given(contents=st.lists(st.text() | st.binary(), min_size=1, max_size=3), durable=st.booleans())
def test_a_file_has_the_content_that_it_was_given_last(
    tmp_path_factory: pytest.TempPathFactory, contents: list[str | bytes], *, durable: bool
) -> None:
    path = tmp_path_factory.mktemp("files") / "file"
    for content in contents:
        replace_file(path, content, durable=durable)
        assert path.read_bytes() == (content.encode() if isinstance(content, str) else content)
    assert names(path.parent) == ["file"]


@pytest.mark.parametrize("durable", [True, False])
def test_nobody_sees_anything_between_the_old_content_and_the_new(tmp_path: Path, *, durable: bool) -> None:
    path = tmp_path / "file"
    replace_file(path, b"old", durable=durable)
    with replacing(path, durable=durable) as file:
        file.write(b"ne")
        file.flush()
        assert path.read_bytes() == b"old"
        file.write(b"w")
    assert path.read_bytes() == b"new"


@pytest.mark.parametrize("why", [ValueError, KeyboardInterrupt])
def test_a_writer_that_fails_changes_nothing_and_leaves_nothing(tmp_path: Path, why: type[BaseException]) -> None:
    path = tmp_path / "file"
    replace_file(path, b"old", durable=False)

    def fail() -> None:
        with replacing(path, durable=True) as file:
            file.write(b"new")
            raise why

    with pytest.raises(why):
        fail()
    assert path.read_bytes() == b"old"
    assert names(tmp_path) == ["file"]


def test_one_that_cannot_take_its_place_leaves_nothing_either(tmp_path: Path) -> None:
    (tmp_path / "file").mkdir()
    with pytest.raises(OSError, match="directory"):
        replace_file(tmp_path / "file", b"x", durable=False)
    assert names(tmp_path) == ["file"]
    with pytest.raises(FileNotFoundError):
        replace_file(tmp_path / "no" / "file", b"x", durable=False)


def test_a_killed_writer_leaves_the_old_content(tmp_path: Path) -> None:
    replace_file(tmp_path / "file", b"old", durable=False)
    writer = (
        "import os, pathlib, signal, sys\n"
        "from gnomon_core.whole_files import replacing\n"
        "with replacing(pathlib.Path(sys.argv[1]), durable=True) as file:\n"
        "    file.write(b'new')\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    assert subprocess.run([sys.executable, "-c", writer, tmp_path / "file"], check=False).returncode == -9
    assert (tmp_path / "file").read_bytes() == b"old"
    replace_file(tmp_path / "file", b"later", durable=False)
    assert (tmp_path / "file").read_bytes() == b"later"


def test_of_several_writers_one_has_the_last_word_whole(tmp_path: Path) -> None:
    path = tmp_path / "file"
    contents = [bytes([65 + number]) * 100_000 for number in range(8)]
    threads = [
        threading.Thread(target=lambda content=content: [replace_file(path, content, durable=False) for _ in range(20)])
        for content in contents
    ]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        assert not path.exists() or path.read_bytes() in contents
    for thread in threads:
        thread.join()
    assert path.read_bytes() in contents
    assert names(tmp_path) == ["file"]


@pytest.mark.usefixtures("usual_umask")
@pytest.mark.parametrize(
    ("mode", "umask", "found"), [(None, 0o022, 0o644), (None, 0o077, 0o600), (0o600, 0, 0o600), (0o444, 0o077, 0o444)]
)
def test_a_mode_that_is_asked_for_does_not_depend_on_the_umask(tmp_path: Path, mode: int | None, umask: int, found: int) -> None:
    os.umask(umask)
    for _ in range(2):
        replace_file(tmp_path / "file", b"x", durable=False, mode=mode)
        assert mode_of(tmp_path / "file") == found


@pytest.mark.usefixtures("usual_umask")
def test_a_secret_is_nobody_elses_while_it_is_written_either(tmp_path: Path) -> None:
    os.umask(0)
    with replacing(tmp_path / "file", durable=False, mode=0o600):
        assert [mode_of(path) for path in tmp_path.iterdir()] == [0o600]


def test_a_file_can_be_written_in_another_folder(tmp_path: Path) -> None:
    aside, shown = tmp_path / "aside", tmp_path / "shown"
    aside.mkdir()
    shown.mkdir()
    with replacing(shown / "file", durable=True, aside=aside) as file:
        file.write(b"x")
        assert (len(names(aside)), names(shown)) == (1, [])
    assert (names(aside), names(shown)) == ([], ["file"])


@pytest.mark.usefixtures("usual_umask")
def test_what_is_durable_is_on_disk_with_the_folders_that_were_made_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(monkeypatch)
    path = tmp_path / "a" / "b" / "file"
    make_folder(path.parent, 0o700)
    make_folder(path.parent)
    replace_file(path, b"old", durable=False)
    assert not disk.keeps(path, tmp_path)
    replace_file(path, b"new", durable=True)
    assert disk.keeps(path, tmp_path)
    assert [mode_of(folder) for folder in (path.parent, path.parent.parent)] == [0o700, 0o755]
