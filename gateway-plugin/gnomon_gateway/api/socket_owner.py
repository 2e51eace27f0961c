"""The owner of a TCP connection's other end on this machine, by the kernel: its user, and whether a user's process holds it.

The kernel answers for one connection by netlink (`sock_diag(7)`, `linux/inet_diag.h`): the user id and inode of the client's
socket. The processes that hold the inode are found in /proc.
"""

from __future__ import annotations

import ipaddress
import os
import socket
import struct
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

_NETLINK_SOCK_DIAG = 4
_SOCK_DIAG_BY_FAMILY = 20
_REQUEST = 1
_ALL_STATES = 0xFFFFFFFF
_NO_COOKIE = 0xFFFFFFFF
_HEADER = struct.Struct("=IHHII")  # struct nlmsghdr
_WANTED = struct.Struct("=BBBxI")  # struct inet_diag_req_v2, before its inet_diag_sockid
_PORTS = struct.Struct("!HH")
_REST = struct.Struct("=III")  # interface and cookie of inet_diag_sockid
_FOUND = struct.Struct("=BBBB")  # struct inet_diag_msg, before its inet_diag_sockid
_OWNER = struct.Struct("=II")  # its idiag_uid and idiag_inode
_PORTS_AT = _HEADER.size + _FOUND.size
_ADDRESSES_AT = _PORTS_AT + _PORTS.size
_OWNER_AT = _ADDRESSES_AT + 32 + _REST.size + 12
_ANSWER_BYTES = 4096
_ANSWER_S = 1.0
_CONNECTED = frozenset({1, 4, 5, 8})
"""ESTABLISHED, FIN_WAIT1, FIN_WAIT2 and CLOSE_WAIT: a client may have closed its sending half."""

Address = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Owner:
    """The user id that made a socket, and the inode by which the processes that hold it are found."""

    uid: int
    inode: int


def owner_of(client: Address, server: Address) -> Owner | None:
    """The owner of the client's socket; None where the kernel shows none.

    `client` and `server` are the two ends as the server sees them. A client on an IPv6 socket may have the address
    `::ffff:127.0.0.1` for itself and 127.0.0.1 for the server: the kernel keeps both in one table. A socket that its process has
    closed has no owner: the kernel shows uid 0 and inode 0 for it, which must not be taken for root.
    """
    try:
        ends = [ipaddress.ip_address(host.partition("%")[0]) for host in (client[0], server[0])]
        answer = _ask(_question(ends, client[1], server[1]))
    except (OSError, ValueError, struct.error):
        return None
    if len(answer) < _OWNER_AT + _OWNER.size or _HEADER.unpack_from(answer)[1] != _SOCK_DIAG_BY_FAMILY:
        return None
    _, state, _, _ = _FOUND.unpack_from(answer, _HEADER.size)
    uid, inode = _OWNER.unpack_from(answer, _OWNER_AT)
    # If no connection matches, the kernel returns a listener on the client's port, which is an unrelated socket.
    fits = state in _CONNECTED and _PORTS.unpack_from(answer, _PORTS_AT) == (client[1], server[1])
    return Owner(uid, inode) if fits and inode else None


def _question(ends: list[ipaddress.IPv4Address | ipaddress.IPv6Address], client_port: int, server_port: int) -> bytes:
    plain = [end.ipv4_mapped or end if isinstance(end, ipaddress.IPv6Address) else end for end in ends]
    family = socket.AF_INET6 if any(end.version == 6 for end in plain) else socket.AF_INET  # noqa: PLR2004 - IP's version
    addresses = b"".join(end.packed.ljust(16, b"\0") for end in plain)
    socket_id = _PORTS.pack(client_port, server_port) + addresses + _REST.pack(0, _NO_COOKIE, _NO_COOKIE)
    request = _WANTED.pack(family, socket.IPPROTO_TCP, 0, _ALL_STATES) + socket_id
    return _HEADER.pack(_HEADER.size + len(request), _SOCK_DIAG_BY_FAMILY, _REQUEST, 1, 0) + request


def _ask(question: bytes) -> bytes:
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _NETLINK_SOCK_DIAG) as diagnosis:
        # Netlink is synchronous here: the reply is queued when sendto returns.
        diagnosis.settimeout(_ANSWER_S)
        diagnosis.sendto(question, (0, 0))
        return diagnosis.recv(_ANSWER_BYTES)


def is_held_by_a_user(inode: int) -> bool:
    """Return whether a process of the server's user holds this socket that is neither a function nor a build.

    Functions and builds are descendants of this process (the supervisor adopts their orphans), and run in a user namespace of
    their own, which no process can leave, if the machine allows one. A process whose /proc entry is unreadable does not count.
    Blocks while it reads /proc.
    """
    own, namespace = os.getpid(), os.stat("/proc/self/ns/user").st_ino  # noqa: PTH116 - a magic link, as below
    for pid in sorted((int(name) for name in os.listdir("/proc") if name.isdigit()), reverse=True):  # noqa: PTH208 - quicker
        with suppress(OSError):
            # The descriptor keeps referring to this process, even if its pid is reused meanwhile.
            folder = os.open(f"/proc/{pid}", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                if os.fstat(folder).st_uid != os.geteuid() and pid != own:
                    continue
                if f"socket:[{inode}]" not in _descriptors(folder):
                    continue
                is_ours = pid != own and own in _ancestors(pid)
                if not is_ours and os.stat("ns/user", dir_fd=folder).st_ino == namespace:
                    return True
            finally:
                os.close(folder)
    return False


def _descriptors(process: int) -> set[str]:
    """The link targets of a process's file descriptors; `process` is a descriptor of its directory in /proc."""
    folder = os.open("fd", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=process)
    found = set()
    try:
        for name in os.listdir(folder):  # noqa: PTH208 - of a descriptor
            with suppress(FileNotFoundError):  # closed meanwhile
                found.add(os.readlink(name, dir_fd=folder))
    finally:
        os.close(folder)
    return found


def _ancestors(pid: int) -> Iterator[int]:
    """The parents of a process, nearest first. OSError where one of them is hidden from us."""
    while pid > 1:
        with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123 - quicker
            # The process's name, in parentheses, may hold any character, even parentheses.
            pid = int(file.read().rpartition(b")")[2].split()[1])
        yield pid
