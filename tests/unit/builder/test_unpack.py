"""An archive is unpacked wholly or not at all, and never outside of its folder."""

import gzip
import io
import os
import stat
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from gnomon_core.errors import GnomonError
from gnomon_platforms.local.builder.contents import Limits, unpack
from tests.refusals import refused

SMALL = Limits(
    members=50, file_bytes=100_000, total_bytes=200_000, ratio=20, path_bytes=200, name_bytes=60, depth=8, header_bytes=4096
)
END = bytes(1024)


def entry(
    name: str | bytes,
    content: bytes = b"",
    kind: bytes = tarfile.REGTYPE,
    *,
    link: str = "",
    size: int | None = None,
    mode: int = 0o644,
    tar_format: int = tarfile.USTAR_FORMAT,
    pax: dict[str, str] | None = None,
) -> bytes:
    """One member as bytes: header, content, padding. `size` may lie."""
    info = tarfile.TarInfo(name.decode("utf-8", "surrogateescape") if isinstance(name, bytes) else name)
    info.type, info.linkname, info.mode = kind, link, mode
    info.size = len(content) if size is None else size
    info.pax_headers = pax or {}
    return info.tobuf(tar_format, "utf-8", "surrogateescape") + content + bytes(-len(content) % 512)


def with_header(block: bytes, field: slice, value: bytes) -> bytes:
    """A header with another field and the right checksum."""
    header = bytearray(block[:512])
    header[field] = value.ljust(field.stop - field.start, b"\0")
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    return bytes(header) + block[512:]


def pax_record(record: bytes) -> bytes:
    return entry("pax", record, tarfile.XHDTYPE)


def compressed(tar: bytes) -> bytes:
    return gzip.compress(tar)


def damaged(data: bytes) -> bytes:
    return data[:4000] + bytes(100) + data[4100:]


GOOD = entry("context/handler.py", b"x = 1\n")
HOSTILE: dict[str, bytes] = {
    "a symbolic link": entry("a", kind=tarfile.SYMTYPE, link="/etc") + END,
    "a symbolic link, then a file through it": entry("a", kind=tarfile.SYMTYPE, link="..") + entry("a/b", b"x") + END,
    "a hard link": GOOD + entry("b", kind=tarfile.LNKTYPE, link="/etc/passwd") + END,
    "a hard link to a member": GOOD + entry("b", kind=tarfile.LNKTYPE, link="context/handler.py") + END,
    "a character device": entry("null", kind=tarfile.CHRTYPE) + END,
    "a block device": entry("disk", kind=tarfile.BLKTYPE) + END,
    "a fifo": entry("pipe", kind=tarfile.FIFOTYPE) + END,
    "a contiguous file": entry("a", kind=tarfile.CONTTYPE) + END,
    "an unknown kind": with_header(entry("a"), slice(156, 157), b"Z") + END,
    "a GNU sparse file": with_header(entry("a"), slice(156, 157), b"S") + END,
    "a PAX sparse file": entry("a", b"1\n", tar_format=tarfile.PAX_FORMAT, pax={"GNU.sparse.realsize": "9" * 12}) + END,
    "a PAX link": entry("a", tar_format=tarfile.PAX_FORMAT, pax={"linkpath": "/etc"}) + END,
    "a long link name": entry("link", b"/etc\0", tarfile.GNUTYPE_LONGLINK) + entry("a", kind=tarfile.SYMTYPE, link="x") + END,
    "an absolute path": entry("/etc/gnomon-test", b"x") + END,
    "an absolute path after slashes": entry("//etc/gnomon-test", b"x") + END,
    "a path that goes up": entry("../outside", b"x") + END,
    "a path that goes up in the middle": entry("context/../../outside", b"x") + END,
    "a directory that goes up": entry("context/..", kind=tarfile.DIRTYPE) + END,
    "a PAX path that goes up": entry("a", b"x", tar_format=tarfile.PAX_FORMAT, pax={"path": "../outside"}) + END,
    "a GNU long name that goes up": entry("long", b"../outside\0", tarfile.GNUTYPE_LONGNAME) + entry("a", b"x") + END,
    "a GNU long name that is absolute": entry("long", b"/tmp/outside\0", tarfile.GNUTYPE_LONGNAME) + entry("a", b"x") + END,
    "a prefix that goes up": with_header(entry("a", b"x"), slice(345, 500), b"..") + END,
    "no path at all": entry("", b"x") + END,
    "a path of dots": entry("././.", b"x") + END,
    "a NUL in a name": pax_record(b"15 path=ab\0cde\n") + entry("a", b"x") + END,
    "a line break in a name": entry("a\nb", b"x") + END,
    "a name that is not UTF-8": entry(b"\xff\xfe", b"x") + END,
    "the same file twice": GOOD + GOOD + END,
    "the same file by another spelling": GOOD + entry("./context//handler.py", b"y") + END,
    "a file where a directory is": GOOD + entry("context", b"x") + END,
    "a directory where a file is": GOOD + entry("context/handler.py/x", b"x") + END,
    "a directory instead of a file": GOOD + entry("context/handler.py", kind=tarfile.DIRTYPE) + END,
    "a directory with content": entry("d", b"x", tarfile.DIRTYPE) + END,
    "a name that is too long": entry("n" * 61, b"x") + END,
    "a path that is too long": entry("/".join(["n" * 40] * 6), b"x", tar_format=tarfile.PAX_FORMAT) + END,
    "a path that is too deep": entry("/".join("d" * 9), b"x") + END,
    "too many members": b"".join(entry(f"f{number}") for number in range(51)) + END,
    "too many directories": b"".join(entry(f"d{number}", kind=tarfile.DIRTYPE) for number in range(51)) + END,
    "headers without end": b"".join(pax_record(b"10 path=a\n") for _ in range(200)) + END,
    "a file that is too large": entry("a", bytes(100_001)) + END,
    "files that are too large together": b"".join(entry(f"f{number}", os.urandom(90_000)) for number in range(3)) + END,
    "a size of many terabytes": entry("a", size=1 << 43, tar_format=tarfile.GNU_FORMAT) + END,
    "a negative size": with_header(entry("a"), slice(124, 136), b"\xff" * 12) + END,
    "a PAX size of many terabytes": pax_record(b"19 size=9999999999\n") + entry("a", b"x") + END,
    "a PAX header that is too large": entry("pax", bytes(5000), tarfile.XHDTYPE) + GOOD + END,
    "a PAX header that lies about its length": pax_record(b"99 path=a\n") + GOOD + END,
    "a PAX header of length nothing": pax_record(b"0 path=a\n") + GOOD + END,
    "a PAX header without digits": pax_record(b"path=a\n") + GOOD + END,
    "a wrong checksum": b"\1" + GOOD[1:] + END,
    "something else": b"PK\3\4" + os.urandom(2000),
    "nothing": b"",
    "a tar cut in a header": (GOOD + END)[:300],
    "a tar cut in a file": entry("a", b"x" * 3000)[:1500],
    "a tar without an end": GOOD,
    "a gzip bomb": compressed(b"".join(entry(f"f{number}", bytes(90_000)) for number in range(40)) + END),
    "a gzip that is cut": compressed(entry("a", os.urandom(9000)) + END)[:5000],
    "a gzip that is damaged": damaged(compressed(entry("a", os.urandom(9000)) + END)),
    "a gzip bomb after the end": compressed(GOOD + END + bytes(40_000_000)),
    "a gzip of something else": compressed(os.urandom(3000)),
}


