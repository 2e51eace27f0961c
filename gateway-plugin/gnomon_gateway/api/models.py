"""The model repository over HTTP: what `gnomon models add`, `list` and `show` ask with `-g URL`.

    GET /gnomon/models                        all models: signature, size and SHA-256 of each file
    GET /gnomon/models/NAME[@VERSION]         one, with its report on engines; its layer blocks with ?layers=true
    PUT /gnomon/models/NAME/VERSION           its files, in an archive (`gnomon_core.model_files`)

    body ─▶ spool folder, hashes compared ─▶ repository: program, layers and report checked, files moved ─▶ the version appears

An upload is written to the disk as it arrives; whatever ends it early, its folder is removed and the repository has not changed.
The disk and the repository are used in threads.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response

from gnomon_core.engines import REPORT, read_report
from gnomon_core.errors import GnomonError, bad_request
from gnomon_core.interfaces import ModelEntry, ModelRepository
from gnomon_core.model_files import Unpacker, check_name
from gnomon_gateway.api.requests import Handlers, flag_in_query, full_disk_refuses, no_disk

MAX_MODEL_BYTES = 8 << 30
MAX_UPLOADS = 4
FREE_BYTES = 256 << 20
"""Disk space that an upload leaves free."""
_PORTION_BYTES = 1 << 20
_WHAT = "model"
_READ_ONLY = (errno.EROFS, errno.EACCES, errno.EPERM)


class ModelRoutes:
    """The handlers. Uploads wait in `spool`, a folder that nothing else uses; what it holds from before is removed."""

    def __init__(
        self,
        repository: ModelRepository,
        spool: Path,
        *,
        max_bytes: int = MAX_MODEL_BYTES,
        max_uploads: int = MAX_UPLOADS,
        free_bytes: int = FREE_BYTES,
    ) -> None:
        self._repository, self._spool = repository, spool
        self._max_bytes, self._max_uploads, self._free_bytes = max_bytes, max_uploads, free_bytes
        self._uploads = 0
        shutil.rmtree(spool, ignore_errors=True)

    def handlers(self) -> Handlers:
        return {
            "/gnomon/models": {"GET": self.list},
            "/gnomon/models/{reference}": {"GET": self.show},
            "/gnomon/models/{name}/{version}": {"PUT": self.put},
        }

    async def list(self, _: Request) -> Response:
        return JSONResponse(await asyncio.to_thread(lambda: [_document(entry) for entry in self._repository.list()]))

    async def show(self, request: Request) -> Response:
        layers = flag_in_query(request, "layers")
        return JSONResponse(await asyncio.to_thread(self._show, request.path_params["reference"], layers=layers))

    async def put(self, request: Request) -> Response:
        """Receive a version's files and add it. The same content again is no error."""
        name, version = request.path_params["name"], request.path_params["version"]
        check_name(name, version)
        with self._place(), full_disk_refuses(_WHAT), _read_only_refuses():
            folder = await asyncio.to_thread(self._begin, int(request.headers.get("Content-Length", "0")))
            try:
                files = await self._receive(request, folder)
                entry = await asyncio.to_thread(self._repository.put_files, name, version, files)
            finally:
                await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
        return JSONResponse(await asyncio.to_thread(_document, entry))

    def _show(self, reference: str, *, layers: bool) -> dict[str, Any]:
        entry = self._repository.get(reference)
        document = _document(entry)
        if REPORT in entry.files:
            document["engines"] = read_report(entry.files[REPORT]).to_json()
        if layers and entry.layers is not None:
            document["layers"] = json.loads(entry.layers.read_bytes())
        return document

    @contextlib.contextmanager
    def _place(self) -> Iterator[None]:
        if self._uploads >= self._max_uploads:
            raise GnomonError(
                503, "too_many_uploads", f"{self._uploads} models are being uploaded.", "Try again.", retry_after_s=10
            )
        self._uploads += 1
        try:
            yield
        finally:
            self._uploads -= 1

    def _begin(self, size_bytes: int) -> Path:
        """A folder for an upload of this size, if there is room."""
        self._check_size(size_bytes)
        self._spool.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._check_room(size_bytes)
        return Path(tempfile.mkdtemp(dir=self._spool))

    async def _receive(self, request: Request, folder: Path) -> Mapping[str, Path]:
        """The files of the archive in the body, in this folder."""
        unpacker = Unpacker(folder)
        portion = bytearray()
        received_bytes = 0

        def store(data: bytes) -> None:
            self._check_room(len(data))
            unpacker.feed(data)

        try:
            async for chunk in request.stream():
                received_bytes += len(chunk)
                self._check_size(received_bytes)
                portion += chunk
                if len(portion) >= _PORTION_BYTES:
                    await asyncio.to_thread(store, bytes(portion))
                    portion.clear()
            await asyncio.to_thread(store, bytes(portion))
            return unpacker.finish()
        except ClientDisconnect:
            raise bad_request("incomplete_body", "The body ended early.") from None
        finally:
            unpacker.close()

    def _check_size(self, size_bytes: int) -> None:
        if size_bytes > self._max_bytes:
            raise GnomonError(
                413,
                "model_too_large",
                f"The model's archive has more than {self._max_bytes} bytes.",
                "The operator's `gnomon serve --max-model` bounds it.",
            )

    def _check_room(self, size_bytes: int) -> None:
        if shutil.disk_usage(self._spool).free < size_bytes + self._free_bytes:
            raise no_disk(_WHAT)


def _document(entry: ModelEntry) -> dict[str, Any]:
    return {
        "name": entry.name,
        "version": entry.version,
        "signature": entry.signature.to_json(),
        "files": {file: path.stat().st_size for file, path in sorted(entry.files.items())},
        "sha256": dict(entry.sha256),
    }


@contextlib.contextmanager
def _read_only_refuses() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno not in _READ_ONLY:
            raise
        message = f"The server may not write to its model repository: {error.strerror}."
        raise GnomonError(501, "repository_read_only", message, "Add the model where the repository is filled.") from error
