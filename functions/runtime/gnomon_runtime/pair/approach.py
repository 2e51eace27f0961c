"""How a Body comes to a Shadow on another node: a URL and a token become a connection that carries a pair's messages.

    {"do": "pair", …, "url": "http://10.0.3.7:8080", "token": "…"}  ─▶  connect, ask for the upgrade, read 101  ─▶  a stream

Everything here has a time limit; it is done beside the Body's batches.
"""

from __future__ import annotations

import socket
import time
from urllib.parse import urlsplit

from gnomon_core import packets
from gnomon_core.addresses import host_and_port
from gnomon_core.coordination import PAIR_PATH, PAIR_PROTOCOL
from gnomon_runtime.pair.stream import prepare

CONNECT_S = 3.0
MAX_ANSWER_BYTES = 8192
_PORT = 80
_END = b"\r\n\r\n"


def approach(url: str, token: str) -> socket.socket:
    """A connection to the Shadow behind this URL, upgraded and not blocking.

    Raises:
        ValueError: the URL or the token is none.
        PeerGoneError: nobody is there, or whoever is there refuses.

    """
    host, port = address(url)
    if not token.isascii() or not token.isprintable():
        raise ValueError("a token that no header can hold")
    until_s = time.monotonic() + CONNECT_S
    try:
        connection = socket.create_connection((host, port), CONNECT_S)
    except OSError as error:
        raise packets.PeerGoneError(f"{host_and_port(host, port)} cannot be reached: {error}") from error
    try:
        connection.sendall(_request(urlsplit(url).netloc, token))
        _switched(connection, until_s)
        prepare(connection)
    except OSError as error:
        connection.close()
        if isinstance(error, packets.PeerGoneError):
            raise
        raise packets.PeerGoneError(f"{host_and_port(host, port)} does not answer: {error}") from error
    return connection


def address(url: str) -> tuple[str, int]:
    """Host and port of http://HOST[:PORT].

    Raises:
        ValueError: it is no such URL.

    """
    parts = urlsplit(url)
    if parts.scheme != "http" or not parts.hostname or parts.path not in ("", "/") or parts.query or parts.username:
        raise ValueError("the Shadow's url is not http://HOST:PORT")
    return parts.hostname, parts.port or _PORT


def _request(host: str, token: str) -> bytes:
    lines = (
        f"GET {PAIR_PATH} HTTP/1.1",
        f"Host: {host}",
        f"Authorization: Bearer {token}",
        "Connection: Upgrade",
        f"Upgrade: {PAIR_PROTOCOL}",
    )
    return "\r\n".join((*lines, "", "")).encode("ascii")


def _switched(connection: socket.socket, until_s: float) -> None:
    """Read the answer, up to its last line and no further."""
    answer = b""
    while not answer.endswith(_END):
        left_s = until_s - time.monotonic()
        if left_s <= 0 or len(answer) > MAX_ANSWER_BYTES:
            raise packets.PeerGoneError("the Shadow does not answer the upgrade")
        connection.settimeout(left_s)
        # Byte by byte: what comes after the last line is a message, and there is none before one is asked for.
        byte = connection.recv(1)
        if not byte:
            raise packets.PeerGoneError("the Shadow has hung up on the upgrade")
        answer += byte
    status = answer.split(b"\r\n", 1)[0].split(b" ", 2)
    if len(status) < 2 or status[1] != b"101":  # noqa: PLR2004 - version and status
        raise packets.PeerGoneError(f"the Shadow refuses: {answer.split(_END[:2], 1)[0].decode('latin-1')[:100]}")
