"""OpenFaaS's remote-builder protocol: `faas-cli up --remote-builder http://127.0.0.1:8080 --payload-secret FILE`.

    POST /build                       a tar, signed: X-Build-Signature: sha256=HEX, the HMAC of the body with the payload secret
    → {"log": [...], "image": "", "status": "in_progress"}      NDJSON, a line whenever there is something to say
    → {"log": [], "image": "x:latest", "status": "success"}     or "failed" with "error"

A signature is always required, even on loopback: what is built here is run here. It is checked when the whole body has arrived,
in a file and never in memory. A client that stops reading ends its build. A client that does not accept NDJSON gets one document
with the whole log.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import logging
import os
import secrets
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from gnomon_core.background import Background
from gnomon_core.errors import INTERNAL_HEADER, INTERNAL_NAME, GnomonError, stopping
from gnomon_core.interfaces import Builder
from gnomon_gateway.api.requests import full_disk_refuses

LOG = logging.getLogger(__name__)
NDJSON = "application/x-ndjson"
MAX_ARCHIVE_BYTES = 2 << 30
MAX_BUILDS = 4
QUIET_S = 10.0
"""After this long without a line an empty document is sent, so that no proxy takes the silence for the end."""


def payload_secret(path: Path) -> bytes:
    """The secret that signs builds; made at the first start, readable by its owner only."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        secret = path.read_bytes().strip()
        if not secret:
            message = f"The payload secret {path} is empty."
            raise GnomonError(500, "payload_secret_empty", message, "Remove the file to get a new one.") from None
        return secret
    with os.fdopen(descriptor, "w") as file:
        secret_text = secrets.token_hex(32)
        file.write(secret_text)
    return secret_text.encode()


class BuildRoutes:
    """The build API. Archives wait in `spool`, a folder of the system's choice unless given."""

    def __init__(
        self,
        builder: Builder,
        secret: bytes,
        *,
        max_archive_bytes: int = MAX_ARCHIVE_BYTES,
        max_builds: int = MAX_BUILDS,
        spool: Path | None = None,
    ) -> None:
        self._builder = builder
        self._secret = secret
        self._max_archive_bytes = max_archive_bytes
        self._max_builds = max_builds
        self._spool = spool
        self._taken = 0
        self._builds = Background()
        self._ended = False

    def routes(self) -> list[Route]:
        return [Route("/build", self.post, methods=["POST"])]

    async def end(self) -> None:
        """End the builds under way, which would go on for minutes, and begin none."""
        self._ended = True
        await self._builds.end()

    async def post(self, request: Request) -> Response:
        """Receive the archive, verify its signature and build it."""
        archive: Path | None = None
        try:
            self._take_place()
            try:
                with full_disk_refuses("build"):
                    archive = await self._receive(request)
            except BaseException:
                self._taken -= 1
                raise
        except GnomonError as error:
            return Response(error.body(), error.status, error.headers())
        build = _Build()
        task = self._builds.begin(self._run(archive, build))
        headers = {"X-Accel-Buffering": "no"}
        if NDJSON in request.headers.get("Accept", ""):
            return StreamingResponse(_lines(build, task), media_type=NDJSON, headers=headers)
        return await _final_response(build, task)

    def _check_open(self) -> None:
        if self._ended:
            raise stopping()

    def _take_place(self) -> None:
        self._check_open()
        if self._taken >= self._max_builds:
            raise GnomonError(503, "too_many_builds", f"{self._taken} builds are under way.", "Try again.", retry_after_s=10)
        self._taken += 1

    async def _run(self, archive: Path, build: _Build) -> None:
        """Run a build. Removes the archive and frees the build slot however the build ends, also if it is cancelled."""
        try:
            self._check_open()
            with full_disk_refuses("build"):
                built = await self._builder.build(archive, build.log)
            build.finish({"log": [], "image": built.image, "status": "success"})
        except GnomonError as error:
            build.fail(str(error), error.status)
        except asyncio.CancelledError:  # by `end`, or because the client has left
            build.fail(str(stopping()), stopping().status)
            raise
        except Exception:
            LOG.exception("Internal error during a build")
            build.fail("The builder failed; the gateway's log says why.", 500)
        finally:
            self._taken -= 1
            _remove(archive)

    async def _receive(self, request: Request) -> Path:
        """The body in a file, if its signature is right.

        Raises:
            GnomonError: 401, 411 to 413; nothing of it is left.

        """
        claimed = request.headers.get("X-Build-Signature", "")
        if not claimed:
            raise _denied()
        declared = request.headers.get("Content-Length", "0")
        self._check_size(int(declared) if declared.isdigit() else 0)
        descriptor, name = await asyncio.to_thread(tempfile.mkstemp, ".tar", "gnomon-build-", self._spool)
        archive = Path(name)
        digest = hmac.new(self._secret, digestmod=hashlib.sha256)
        received_bytes = 0
        try:
            with os.fdopen(descriptor, "wb") as file:
                async for chunk in request.stream():
                    received_bytes += len(chunk)
                    self._check_size(received_bytes)
                    await asyncio.to_thread(_take, digest, file, chunk)
            _check_signature(digest, claimed)
        except BaseException:
            _remove(archive)
            raise
        return archive

    def _check_size(self, size_bytes: int) -> None:
        if size_bytes > self._max_archive_bytes:
            raise GnomonError(
                413,
                "archive_too_large",
                f"The archive has more than {self._max_archive_bytes} bytes.",
                "Keep data and weights out of the handler folder: the model repository is for them.",
            )


