"""Whose process is at the other end of a connection, where that is on this machine: the kernel knows the user of every socket."""

from __future__ import annotations

import ipaddress
import sys
from pathlib import Path

_UID_FIELD = 7


def user_of(client: tuple[str, int], server: tuple[str, int], tables: Path = Path("/proc/net")) -> int | None:
    """The user id of the client's socket; None if the client is elsewhere, or gone.

    `client` and `server` are the two ends as the server sees them. Blocks for a millisecond or, with very many connections, more.
    """
    try:
        row = f" {_written(*client)} {_written(*server)} ".encode()
        table = (tables / ("tcp6" if ":" in client[0] else "tcp")).read_bytes()
    except (OSError, ValueError):
        return None
    at = table.find(row)
    if at < 0:
        return None
    line = table[table.rfind(b"\n", 0, at) + 1 : table.find(b"\n", at)]
    return int(line.split()[_UID_FIELD])


def _written(host: str, port: int) -> str:
    """An address as the kernel's table has it: words of 32 bits in the machine's byte order, and the port, in hex."""
    packed = ipaddress.ip_address(host.partition("%")[0]).packed
    words = [int.from_bytes(packed[at : at + 4], sys.byteorder) for at in range(0, len(packed), 4)]
    return "".join(f"{word:08X}" for word in words) + f":{port:04X}"
