"""The archive of a model's files: what is packed is unpacked, in any portions, and nothing else is."""

from __future__ import annotations

import hashlib
import io
import subprocess
import tarfile
from pathlib import Path

import pytest

from gnomon_core.errors import GnomonError
from gnomon_core.model_files import SUMS, Archive, Unpacker
from tests.refusals import refused

CONTENTS = {"program.json": b"{}" * 700, "weights.safetensors": bytes(range(256)) * 40, "empty.bin": b"", "block.bin": b"x" * 512}


def sums(contents: dict[str, bytes]) -> bytes:
    return "".join(f"{hashlib.sha256(data).hexdigest()}  {name}\n" for name, data in contents.items()).encode()


def member(name: str, data: bytes = b"", kind: bytes = tarfile.REGTYPE) -> bytes:
    header = tarfile.TarInfo(name)
    header.size, header.type = len(data), kind
    return header.tobuf(tarfile.GNU_FORMAT) + data + bytes(-len(data) % 512)


def archive(contents: dict[str, bytes]) -> bytes:
    return member(SUMS, sums(contents)) + b"".join(member(name, data) for name, data in contents.items()) + bytes(1024)


def unpacked(folder: Path, data: bytes, portion: int = 1 << 20) -> dict[str, bytes]:
    unpacker = Unpacker(folder)
    try:
        for begin in range(0, len(data), portion):
            unpacker.feed(data[begin : begin + portion])
        return {name: path.read_bytes() for name, path in unpacker.finish().items()}
    finally:
        unpacker.close()


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    folder.mkdir()
    for name, data in CONTENTS.items():
        (folder / name).write_bytes(data)
    return folder


@pytest.fixture
def target(tmp_path: Path) -> Path:
    folder = tmp_path / "target"
    folder.mkdir()
    return folder


@pytest.mark.parametrize("portion", [1, 511, 512, 513, 1 << 20])
def test_files_arrive_unchanged_in_any_portions(source: Path, target: Path, portion: int) -> None:
    hashes = {name: hashlib.sha256(data).hexdigest() for name, data in CONTENTS.items()}
    packed = Archive({name: source / name for name in CONTENTS}, hashes)
    data = b"".join(packed)
    assert len(data) == packed.size_bytes
    assert unpacked(target, data, portion) == CONTENTS
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        assert set(tar.getnames()) == {SUMS, *CONTENTS}


def test_an_archive_of_tar_and_sha256sum_is_read(source: Path, target: Path) -> None:
    """The documentation makes an archive with these programs."""
    command = f"sha256sum *.json *.safetensors *.bin > {SUMS}; tar --format=ustar -cf - {SUMS} *.json *.safetensors *.bin"
    data = subprocess.run(["sh", "-c", command], cwd=source, capture_output=True, check=True).stdout
    assert unpacked(target, data) == CONTENTS


@pytest.mark.parametrize("name", ["../escape", "/etc/passwd", "a/b", "..", ".hidden", "A", SUMS, "a" * 80])
def test_a_name_that_is_not_plain_is_refused(target: Path, name: str) -> None:
    before = sorted(target.parent.rglob("*"))
    for data in (archive({name: b"x"}), member(SUMS, sums({"program.json": b"x"})) + member(name, b"x") + bytes(1024)):
        with refused(400, "invalid_archive"):
            unpacked(target, data)
    assert sorted(target.parent.rglob("*")) == before


@pytest.mark.parametrize(
    "kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.DIRTYPE, tarfile.CHRTYPE, tarfile.XHDTYPE, tarfile.GNUTYPE_LONGNAME]
)
def test_only_regular_files_are_taken(target: Path, kind: bytes) -> None:
    with refused(400, "invalid_archive"):
        unpacked(target, member(SUMS, sums({"program.json": b""})) + member("program.json", b"", kind) + bytes(1024))
    assert list(target.iterdir()) == []


def test_another_content_than_stated_is_refused(target: Path) -> None:
    with refused(422, "hash_mismatch", message="program.json"):
        unpacked(target, member(SUMS, sums({"program.json": b"x"})) + member("program.json", b"y") + bytes(1024))


WHOLE = archive(CONTENTS)
HEAD = member(SUMS, sums(CONTENTS))


@pytest.mark.parametrize(
    "data",
    [
        *(WHOLE[:length] for length in (0, 1, 512, 700, len(HEAD), len(HEAD) + 100, len(WHOLE) - 1024)),
        HEAD + bytes(1024),
        HEAD + member("block.bin", CONTENTS["block.bin"]) * 2,
        WHOLE + b"x",
        b"not a tar" * 100,
        WHOLE[len(HEAD) :],
        member(SUMS, b"") + bytes(1024),
        member(SUMS, b"00  program.json\n") + bytes(1024),
        member(SUMS, sums(CONTENTS) * 2) + bytes(1024),
        member(SUMS, sums({f"f{number}": b"" for number in range(65)})) + bytes(1024),
        member(SUMS, b"\n" * 70_000),
    ],
)
def test_a_malformed_archive_is_refused(target: Path, data: bytes) -> None:
    with refused(400, "invalid_archive"):
        unpacked(target, data)


def test_every_cut_is_noticed(tmp_path: Path) -> None:
    small = archive({"program.json": b"x" * 600})
    for length in range(0, len(small) - 512, 37):
        folder = tmp_path / str(length)
        folder.mkdir()
        with refused(400, "invalid_archive"):
            unpacked(folder, small[:length])


@pytest.mark.parametrize("at", range(0, len(archive({"program.json": b"x" * 100})), 13))
def test_a_changed_byte_is_refused_or_changes_nothing(target: Path, at: int) -> None:
    data = archive({"program.json": b"x" * 100})
    try:
        found = unpacked(target, data[:at] + bytes([data[at] ^ 0x41]) + data[at + 1 :])
    except GnomonError as error:
        found = {"refused": error.code.encode()}
    assert found in ({"program.json": b"x" * 100}, {"refused": b"invalid_archive"}, {"refused": b"hash_mismatch"})
