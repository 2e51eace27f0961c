"""The model repository over HTTP: what is uploaded is there whole, and what is refused leaves nothing."""

from __future__ import annotations

import asyncio
import hashlib
import io
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from gnomon_core.model_files import Archive
from gnomon_gateway.api.access import BasicAuth
from gnomon_gateway.api.models import ModelRoutes
from gnomon_profiler.repository import DirectoryRepository
from gnomon_profiler.tensor_index import with_header
from tests.contracts.small_models import files, two_blocks, with_layers
from tests.integration.gateway_api.conftest import PASSWORD, USER, Gateway, StartGateway
from tests.waiting import until

MAX_BYTES = 4 << 20


@dataclass
class Models:
    """A gateway with a repository, and the folders that an upload may touch."""

    gateway: Gateway
    repository: DirectoryRepository
    root: Path
    spool: Path
    routes: ModelRoutes

    async def put(self, path: str, body: bytes | AsyncIterator[bytes], **headers: str) -> tuple[int, Any]:
        url = f"{self.gateway.url}/gnomon/models/{path}"
        data = io.BytesIO(body) if isinstance(body, bytes) else body
        async with self.gateway.client.put(url, data=data, headers=headers) as answer:
            return answer.status, await answer.json()

    async def get(self, path: str = "") -> tuple[int, Any]:
        async with self.gateway.client.get(f"{self.gateway.url}/gnomon/models{path}") as answer:
            return answer.status, await answer.json()

    def is_empty(self) -> bool:
        """Neither a model, nor a file, nor a rest of an upload is there."""
        stored = [path for path in self.root.rglob("*") if path.is_file() and path.name != "lock"]
        return not stored and (not self.spool.exists() or not list(self.spool.iterdir()))


@pytest.fixture
async def models(start_gateway: StartGateway, tmp_path: Path) -> Models:
    return await started(start_gateway, tmp_path)


async def started(start: StartGateway, folder: Path, auth: BasicAuth | None = None, **limits: int) -> Models:
    repository = DirectoryRepository(folder / "models")
    routes = ModelRoutes(repository, folder / "spool", **{"max_bytes": MAX_BYTES, **limits})
    return Models(await start(auth=auth, more=routes.handlers()), repository, folder / "models", folder / "spool", routes)


@pytest.fixture
def packed(tmp_path: Path) -> Any:
    """The archive of these files; `stated` are other contents whose hashes it states."""

    def pack(contents: dict[str, bytes], stated: dict[str, bytes] | None = None) -> bytes:
        folder = tmp_path / hashlib.sha256(repr(sorted(contents)).encode()).hexdigest()[:16]
        folder.mkdir(exist_ok=True)
        for name, data in contents.items():
            (folder / name).write_bytes(data)
        hashes = {name: hashlib.sha256(data).hexdigest() for name, data in {**contents, **(stated or {})}.items()}
        return b"".join(Archive({name: folder / name for name in contents}, hashes))

    return pack


async def test_an_uploaded_model_is_listed_shown_and_whole(models: Models, packed: Any) -> None:
    assert await models.get() == (200, [])
    made, _ = two_blocks()
    status, document = await models.put("torchvision:two/1", packed(made))
    assert status == 200
    assert (document["name"], document["version"]) == ("torchvision:two", "1")
    assert document["files"] == {name: len(data) for name, data in made.items()}
    assert document["sha256"] == {name: hashlib.sha256(data).hexdigest() for name, data in made.items()}
    assert await models.get() == (200, [document])
    assert await models.get("/torchvision:two@1") == (200, document)
    assert await models.get("/torchvision:two?layers=true") == (200, document | {"layers": json.loads(made["layers.json"])})
    entry = models.repository.get("torchvision:two@1")
    assert {name: path.read_bytes() for name, path in entry.files.items()} == made
    assert entry.weights.stat().st_mode & 0o777 == 0o444
    assert list(models.spool.iterdir()) == []


