"""The stages from a request's body to a parsed request: size limit, decompression, parsing.

    check_size ▶ decompress, in a thread ▶ check_size ▶ parse: at once; more than LARGE_BYTES of JSON in the parser process

A request on a connection calls the stages one by one and continues by callbacks: nearly every request is parsed at once, and a
task for each would cost more than that. An internal call awaits `read`, which runs all stages.
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
from gnomon_gateway.v2.json_process import LARGE_BYTES, PARSER
from gnomon_gateway.v2.messages import Infer, document_bytes, most_body_bytes, read_request

_LENGTH_HEADER = b"inference-header-content-length"
_WINDOWS = {b"gzip": 31, b"x-gzip": 31, b"deflate": 15}
"""zlib's `wbits` by content encoding: 15 is a window of 32 KiB with zlib's header, 31 the same with gzip's."""
# Decompression releases the GIL. One thread is enough: the compressed bodies that wait are small.
_DECOMPRESSOR = ThreadPoolExecutor(1, "decompress")


def carries_tensors(method: bytes, headers: Mapping[bytes, bytes]) -> bool:
    """Return whether a request to a model's function is one of the Open Inference Protocol. Names of headers are lower-case."""
    if method != b"POST":
        return False
    kind = headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
    return kind == b"application/json" or _LENGTH_HEADER in headers


class BodyReader:
    """Reads the body of a request with these headers. `most_bytes` limits the compressed and the decompressed body."""

    __slots__ = ("_encoding", "_length", "_max_batch", "_signature", "most_bytes")

    def __init__(
        self, signature: ModelSignature, headers: Mapping[bytes, bytes], max_batch: int, max_body_bytes: int | None = None
    ) -> None:
        largest_request_bytes = most_body_bytes(signature, max_batch)
        self.most_bytes = largest_request_bytes if max_body_bytes is None else min(max_body_bytes, largest_request_bytes)
        self._signature, self._max_batch = signature, max_batch
        self._encoding = headers.get(b"content-encoding", b"identity").strip().lower()
        self._length = headers.get(_LENGTH_HEADER)

    def check_size(self, body_bytes: int) -> None:
        """Raise a 413 `GnomonError` if the body is too large."""
        if body_bytes > self.most_bytes:
            # Raised without a local name: an error held by its own frame is a cycle, which would keep the callers' bodies alive.
            raise replace(too_large(self.most_bytes), hint=f"Send fewer samples: one request may have {self._max_batch}.")

    def decompress(self, body: bytes | memoryview) -> Future[bytes] | None:
        """Begin to decompress the body; the future may fail with 400. None if the body is not compressed.

        Raises:
            GnomonError: 415 `unknown_encoding`.

        """
        if self._encoding == b"identity":
            return None
        if self._encoding not in _WINDOWS:
            raise GnomonError(415, "unknown_encoding", "The body has an unknown content encoding.", "Use gzip, deflate or none.")
        # One byte more than is allowed is enough for `check_size` to refuse: a small body may decompress to gigabytes.
        return _DECOMPRESSOR.submit(_decompressed, body, self._encoding, self.most_bytes + 1)

    def parse(self, body: bytes | memoryview) -> Infer | Future[Infer]:
        """The parsed request, or a future of it if the parser process parses the body.

        Raises:
            GnomonError: 400 with the reason; 503 `too_many_bodies`.

        """
        if document_bytes(len(body), self._length) > LARGE_BYTES:
            return PARSER.read(self._signature, body, self._length, self._max_batch)
        return read_request(self._signature, memoryview(body), self._length, self._max_batch)

    async def read(self, body: bytes) -> Infer:
        """Run all stages.

        Raises:
            GnomonError: as `check_size`, `decompress` and `parse`.

        """
        self.check_size(len(body))
        decompressed = self.decompress(body)
        if decompressed is not None:
            body = await asyncio.wrap_future(decompressed)
            self.check_size(len(body))
        infer = self.parse(body)
        return await asyncio.wrap_future(infer) if isinstance(infer, Future) else infer


def _decompressed(body: bytes | memoryview, encoding: bytes, most_bytes: int) -> bytes:
    """The first `most_bytes` bytes of the body without its content encoding."""
    stream = zlib.decompressobj(_WINDOWS[encoding])
    try:
        data = stream.decompress(body, most_bytes)
    except zlib.error:
        raise bad_request("invalid_request", f"The body is not {encoding.decode()}.") from None
    if not stream.eof and len(data) < most_bytes:
        raise bad_request("invalid_request", f"The body breaks off: its {encoding.decode()} has no end.")
    return data
