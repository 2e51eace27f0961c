"""OpenFaaS's remote-builder protocol over a real server, as faas-cli speaks it."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import json
import resource
import stat
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import uvicorn
from starlette.applications import Starlette

from gnomon_core.errors import GnomonError
from gnomon_core.interfaces import Built
from gnomon_gateway.api.builds import BuildRoutes, payload_secret
from gnomon_platforms.local.builder import EnvironmentBuilder

Make = Callable[..., bytes]
SECRET = b"of-the-payload"
NDJSON = {"Accept": "application/x-ndjson"}


class WaitingBuilder(EnvironmentBuilder):
    """The real builder, held in the middle of a build until the test lets it go on."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.building = asyncio.Event()
        self.go_on = asyncio.Event()
        self.go_on.set()
        self.cancelled = asyncio.Event()

    async def build(self, archive: Path, log: Callable[[str], None]) -> Built:
        built = await super().build(archive, log)
        self.building.set()
        try:
            await self.go_on.wait()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        return built


class Running:
    def __init__(
        self, url: str, builder: WaitingBuilder, builds: BuildRoutes, spool: Path, session: aiohttp.ClientSession
    ) -> None:
        self.url, self.builder, self.builds, self.spool, self.session = url, builder, builds, spool, session

    def post(self, body: bytes | AsyncIterator[bytes], secret: bytes = SECRET, **headers: str) -> Any:
        signed = body if isinstance(body, bytes) else b""
        signature = {"X-Build-Signature": f"sha256={hmac.new(secret, signed, hashlib.sha256).hexdigest()}"}
        return self.session.post(f"{self.url}/build", data=body, headers={**NDJSON, **signature, **headers})

    def spooled(self) -> list[str]:
        return [path.name for path in self.spool.iterdir()]


@pytest.fixture
async def running(tmp_path: Path) -> AsyncIterator[Running]:
    builder = WaitingBuilder(tmp_path / "built")
    (tmp_path / "spool").mkdir()
    builds = BuildRoutes(builder, SECRET, max_archive_bytes=100_000, max_builds=2, spool=tmp_path / "spool")
    server = uvicorn.Server(uvicorn.Config(Starlette(routes=builds.routes()), port=0, log_level="warning"))
    task = asyncio.create_task(server.serve())
    while not server.started:  # noqa: ASYNC110 - uvicorn has no event for it
        await asyncio.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    async with aiohttp.ClientSession() as session:
        yield Running(f"http://127.0.0.1:{port}", builder, builds, tmp_path / "spool", session)
    builder.go_on.set()
    server.should_exit = True
    await task


async def test_a_build_is_told_line_by_line_and_ends_with_the_image(running: Running, build_archive: Make) -> None:
    running.builder.go_on.clear()
    async with running.post(build_archive()) as answer:
        assert (answer.status, answer.content_type) == (200, "application/x-ndjson")
        first = json.loads(await answer.content.readline())
        assert first["status"] == "in_progress"
        assert "Received a handler of python3-http" in first["log"][0]
        await running.builder.building.wait()
        running.builder.go_on.set()
        *_, last = [json.loads(line) async for line in answer.content]
    assert last == {"log": [], "image": "ada/echo:1", "status": "success"}
    assert running.spooled() == []
    assert running.builder.resolve("ada/echo:1") is not None


async def test_a_failed_build_says_why(running: Running, build_archive: Make) -> None:
    async with running.post(build_archive("def handle(:")) as answer:
        *_, last = [json.loads(line) async for line in answer.content]
    assert (answer.status, last["status"], last["image"]) == (200, "failed", "")
    assert "function/handler.py is not Python" in last["error"]


async def test_a_client_without_ndjson_gets_one_document_with_the_log(running: Running, build_archive: Make) -> None:
    async with running.post(build_archive(), Accept="*/*") as answer:
        document = await answer.json()
    assert (answer.status, document["status"], document["image"]) == (200, "success", "ada/echo:1")
    assert document["log"]
    async with running.post(build_archive("def handle(:"), Accept="*/*") as answer:
        assert (answer.status, (await answer.json())["status"]) == (422, "failed")


@pytest.mark.parametrize(
    "headers", [{}, {"X-Build-Signature": ""}, {"X-Build-Signature": "sha256=00"}, {"X-Build-Signature": "é"}]
)
async def test_a_bad_signature_is_a_401(running: Running, build_archive: Make, headers: dict[str, str]) -> None:
    async with running.post(build_archive(), secret=b"another", **headers) as answer:
        assert answer.status == 401
        assert (await answer.json())["error"]["code"] == "bad_signature"
    assert running.spooled() == []
    assert not running.builder.building.is_set()


