"""From a request's body to what it asks for: bounded, unpacked, read.

    at most what the model could use ▶ unpacked, in a thread ▶ read, at once; from LARGE_BYTES of JSON on in the reader's process

A request on a connection goes on by callbacks, since nearly every one is read at once; a call from inside awaits `whole`.
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
# Unpacking frees the interpreter meanwhile. One at a time: the packed bodies that wait are small.
_UNPACKER = ThreadPoolExecutor(1, "unpack")


def carries_tensors(method: bytes, headers: Mapping[bytes, bytes]) -> bool:
    """Whether a request to a model's function is one of the open inference protocol. Names of headers are lower-case."""
    if method != b"POST":
        return False
    kind = headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
    return kind == b"application/json" or _LENGTH_HEADER in headers


class Reading:
    """How the body of a request with these headers is read. `most_bytes` is what is taken, packed and unpacked."""

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
        """Raise a 413 `GnomonError` where that is too much."""
        if body_bytes > self.most_bytes:
            # Not by way of a name: an error that its own frame holds is a cycle, which keeps the callers' bodies.
            raise replace(too_large(self.most_bytes), hint=f"Send fewer samples: one request may have {self._max_batch}.")

    def unpack(self, body: bytes | memoryview) -> Future[bytes] | None:
        """Begin to unpack it: its result may be too large, or a 400. None where it is as it is.

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
        """All of it, one after the other.

        Raises:
            GnomonError: as they do.

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
