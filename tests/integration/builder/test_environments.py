"""A handler's requirements live in an environment of their own, built by somebody else than us."""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import socket
import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from gnomon_core.errors import GnomonError
from gnomon_platforms.local.builder import EnvironmentBuilder

MakeArchive = Callable[..., Path]
IMAGE = "ada/echo:1"


@pytest.fixture
def built(tmp_path: Path) -> Path:
    tmp_path.chmod(0o700)  # as `gnomon serve` closes its state to everybody else
    return tmp_path / "built"


def imports(python: Path, *names: str) -> list[bool]:
    program = (
        "import importlib.util, json, sys; print(json.dumps([importlib.util.find_spec(n) is not None for n in sys.argv[1:]]))"
    )
    result = subprocess.run([python, "-c", program, *names], capture_output=True, check=True, cwd="/", timeout=20)
    return [bool(found) for found in json.loads(result.stdout)]


def folders(built: Path) -> list[str]:
    """The contents of the store, without files of a build in progress."""
    return sorted(str(path.relative_to(built)) for path in built.glob("*/.*"))


async def test_requirements_are_installed_apart_from_ours(built: Path, build_archive_file: MakeArchive) -> None:
    builder = EnvironmentBuilder(built)
    lines: list[str] = []
    result = await builder.build(build_archive_file(requirements="idna==3.10\n"), lines.append)

    image = builder.resolve(IMAGE)
    assert image is not None
    assert image.content_id == result.content_id
    assert (image.folder / "handler.py").read_text().startswith("def handle")
    assert imports(image.python, "idna", "gnomon_core", "click", "torch") == [True, False, False, False]
    assert any("idna==3.10" in line for line in lines)


async def test_a_second_build_of_the_same_requirements_installs_nothing(built: Path, build_archive_file: MakeArchive) -> None:
    builder = EnvironmentBuilder(built)
    await builder.build(build_archive_file(requirements="idna==3.10\n"), lambda _: None)
    lines: list[str] = []
    await builder.build(
        build_archive_file("def handle(event, context): return 'new'\n", "# pinned\n\nidna==3.10  # names\n"), lines.append
    )
    assert any("is there already" in line for line in lines)
    assert len(list((built / "environments").glob("*.json"))) == 1


async def test_built_environment_survives_a_restart(built: Path, build_archive_file: MakeArchive) -> None:
    await EnvironmentBuilder(built).build(build_archive_file(image="docker.io/ada/echo"), lambda _: None)
    image = EnvironmentBuilder(built).resolve("ada/echo:latest")
    assert image is not None
    assert imports(image.python, "idna") == [False]
    assert EnvironmentBuilder(built).resolve("ada/other") is None


async def test_a_failed_build_leaves_nothing_and_keeps_the_image(built: Path, build_archive_file: MakeArchive) -> None:
    builder = EnvironmentBuilder(built)
    before = await builder.build(build_archive_file(), lambda _: None)
    with pytest.raises(GnomonError, match="cannot be installed") as caught:
        await builder.build(build_archive_file("x = 1\n", "idna==0.0.0.0.1\n"), lambda _: None)
    assert (caught.value.status, caught.value.code) == (422, "build_failed")
    image = builder.resolve(IMAGE)
    assert image is not None
    assert image.content_id == before.content_id
    assert folders(built) == []


ENDLESS = """
import subprocess, time
def build_wheel(*a, **k):
    subprocess.Popen(["sleep", "300.125"], start_new_session=True)
    time.sleep(300)
"""
TELLING = """
import json, os, pathlib, sys
def build_wheel(*a, **k):
    state = pathlib.Path(os.environ["HOME"]).parent.parent.parent
    def visible(path):
        try:
            return sorted(entry.name for entry in path.iterdir())
        except OSError:
            return None
    sys.exit(json.dumps({"uid": os.getuid(), "environment": sorted(os.environ), "state": visible(state)}))
"""


def source_package(tmp_path: Path, backend: str) -> dict[str, str]:
    """A source distribution that runs this code while it is built, and the settings by which uv finds it."""
    source = tmp_path / "odd_gnomon_test-1.0"
    source.mkdir()
    (source / "pyproject.toml").write_text(
        '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
        '[project]\nname = "odd-gnomon-test"\nversion = "1.0"\n'
    )
    (source / "backend.py").write_text(backend)
    (source / "PKG-INFO").write_text("Metadata-Version: 2.2\nName: odd-gnomon-test\nVersion: 1.0\n")
    links = tmp_path / "links"
    links.mkdir()
    with tarfile.open(links / "odd_gnomon_test-1.0.tar.gz", "w:gz") as tar:
        tar.add(source, source.name)
    return {"UV_FIND_LINKS": str(links), "UV_OFFLINE": "1"}


def sleepers() -> list[str]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if b"300.125" in path.read_bytes():
                found.append(path.parent.name)
        except OSError:
            continue
    return found


CONNECTING = """
import json, socket, sys
def build_wheel(*a, **k):
    outcomes = {}
    for port in PORTS:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=10).close()
            outcomes[port] = "connected"
        except OSError as error:
            outcomes[port] = type(error).__name__
    sys.exit(json.dumps(outcomes))
"""