async def test_the_same_content_again_is_no_error_and_another_is_a_conflict(models: Models, packed: Any) -> None:
    _, first = await models.put("scale/1", packed(files()))
    assert await models.put("scale/1", packed(files())) == (200, first)
    status, refusal = await models.put("scale/1", packed(files(3.0)))
    assert (status, refusal["error"]["code"]) == (409, "model_exists")
    assert await models.get() == (200, [first])
    completed = (await models.put("scale/1", packed(with_layers(files()))))[1]
    assert set(completed["files"]) == {"program.json", "weights.safetensors", "layers.json"}


@pytest.mark.parametrize("path", ["A/1", "..%2Fx/1", ".hidden/1", "a%00/1", "scale/..%2F1", "scale/1@2", f"scale/{'1' * 70}"])
async def test_names_that_could_leave_the_repository_are_refused(models: Models, packed: Any, path: str) -> None:
    url = f"PUT /gnomon/models/{path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
    answer = await models.gateway.raw(url.encode())
    assert answer.split()[1] in (b"400", b"404"), answer
    assert models.is_empty()


WEIGHTS = files()["weights.safetensors"]
BROKEN_WEIGHTS = (
    b"",
    WEIGHTS[:7],
    WEIGHTS[:20],
    WEIGHTS[:-1],
    (1 << 40).to_bytes(8, "little") + WEIGHTS[8:],
    WEIGHTS[:8] + b"x" * (len(WEIGHTS) - 8),
    with_header({"w": {"dtype": "F32", "shape": [1]}}, []),
    with_header({"w": {"dtype": "F32", "shape": [1], "data_offsets": [4, 0]}}, [bytes(4)]),
    with_header({"w": {"dtype": "F32", "shape": [1], "data_offsets": ["0", "4"]}}, [bytes(4)]),
    with_header({"w": 3}, []),
)


@pytest.mark.parametrize(
    ("contents", "stated", "expected"),
    [
        (files(), {"weights.safetensors": b"other"}, (422, "hash_mismatch")),
        ({"program.json": files()["program.json"]}, {}, (400, "invalid_model")),
        (files(op="aten.from_file.default"), {}, (422, "invalid_program")),
        (with_layers(files()) | {"program.json": files(3.0)["program.json"]}, {}, (422, "invalid_layers")),
        (files() | {"engines.json": b"[]"}, {}, (422, "invalid_engines")),
        *((files() | {"weights.safetensors": broken}, {}, (400, "invalid_model")) for broken in BROKEN_WEIGHTS),
    ],
)
async def test_refused_contents_leave_nothing(
    models: Models, packed: Any, contents: dict[str, bytes], stated: dict[str, bytes], expected: tuple[int, str]
) -> None:
    status, refusal = await models.put("scale/1", packed(contents, stated))
    assert (status, refusal["error"]["code"]) == expected
    assert models.is_empty()
    assert await models.get() == (200, [])


@pytest.mark.parametrize("body", [b"", b"no archive" * 100])
async def test_upload_that_is_no_archive_is_refused(models: Models, body: bytes) -> None:
    status, refusal = await models.put("scale/1", body)
    assert (status, refusal["error"]["code"]) == (400, "invalid_archive")
    assert models.is_empty()


async def test_a_truncated_archive_is_refused(models: Models, packed: Any) -> None:
    whole = packed(files())
    for length in range(0, len(whole) - 1024, 700):
        status, refusal = await models.put("scale/1", whole[:length])
        assert (status, refusal["error"]["code"]) == (400, "invalid_archive")
    assert models.is_empty()


@pytest.mark.parametrize("chunked", [False, True])
async def test_a_model_above_the_limit_is_refused(models: Models, *, chunked: bool) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        yield bytes(MAX_BYTES)
        yield b"x"

    try:
        status, refusal = await models.put("scale/1", pieces() if chunked else bytes(MAX_BYTES + 1))
    except aiohttp.ClientConnectionError:
        pass  # the server closed while the client was still sending; a client may see only that
    else:
        # A chunked body of zeros is refused as no archive if its first portion is read before its length is known.
        assert (status, refusal["error"]["code"]) in ((413, "model_too_large"), (400, "invalid_archive"))
    await until(models.is_empty)


