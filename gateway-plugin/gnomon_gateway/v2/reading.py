"""The stages from a request's body to a parsed request: size limit, decompression, parsing.

    at most the model's largest input ▶ decompressed, in a thread ▶ parsed at once; from LARGE_BYTES of JSON in the parser process

A request on a connection continues by callbacks, since nearly every one is parsed at once; an internal call awaits `whole`.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace

from gnomon_core.errors import GnomonError, bad_request
from gnomon_core.signature import ModelSignature
from gnomon_gateway.http.exchange import too_large
from gnomon_gateway.v2.json_process import LARGE_BYTES, READER
from gnomon_gateway.v2.messages import Infer, document_bytes, most_body_bytes, read_request

_LENGTH_HEADER = b"inference-header-content-length"
_WINDOWS = {b"gzip": 31, b"x-gzip": 31, b"deflate": 15}
# Decompression releases the GIL. One thread is enough: the compressed bodies that wait are small.
_UNPACKER = ThreadPoolExecutor(1, "unpack")


def carries_tensors(method: bytes, headers: Mapping[bytes, bytes]) -> bool:
    """Return whether a request to a model's function is one of the open inference protocol. Names of headers are lower-case."""
    if method != b"POST":
        return False
    kind = headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
    return kind == b"application/json" or _LENGTH_HEADER in headers


class Reading:
    """The reading of a body with these headers. `most_bytes` limits the compressed and the decompressed body."""

    __slots__ = ("_encoding", "_length", "_max_batch", "_signature", "most_bytes")

    def __init__(
        self, signature: ModelSignature, headers: Mapping[bytes, bytes], max_batch: int, max_body_bytes: int | None = None
    ) -> None:
        useful_bytes = most_body_bytes(signature, max_batch)
        self.most_bytes = useful_bytes if max_body_bytes is None else min(max_body_bytes, useful_bytes)
        self._signature, self._max_batch = signature, max_batch
        self._encoding = headers.get(b"content-encoding", b"identity").strip().lower()
        self._length = headers.get(_LENGTH_HEADER)

    def bound(self, body_bytes: int) -> None:
        """Raise a 413 `GnomonError` if the body is too large."""
        if body_bytes > self.most_bytes:
            # Raised without a local name: an error held by its own frame is a cycle, which would keep the callers' bodies alive.
            raise replace(too_large(self.most_bytes), hint=f"Send fewer samples: one request may have {self._max_batch}.")

    def unpack(self, body: bytes | memoryview) -> Future[bytes] | None:
        """Begin to decompress the body; the future may fail with 413 or 400. None if the body is not compressed.

        Raises:
            GnomonError: 415 `unknown_encoding`.

        """
        if self._encoding == b"identity":
            return None
        if self._encoding not in _WINDOWS:
            raise GnomonError(415, "unknown_encoding", "The body has an unknown content encoding.", "Use gzip, deflate or none.")
        return _UNPACKER.submit(_unpacked, body, self._encoding, self.most_bytes + 1)

    def read(self, body: bytes | memoryview) -> Infer | Future[Infer]:
        """The parsed request, or a future of it where the body is read in another process.

        Raises:
            GnomonError: 400 with what is wrong, 503 where too much is being read.

        """
        if document_bytes(len(body), self._length) > LARGE_BYTES:
            return READER.read(self._signature, body, self._length, self._max_batch)
        return read_request(self._signature, memoryview(body), self._length, self._max_batch)

    async def whole(self, body: bytes) -> Infer:
        """Run all stages.

        Raises:
            GnomonError: as `bound`, `unpack` and `read`.

        """
        self.bound(len(body))
        unpacking = self.unpack(body)
        if unpacking is not None:
            body = await asyncio.wrap_future(unpacking)
            self.bound(len(body))
        reading = self.read(body)
        return await asyncio.wrap_future(reading) if isinstance(reading, Future) else reading


def _unpacked(body: bytes | memoryview, encoding: bytes, most_bytes: int) -> bytes:
    """The body without its content encoding, up to so many bytes."""
    packed = zlib.decompressobj(_WINDOWS[encoding])
    try:
        unpacked = packed.decompress(body, most_bytes)
    except zlib.error:
        raise bad_request("invalid_request", f"The body is not {encoding.decode()}.") from None
    if not packed.eof and len(unpacked) < most_bytes:
        raise bad_request("invalid_request", f"The body breaks off: its {encoding.decode()} has no end.")
    return unpacked
