"""Small JSON messages, with file descriptors, between processes of one machine.

A SOCK_SEQPACKET pair keeps messages apart and tells when the other side has gone, so a message is one system call each way. What
is large or secret travels as an anonymous file (`sealed_file`) whose descriptor the message carries.
"""

from __future__ import annotations

import array
import fcntl
import json
import os
import socket
from collections.abc import Sequence
from typing import Any

MAX_PACKET_BYTES = 64 * 1024
MAX_DESCRIPTORS = 8


class PeerGoneError(ConnectionError):
    """The other side has closed the socket."""


class PacketError(ValueError):
    """The received packet is not a message. It has been taken from the socket, and its descriptors are closed."""


def socket_pair() -> tuple[socket.socket, socket.socket]:
    """Two connected ends."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def send(connection: socket.socket, message: dict[str, Any], descriptors: Sequence[int] = ()) -> None:
    """Send one message.

    Raises:
        PeerGoneError: the other side has closed.
        BlockingIOError: the socket is non-blocking and full.

    """
    data = json.dumps(message).encode()
    if len(data) > MAX_PACKET_BYTES:
        raise ValueError(f"a message of {len(data)} bytes; at most {MAX_PACKET_BYTES} fit")
    ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))] if descriptors else []
    try:
        connection.sendmsg([data], ancillary)
    except (BrokenPipeError, ConnectionResetError) as error:
        raise PeerGoneError from error


def receive(connection: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """Receive one message and its descriptors; the caller owns them, and programs that it starts do not inherit them.

    Raises:
        PeerGoneError: the other side has closed.
        BlockingIOError: the socket is non-blocking and empty.
        PacketError: it is not a JSON object, too long, or has too many descriptors.

    """
    # Room for one control message: the kernel closes descriptors that do not fit, and sets MSG_CTRUNC (recvmsg(2), cmsg(3)).
    space = socket.CMSG_SPACE(MAX_DESCRIPTORS * array.array("i").itemsize)
    try:
        data, ancillary, flags, _ = connection.recvmsg(MAX_PACKET_BYTES, space, socket.MSG_CMSG_CLOEXEC)
    except ConnectionResetError:
        # The other side closed with our data unread. The kernel reports that once, before the data that is still to be read.
        data, ancillary, flags, _ = connection.recvmsg(MAX_PACKET_BYTES, space, socket.MSG_CMSG_CLOEXEC)
    descriptors = array.array("i")
    for level, kind, payload in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            descriptors.frombytes(payload[: len(payload) - len(payload) % descriptors.itemsize])
    try:
        return _message(data, flags), list(descriptors)
    except (PeerGoneError, PacketError):
        for descriptor in descriptors:
            os.close(descriptor)
        raise


def _message(data: bytes, flags: int) -> dict[str, Any]:
    if not data:
        # On SOCK_SEQPACKET a packet of no bytes looks like the end of file. No message is empty.
        raise PeerGoneError
    if flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
        raise PacketError("it is too long or has too many descriptors")
    try:
        message = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise PacketError(f"it is not JSON: {type(error).__name__}") from None
    if not isinstance(message, dict):
        raise PacketError("it is not a JSON object")
    return message


def sealed_file(name: str, content: bytes) -> int:
    """An anonymous, sealed (immutable) file with this content. The caller closes the descriptor.

    Raises:
        OSError: there is no memory for it, or no descriptor.

    """
    descriptor = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        # A duplicate, because closing the file object closes its descriptor.
        with os.fdopen(os.dup(descriptor), "wb") as file:
            file.write(content)
        seals = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def read_file(descriptor: int) -> bytes:
    """The content of an anonymous file."""
    # Not `read`: every process that has the descriptor shares one offset (open(2)).
    return os.pread(descriptor, os.fstat(descriptor).st_size, 0)
