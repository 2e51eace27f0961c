"""Asks a proxy which version of an Ingress it serves at a host: HTTP/1.1 to the socket that is for probes only."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from gnomon_platforms.knative.ingress.config import GENERATION_HEADER
from gnomon_platforms.knative.ingress.names import HASH_HEADER

TIMEOUT_S = 5.0
MAX_ANSWER_BYTES = 16 * 1024


@dataclass(frozen=True, slots=True)
class Answer:
    """What a proxy says of a host: its configuration's generation, and the Ingress's hash, empty for a host unknown."""

    generation: str
    hash: str


async def probe(where: str, host: str) -> Answer:
    """Ask at `ADDRESS:PORT` or `unix@PATH`.

    Raises:
        OSError: nobody answers, or not in time, or not as a proxy of ours.

    """
    async with asyncio.timeout(TIMEOUT_S):
        reader, writer = await _connect(where)
        try:
            asked = host.replace("*", "any", 1)
            writer.write(f"GET / HTTP/1.1\r\nHost: {asked}\r\nConnection: close\r\n\r\n".encode())
            head = (await reader.read(MAX_ANSWER_BYTES)).partition(b"\r\n\r\n")[0].decode("latin-1")
        finally:
            writer.close()
    status, *lines = head.split("\r\n")
    headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    generation = headers.get(GENERATION_HEADER.lower())
    if not status.startswith("HTTP/1.1 ") or generation is None:
        msg = f"{where} does not answer as an ingress of ours: {status[:80]}"
        raise ConnectionError(msg)
    return Answer(generation, headers.get(HASH_HEADER.lower(), ""))


async def _connect(where: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    if where.startswith("unix@"):
        return await asyncio.open_unix_connection(where.removeprefix("unix@"))
    address, _, port = where.rpartition(":")
    return await asyncio.open_connection(address.strip("[]*") or "127.0.0.1", int(port))
