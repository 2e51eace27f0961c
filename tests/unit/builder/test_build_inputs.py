"""The inputs of a build: an archive unpacked wholly or not at all, requirements as one environment, an image's content."""

import asyncio
import gzip
import io
import os
import socket
import stat
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from gnomon_core.errors import GnomonError
from gnomon_platforms.local.builder.builder import ImageIndex
from gnomon_platforms.local.builder.contents import Limits, unpack
from gnomon_platforms.local.builder.environments import settings_for_builds
from gnomon_platforms.local.builder.requirements import endpoints, read_requirements
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
    """A member of an archive as bytes: header, content, padding. `size` may lie."""
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


@pytest.mark.parametrize(
    "text",
    [
        "numpy==2\nidna>=3\n",
        "idna>=3\nnumpy==2",
        "\ufeffidna>=3\r\n\r\nnumpy==2\r\n",
        "# ours\nidna>=3   # names\n  numpy==2\nidna>=3\n",
    ],
)
def test_the_same_requirements_are_one_environment(text: str) -> None:
    read = read_requirements(text.encode())
    assert read.lines == ("idna>=3", "numpy==2")
    assert read.environment_id == read_requirements(b"idna>=3\nnumpy==2\n").environment_id


def test_other_requirements_are_another_environment() -> None:
    ids = {read_requirements(text).environment_id for text in (b"", b"idna", b"idna==3.10", b"--index-url https://a/ \nidna")}
    assert len(ids) == 4


def test_hashes_stay_with_their_package() -> None:
    read = read_requirements(b"idna==3.10 \\\n  --hash=sha256:aa \\\n  --hash=sha256:bb\nabc==1 --hash=sha256:cc\n")
    assert read.lines == ("abc==1 --hash=sha256:cc", "idna==3.10 --hash=sha256:aa --hash=sha256:bb")


def test_options_keep_their_order_before_the_packages() -> None:
    read = read_requirements(b"b\n--index-url https://one/\na\n--extra-index-url https://two/\n")
    assert read.lines == ("--index-url https://one/", "--extra-index-url https://two/", "a", "b")


def test_urls_are_requirements() -> None:
    lines = b"a @ https://example.org/a-1-py3-none-any.whl#sha256=00\ngit+https://example.org/b@1.0\n"
    assert len(read_requirements(lines).lines) == 2


@pytest.mark.parametrize(
    "line",
    ["-r other.txt", "-rother.txt", "--requirement=other.txt", "-c c.txt", "--constraint c.txt", "-e .", "--editable=.", ".",
     "./a", "../a", "/a", "a/b", "a @ ./b", "a @ /b", "a @ file:///b", "file:///b", "--find-links /wheels", "--find-links file:///wheels",
     "-r \\\n other.txt"],
)  # fmt: skip
def test_incomplete_requirement_is_refused(line: str) -> None:
    with refused(422, match="which is outside of it"):
        read_requirements(f"idna\n{line}\n".encode())


@pytest.mark.parametrize("content", [b"\xff", bytes(300_000)])
def test_binary_requirements_file_is_refused(content: bytes) -> None:
    with pytest.raises(GnomonError):
        read_requirements(content)


def test_a_build_gets_the_operators_indexes_and_nothing_else() -> None:
    environment = {
        "PATH": "/ours", "HOME": "/root", "PYTHONPATH": "/ours", "LD_PRELOAD": "x", "UV_CACHE_DIR": "/ours", "basic_auth": "true",
        "AWS_SECRET_ACCESS_KEY": "secret", "PIP_INDEX_URL": "https://pip/", "PIP_EXTRA_INDEX_URL": "https://extra/",
        "UV_DEFAULT_INDEX": "https://uv/", "https_proxy": "http://proxy", "SSL_CERT_FILE": "/etc/cert",
    }  # fmt: skip
    assert settings_for_builds(environment) == {
        "UV_DEFAULT_INDEX": "https://uv/",
        "UV_EXTRA_INDEX_URL": "https://extra/",
        "https_proxy": "http://proxy",
        "SSL_CERT_FILE": "/etc/cert",
    }