async def test_a_build_reaches_no_service_of_this_machine_but_the_operators_indexes(
    built: Path, tmp_path: Path, build_archive_file: MakeArchive
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as database, socket.create_server(("127.0.0.1", 0)) as index:
        ports = [listener.getsockname()[1] for listener in (database, index)]
        environment = source_package(tmp_path, CONNECTING.replace("PORTS", repr(ports)))
        environment["HTTPS_PROXY"] = f"http://127.0.0.1:{ports[1]}"
        lines: list[str] = []
        with pytest.raises(GnomonError, match="cannot be installed"):
            await EnvironmentBuilder(built, environment=environment).build(
                build_archive_file(requirements="odd-gnomon-test\n"), lines.append
            )
    reached_line = next(line for line in lines if "connected" in line or ("Error" in line and "{" in line))
    if not limits_ports():
        pytest.skip("Linux before 6.7 cannot limit the ports that a process connects to")
    assert json.loads(reached_line[reached_line.index("{") : reached_line.index("}") + 1]) == {
        str(ports[0]): "PermissionError",
        str(ports[1]): "connected",
    }


def limits_ports() -> bool:
    release = tuple(int(part) for part in os.uname().release.split("-")[0].split(".")[:2])
    return release >= (6, 7) and ctypes.CDLL(None).syscall(444, None, 0, 1) >= 4


async def test_a_build_that_takes_too_long_ends_with_everything_it_started(
    built: Path, tmp_path: Path, build_archive_file: MakeArchive
) -> None:
    builder = EnvironmentBuilder(built, environment=source_package(tmp_path, ENDLESS), time_limit_s=3)
    with pytest.raises(GnomonError, match="within 3 s") as caught:
        await builder.build(build_archive_file(requirements="odd-gnomon-test\n"), lambda _: None)
    assert (caught.value.status, caught.value.code) == (422, "build_timeout")
    assert sleepers() == []
    assert folders(built) == []


async def test_a_cancelled_build_ends_with_everything_it_started(
    built: Path, tmp_path: Path, build_archive_file: MakeArchive
) -> None:
    builder = EnvironmentBuilder(built, environment=source_package(tmp_path, ENDLESS))
    task = asyncio.create_task(builder.build(build_archive_file(requirements="odd-gnomon-test\n"), lambda _: None))
    async with asyncio.timeout(30):
        while not sleepers():  # noqa: ASYNC110 - another program's process has no event of ours
            await asyncio.sleep(0.05)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert sleepers() == []
    assert folders(built) == []
    await builder.build(build_archive_file(), lambda _: None)


async def test_a_package_that_runs_code_is_somebody_else_and_sees_nothing_of_ours(
    built: Path, tmp_path: Path, build_archive_file: MakeArchive
) -> None:
    environment = source_package(tmp_path, TELLING) | {"GNOMON_TEST_PASSWORD": "of-the-gateway", "AWS_SECRET_ACCESS_KEY": "ours"}
    builder = EnvironmentBuilder(built, environment=environment)
    await builder.build(build_archive_file(), lambda _: None)
    lines: list[str] = []
    with pytest.raises(GnomonError):
        await builder.build(build_archive_file(requirements="odd-gnomon-test\n"), lines.append)
    seen = json.loads(next(line[line.index("{") :] for line in lines if '"environment"' in line))
    assert {"GNOMON_TEST_PASSWORD", "AWS_SECRET_ACCESS_KEY"}.isdisjoint(seen["environment"])
    assert set(seen["environment"]) >= {"HOME", "PATH"}
    if os.geteuid() == 0:
        assert seen["uid"] not in (0, os.getuid())
        assert "images.json" not in (seen["state"] or [])
        assert "contents" not in (seen["state"] or [])


async def test_builds_of_one_environment_at_once_make_it_once(
    built: Path, tmp_path: Path, build_archive: Callable[..., bytes]
) -> None:
    builder = EnvironmentBuilder(built)
    archives = []
    for number in range(4):
        archives.append(tmp_path / f"{number}.tar")
        archives[-1].write_bytes(build_archive(f"x = {number}\n", "idna==3.10\n", image=f"f{number}"))
    lines: list[str] = []
    results = await asyncio.gather(*(builder.build(archive, lines.append) for archive in archives))
    assert len({result.content_id for result in results}) == 4
    assert sum("Installing" in line for line in lines) == 1


async def test_unused_environments_are_collected(built: Path, build_archive_file: MakeArchive) -> None:
    builder = EnvironmentBuilder(built)
    old = await builder.build(build_archive_file("x = 1\n", "idna==3.10\n"), lambda _: None)
    new = await builder.build(build_archive_file("x = 2\n"), lambda _: None)
    await builder.build(build_archive_file("x = 3\n", image="other"), lambda _: None)

    assert await builder.collect([]) == [], "they were built just now"
    assert old.content_id not in await builder.collect([IMAGE], [old.content_id], unused_s=0)
    removed = await builder.collect([IMAGE], unused_s=0)

    assert old.content_id in removed
    assert new.content_id not in removed
    assert len(list((built / "environments").glob("*.json"))) == 1
    assert builder.resolve("other") is None
    assert builder.resolve(IMAGE) is not None


async def test_leftovers_of_a_killed_build_are_removed_at_the_start(built: Path) -> None:
    for name in ("environments/.building-1/environment", "contents/.incoming-1/context"):
        (built / name).mkdir(parents=True)
    EnvironmentBuilder(built)
    assert folders(built) == []