def unpacked(tmp_path: Path, data: bytes, limits: Limits = SMALL) -> Path:
    archive = tmp_path / "archive.tar"
    archive.write_bytes(data)
    (tmp_path / "inside").mkdir()
    unpack(archive, tmp_path / "inside" / "target", limits)
    return tmp_path / "inside" / "target"


@pytest.mark.parametrize("data", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_archive_leaves_nothing_anywhere(tmp_path: Path, data: bytes) -> None:
    with refused(422, "bad_archive"):
        unpacked(tmp_path, data)
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["archive.tar", "inside"]
    assert not Path("/etc/gnomon-test").exists()


def test_a_gzip_bomb_within_all_other_bounds_is_refused_by_its_ratio(tmp_path: Path) -> None:
    roomy = Limits(ratio=20)
    with pytest.raises(GnomonError, match="too large when unpacked"):
        unpacked(tmp_path, compressed(entry("a", bytes(5_000_000)) + END), roomy)
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["archive.tar", "inside"]


FORMATS = {"ustar": tarfile.USTAR_FORMAT, "gnu": tarfile.GNU_FORMAT, "pax": tarfile.PAX_FORMAT}


@pytest.mark.parametrize("pack", [bytes, compressed], ids=["plain", "gzip"])
@pytest.mark.parametrize(
    "tar_format", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT], ids=["ustar", "gnu", "pax"]
)
def test_archives_of_common_tar_programs_are_unpacked(tmp_path: Path, tar_format: int, pack: Callable[[bytes], bytes]) -> None:
    long_name = "context/" + "n" * 50 + "/" + "é" * 25 + "/" + "m" * 55
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=tar_format) as tar:
        for name, content, mode in [
            ("./context/a.py", b"a", 0o644),
            ("context/run", b"r" * 600, 0o755),
            (long_name, b"l", 0o600),
        ]:
            info = tarfile.TarInfo(name)
            info.size, info.mode = len(content), mode
            tar.addfile(info, io.BytesIO(content))
        folder = tarfile.TarInfo("context/empty/")
        folder.type, folder.mode = tarfile.DIRTYPE, 0o700
        tar.addfile(folder)

    target = unpacked(tmp_path, pack(stream.getvalue()))

    found = {str(path.relative_to(target)): path.read_bytes() for path in target.rglob("*") if path.is_file()}
    assert found == {"context/a.py": b"a", "context/run": b"r" * 600, long_name: b"l"}
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in target.rglob("*")}
    assert (modes["a.py"], modes["run"], modes["m" * 55], modes["empty"]) == (0o644, 0o755, 0o644, 0o755)


def test_set_uid_and_other_modes_are_not_kept(tmp_path: Path) -> None:
    target = unpacked(tmp_path, entry("a", b"x", mode=0o6777) + END)
    assert stat.S_IMODE((target / "a").stat().st_mode) == 0o755


def test_others_can_read_it_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        target = unpacked(tmp_path, GOOD + END)
    finally:
        os.umask(before)
    assert {stat.S_IMODE(path.stat().st_mode) for path in (target, target / "context")} == {0o755}
    assert stat.S_IMODE((target / "context" / "handler.py").stat().st_mode) == 0o644


def test_the_bounds_themselves_are_allowed(tmp_path: Path) -> None:
    members = [entry("a", bytes(100_000)), *(entry(f"f{number}") for number in range(48)), entry("b", bytes(100_000))]
    assert (unpacked(tmp_path, b"".join(members) + END) / "b").stat().st_size == 100_000