async def test_a_stated_length_above_the_limit_is_refused_before_the_body(models: Models) -> None:
    head = f"PUT /gnomon/models/scale/1 HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {MAX_BYTES + 1}\r\n\r\n"
    answer = await models.gateway.raw(head.encode())
    assert b" 413 " in answer.splitlines()[0]
    assert b"model_too_large" in answer
    assert models.is_empty()


async def test_a_model_that_does_not_fit_on_the_disk_is_refused(start_gateway: StartGateway, tmp_path: Path, packed: Any) -> None:
    """The server leaves more free than the disk has."""
    models = await started(start_gateway, tmp_path, free_bytes=1 << 62)
    status, refusal = await models.put("scale/1", packed(files()))
    assert (status, refusal["error"]["code"]) == (507, "no_disk")
    assert models.is_empty()


async def test_an_upload_that_breaks_off_leaves_nothing(models: Models, packed: Any) -> None:
    made, _ = two_blocks()
    whole = packed(made)
    _, writer = await asyncio.open_connection("127.0.0.1", models.gateway.port)
    writer.write(f"PUT /gnomon/models/two/1 HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(whole)}\r\n\r\n".encode())
    writer.write(whole[: len(whole) * 3 // 4])
    await writer.drain()
    await until(lambda: any(path.stat().st_size for path in models.spool.rglob("weights.safetensors")))
    assert await models.get() == (200, [])
    writer.transport.abort()
    await until(models.is_empty)
    assert await models.get() == (200, [])
    assert (await models.put("two/1", whole))[0] == 200


async def test_uploads_at_once_are_bounded(start_gateway: StartGateway, tmp_path: Path, packed: Any) -> None:
    models = await started(start_gateway, tmp_path, max_uploads=1)
    _, writer = await asyncio.open_connection("127.0.0.1", models.gateway.port)
    writer.write(b"PUT /gnomon/models/scale/2 HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 5000\r\n\r\n")
    await until(lambda: models.spool.exists() and any(models.spool.iterdir()))
    status, refusal = await models.put("scale/1", packed(files()))
    assert (status, refusal["error"]["code"]) == (503, "too_many_uploads")
    writer.transport.abort()
    await until(models.is_empty)
    assert (await models.put("scale/1", packed(files())))[0] == 200


async def test_without_the_login_nothing_is_taken_or_told(start_gateway: StartGateway, tmp_path: Path, packed: Any) -> None:
    models = await started(start_gateway, tmp_path, BasicAuth(USER, PASSWORD))
    url = f"{models.gateway.url}/gnomon/models"
    for method, path in (("GET", ""), ("GET", "/scale"), ("PUT", "/scale/1")):
        async with models.gateway.client.request(method, url + path, data=packed(files()) if method == "PUT" else None) as answer:
            assert answer.status == 401
    assert models.is_empty()
    async with models.gateway.client.put(
        f"{url}/scale/1", data=packed(files()), headers={"Authorization": aiohttp.encode_basic_auth(USER, PASSWORD)}
    ) as answer:
        assert answer.status == 200


async def test_a_page_of_another_site_cannot_upload(models: Models, packed: Any) -> None:
    status, refusal = await models.put("scale/1", packed(files()), Origin="http://evil.example")
    assert (status, refusal["error"]["code"]) == (403, "foreign_origin")
    assert models.is_empty()


async def test_a_missing_model_is_a_404(models: Models) -> None:
    for reference in ("scale", "scale@1", "..scale@1", "scale@..", "@1"):
        status, refusal = await models.get(f"/{reference}")
        assert (status, refusal["error"]["code"]) == (404, "model_not_found")


async def test_rests_of_a_killed_server_are_removed(tmp_path: Path) -> None:
    rest = tmp_path / "spool" / "tmp1"
    rest.mkdir(parents=True)
    (rest / "weights.safetensors").write_bytes(b"x")
    ModelRoutes(DirectoryRepository(tmp_path / "models"), tmp_path / "spool")
    assert not rest.exists()