LOCAL_HOSTS = (
    "127.0.0.1",
    "127.1",
    "2130706433",
    "0x7f.1",
    "0177.0.0.1",
    "127.0.0.1.",
    "0.0.0.0",
    "0",
    "[::1]",
    "[::]",
    "[::ffff:127.0.0.1]",
    "[::ffff:7f00:1]",
    "[fe80::1]",
    "169.254.169.254",
    "localhost",
    "LocalHost.",
    "a.localhost",
    "ip6-localhost",
    "user:pass@127.0.0.1",
    "example.org@127.0.0.1",
    "%31%32%37.0.0.1",
    "\uff11\uff12\uff17.0.0.1",
)
FORMS = (
    "a @ http://{}/a.whl",
    "git+https://{}/b",
    "--index-url http://{}:8080/simple",
    "--extra-index-url=https://{}/",
    "-i http://{}",
    "--find-links http://{}/wheels",
    "http://{}:9200/_cat",
    "a @ HTTP://{}/a.whl",
    "a @ http://{}\\@example.org/",
)


@pytest.mark.parametrize("host", LOCAL_HOSTS)
@pytest.mark.parametrize("form", FORMS)
def test_urls_of_this_machine_and_of_its_link_are_refused(form: str, host: str) -> None:
    with refused(422, "bad_requirements", match="this machine's or its link's"):
        read_requirements(form.format(host).encode())


@pytest.mark.parametrize(
    "line",
    [
        "a @ http:127.0.0.1/a.whl",
        "a @ http:/127.0.0.1/#://",
        "a @ http:\\\\127.0.0.1\\a",
        "a @ http:///127.0.0.1/a",
        "a @ http://:80/a",
        "a @ http://example.org:x/a",
        "a @ http://example.org:99999/a",
        "a @ https://${HOST}/a",
        "--index-url ${UV_INDEX_URL}",
    ],
)
def test_urls_that_readers_understand_in_different_ways_are_refused(line: str) -> None:
    with refused(422, "bad_requirements"):
        read_requirements(line.encode())


@pytest.mark.parametrize(
    "line",
    [
        "a @ https://127.0.0.1.example.org/a.whl",
        "a @ https://localhost.example.org/a",
        "git+ssh://git@example.org/a",
        "a==1 --hash=sha256:00",
        "--index-url https://user:word@10.0.0.7:8443/simple",
        "a @ https://[2001:db8::1]:8443/a.whl",
        "a @ https://example.org/?u=http%3A//127.0.0.1/",
    ],
)
def test_urls_elsewhere_are_requirements(line: str) -> None:
    assert read_requirements(line.encode()).lines == (line,)


async def test_a_name_that_means_this_machine_is_refused_before_anything_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def resolve(host: str, port: int, **_: object) -> list[tuple[int, int, int, str, tuple[str, int]]]:
        if host == "nowhere.example.org":
            raise socket.gaierror
        return [(2, 1, 6, "", ("127.0.0.1" if host == "near.example.org" else "192.0.2.1", port))]

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", resolve)
    await read_requirements(b"a @ https://far.example.org/a\nb @ https://nowhere.example.org/b\n").check_hosts()
    with pytest.raises(GnomonError, match=r"near\.example\.org"):
        await read_requirements(b"a @ https://far.example.org/a\nb @ https://near.example.org:9200/b\n").check_hosts()


def test_the_ports_of_urls_are_those_that_a_build_may_connect_to() -> None:
    assert endpoints("private=https://user@a:8443/simple") == [("a", 8443)]
    assert endpoints("socks5://[2001:db8::1]") == [("2001:db8::1", 1080)]
    assert endpoints("a @ git+ssh://git@b/c") == [("b", 22)]
    assert endpoints("idna==3.10 --hash=sha256:aa") == []


def test_image_index_survives_a_restart(tmp_path: Path) -> None:
    ImageIndex(tmp_path / "images.json").put("a:1", "0" * 64)
    assert ImageIndex(tmp_path / "images.json").get("a:1") == "0" * 64


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"{}", b'{"images": []}', b'{"images": {"a": 1}}', b"\xff"])
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "images.json").write_bytes(content)
    with refused(code="images_unreadable", match=r"images\.json cannot be read"):
        ImageIndex(tmp_path / "images.json")