async def test_a_changed_archive_is_a_401(running: Running, build_archive: Make) -> None:
    body = build_archive()
    signature = hmac.new(SECRET, body, hashlib.sha256).hexdigest()
    async with running.post(body[:-1] + b"x", **{"X-Build-Signature": f"sha256={signature}"}) as answer:
        assert answer.status == 401


async def test_no_signature_is_refused_before_the_body_is_read(running: Running) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", int(running.url.rpartition(":")[2]))
    writer.write(b"POST /build HTTP/1.1\r\nHost: x\r\nContent-Length: 90000\r\n\r\n")
    assert b" 401 " in await reader.readline()
    writer.close()


@pytest.mark.parametrize("chunked", [False, True])
async def test_an_archive_over_the_limit_is_a_413(running: Running, *, chunked: bool) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(20):
            yield bytes(10_000)

    try:
        async with running.post(pieces() if chunked else bytes(100_001)) as answer:
            assert answer.status == 413
    except aiohttp.ClientConnectionError:
        # The server closed while the client was still sending; a client may see only that.
        assert not running.builder.building.is_set()
    assert running.spooled() == []


async def test_a_client_that_leaves_ends_its_build(running: Running, build_archive: Make) -> None:
    running.builder.go_on.clear()
    answer = await running.post(build_archive())
    await running.builder.building.wait()
    answer.close()
    await asyncio.wait_for(running.builder.cancelled.wait(), 5)
    running.builder.go_on.set()
    async with running.post(build_archive()) as answer:
        *_, last = [json.loads(line) async for line in answer.content]
    assert last["status"] == "success"


async def test_server_that_stops_ends_builds_under_way_and_says_so(running: Running, build_archive: Make) -> None:
    running.builder.go_on.clear()
    answer = await running.post(build_archive())
    await running.builder.building.wait()
    await running.builds.end()
    assert running.builder.cancelled.is_set()
    *_, last = [json.loads(line) async for line in answer.content]
    assert (last["status"], last["image"]) == ("failed", "")
    assert "The server is stopping" in last["error"]
    assert running.spooled() == []
    async with running.post(build_archive()) as answer:
        assert (answer.status, (await answer.json())["error"]["code"]) == (503, "stopping")


@contextlib.contextmanager
def full_disk() -> Iterator[None]:
    """No file grows beyond 32 KiB: the kernel refuses the write, as a full disk does."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (32 << 10, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


LARGE = {"context/function/large.txt": "x" * (40 << 10)}


async def test_archive_that_the_disk_has_no_room_for_is_a_507(running: Running, build_archive: Make) -> None:
    archive = build_archive(files=LARGE)
    with full_disk():
        async with running.post(archive) as answer:
            assert (answer.status, (await answer.json())["error"]["code"]) == (507, "no_disk")
    assert running.spooled() == []


async def test_handler_that_the_disk_has_no_room_for_is_a_failed_build_that_says_so(
    running: Running, build_archive: Make, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    build = running.builder.build

    async def build_on_full_disk(archive: Path, log: Callable[[str], None]) -> Built:
        with full_disk():
            return await build(archive, log)

    monkeypatch.setattr(running.builder, "build", build_on_full_disk)
    async with running.post(build_archive(files=LARGE)) as answer:
        *_, last = [json.loads(line) async for line in answer.content]
    assert last["status"] == "failed"
    assert "not enough disk space" in last["error"]
    assert "Traceback" not in caplog.text


async def test_more_builds_than_allowed_are_told_to_come_again(running: Running, build_archive: Make) -> None:
    running.builder.go_on.clear()
    under_way = [await running.post(build_archive(image=f"f{number}")) for number in range(2)]
    async with running.post(build_archive()) as answer:
        assert answer.status == 503
        assert int(answer.headers["Retry-After"]) >= 1
    running.builder.go_on.set()
    for answer in under_way:
        *_, last = [json.loads(line) async for line in answer.content]
        assert last["status"] == "success"
    async with running.post(build_archive()) as answer:
        assert answer.status == 200
        await answer.read()


def test_the_payload_secret_is_made_once_and_is_nobodys_elses(tmp_path: Path) -> None:
    first = payload_secret(tmp_path / "payload-secret")
    assert payload_secret(tmp_path / "payload-secret") == first
    assert len(first) == 64
    assert stat.S_IMODE((tmp_path / "payload-secret").stat().st_mode) == 0o600
    (tmp_path / "mine").write_text("chosen\n")
    assert payload_secret(tmp_path / "mine") == b"chosen"
    (tmp_path / "empty").write_text("\n")
    with pytest.raises(GnomonError, match="is empty"):
        payload_secret(tmp_path / "empty")