def _check_signature(digest: hmac.HMAC, claimed: str) -> None:
    expected = f"sha256={digest.hexdigest()}"
    if not hmac.compare_digest(expected.encode(), claimed.encode("utf-8", "replace")):
        raise _denied()


def _remove(path: Path) -> None:
    path.unlink(missing_ok=True)


def _take(digest: hmac.HMAC, file: Any, chunk: bytes) -> None:
    digest.update(chunk)
    file.write(chunk)


def _denied() -> GnomonError:
    return GnomonError(
        401,
        "bad_signature",
        "The header X-Build-Signature is missing or is not the HMAC of this body.",
        "Pass the file that `gnomon serve` names at its start: --payload-secret FILE.",
    )


class _Build:
    """The output of a build: log lines that the client has not read yet, and at the end a result document."""

    def __init__(self) -> None:
        self.unread: list[str] = []
        self.result: dict[str, Any] | None = None
        self.status = 200
        self.changed = asyncio.Event()

    def log(self, line: str) -> None:
        self.unread.append(line)
        self.changed.set()

    def fail(self, reason: str, status: int) -> None:
        self.finish({"log": [], "image": "", "status": "failed", "error": reason}, status)

    def finish(self, result: dict[str, Any], status: int = 200) -> None:
        self.result, self.status = result, status
        self.changed.set()


async def _lines(build: _Build, task: asyncio.Task[None]) -> AsyncIterator[bytes]:
    """The NDJSON response. The build is cancelled if the client stops reading."""
    try:
        while True:
            try:
                await asyncio.wait_for(build.changed.wait(), QUIET_S)
            except TimeoutError:
                yield _document({"log": [], "image": "", "status": "in_progress"})
                continue
            build.changed.clear()
            unread, build.unread = build.unread, []
            for line in unread:
                yield _document({"log": [line], "image": "", "status": "in_progress"})
            if build.result is not None:
                yield _document(build.result)
                return
    finally:
        task.cancel()


async def _final_response(build: _Build, task: asyncio.Task[None]) -> Response:
    """The final document with the whole log, for a client that waits for it."""
    try:
        while build.result is None:
            await build.changed.wait()
            build.changed.clear()
    finally:
        task.cancel()
    headers = {INTERNAL_HEADER: INTERNAL_NAME} if "error" in build.result else {}
    return Response(_document({**build.result, "log": build.unread}), build.status, headers, "application/json")


def _document(document: dict[str, Any]) -> bytes:
    return json.dumps(document).encode() + b"\n"
