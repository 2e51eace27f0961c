"""Asks the control API for a secret in every way that a connection can be made; in functions, in builds, as anybody."""

import contextlib
import json
import socket
from typing import Any

MPTCP = 262
TIMEOUT_S = 10


def request(name: str, headers: str = "", *, close: bool = True) -> bytes:
    body = json.dumps({"name": name, "value": "taken"})
    connection = "Connection: close\r\n" if close else ""
    head = f"POST /system/secrets HTTP/1.1\r\nHost: localhost\r\n{connection}{headers}Content-Length: {len(body)}\r\n\r\n"
    return (head + body).encode()


def connected(family: int, address: str, port: int, *, protocol: int = 0, source: str | None = None) -> socket.socket:
    found = socket.socket(family, socket.SOCK_STREAM, protocol)
    found.settimeout(TIMEOUT_S)
    if source is not None:
        found.bind((source, 0))
    found.connect((address, port))
    return found


def last_status(connection: socket.socket) -> int:
    """The status of the last answer before the end of the stream."""
    seen = b""
    with contextlib.suppress(ConnectionResetError):
        while data := connection.recv(1 << 16):
            seen += data
    return int(seen.rpartition(b"HTTP/1.1 ")[2].split(b" ", 1)[0])


def plain_ways(family: int, address: str, port: int, prefix: str) -> dict[str, Any]:
    def once(name: str, headers: str = "") -> int:
        with connected(family, address, port) as connection:
            connection.sendall(request(name, headers))
            return last_status(connection)

    found: dict[str, Any] = {f"{prefix}plain": once(f"{prefix}plain")}
    with connected(family, address, port) as connection:
        connection.sendall(request(f"{prefix}half-closed"))
        connection.shutdown(socket.SHUT_WR)
        with contextlib.suppress(ConnectionResetError):  # the gateway may hang up, since its client has: only the effect counts
            connection.recv(1)
    with connected(family, address, port) as connection:
        opening = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
        connection.sendall(opening + request(f"{prefix}pipelined"))
        found[f"{prefix}pipelined"] = last_status(connection)
    forged = "X-Gnomon-Peer: x\r\nX-Gnomon-Peer-Client: 127.0.0.1\r\nAuthorization: Basic YWRtaW46\r\nX-Remote-User: root\r\n"
    found[f"{prefix}forged"] = once(f"{prefix}forged", forged)
    # Nobody holds this socket any more when the gateway looks: the kernel shows uid 0 for it.
    with connected(family, address, port) as connection:
        connection.sendall(request(f"{prefix}closed", close=False))
    return found


def intrude(host: str, port: int, who: str) -> dict[str, Any]:
    """The status of each way's answer. What succeeds leaves a secret behind whose name begins with `who`."""
    if ":" in host:
        return plain_ways(socket.AF_INET6, host, port, f"{who}-ipv6-")
    found = plain_ways(socket.AF_INET, host, port, f"{who}-ipv4-")
    found |= plain_ways(socket.AF_INET6, f"::ffff:{host}", port, f"{who}-mapped-")
    with connected(socket.AF_INET, host, port, source="127.0.0.2") as connection:
        connection.sendall(request(f"{who}-elsewhere"))
        found[f"{who}-elsewhere"] = last_status(connection)
    with contextlib.suppress(OSError), connected(socket.AF_INET, host, port, protocol=MPTCP) as connection:
        connection.sendall(request(f"{who}-mptcp"))
        found[f"{who}-mptcp"] = last_status(connection)
    return found
