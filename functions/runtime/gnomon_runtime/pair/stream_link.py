"""A Shadow's end of the way to a Body on another node: the same as `Link`, over a TCP stream.

A Shadow has nothing to do but its Body's hand-overs. So nobody sends or receives beside it: what has begun to arrive is received
to its end, and an answer is sent to its end, unless the Body stalls.

    Body     ─ hand-over 6 ─ hand-over 7 ─▶      6 was given up: 7 has been received over its tensors
    Shadow                         ◀─ answer 7 ─
"""

from __future__ import annotations

import select
import socket

from gnomon_core import packets
from gnomon_runtime.pair.buffers import OwnBuffer
from gnomon_runtime.pair.headers import Message
from gnomon_runtime.pair.link import DataPath
from gnomon_runtime.pair.stream import STALL_S, SWITCHING, Incoming, Outgoing, prepare


class StreamLink(DataPath):
    """The data path to the Body at the other end of a connection. `sizes` are those of the buffers, there and back."""

    def __init__(self, connection: socket.socket, sizes: tuple[int, int]) -> None:
        super().__init__(OwnBuffer(sizes[0]), OwnBuffer(sizes[1]))
        self._connection = connection
        self._incoming = Incoming(self.to)
        self._poll = select.poll()

    def agree(self) -> None:
        """Answer the upgrade that the Body has asked for.

        Raises:
            OSError: the Body has gone, or does not read.

        """
        self._connection.settimeout(STALL_S)
        self._connection.sendall(SWITCHING)
        prepare(self._connection)

    def fileno(self) -> int:
        return self._connection.fileno()

    def foretell(self) -> None:
        """Nothing: on the way to another node 0.2 ms are little."""

    def comes(self, wait_s: float) -> bool:
        """Whether something has come, or the Body has gone, within so long."""
        return self._await(select.POLLIN, wait_s)

    def send(self, message: Message) -> bool:
        outgoing = Outgoing(message, self.back)
        while not outgoing.push(self._connection):
            if not self._await(select.POLLOUT, STALL_S):
                raise packets.PeerGoneError("the Body does not read")
        return True

    def close(self) -> None:
        self._connection.close()
        self.to.close()
        self.back.close()

    def _readable(self, wait_s: float) -> bool:
        return self.comes(wait_s)

    def _receive(self) -> Message | None:
        while (message := self._incoming.take(self._connection)) is None and self._incoming.begun:
            # It comes where the tensors of the one before it are, which must not be computed any more.
            if not self._await(select.POLLIN, STALL_S):
                raise packets.PeerGoneError("the Body stalls in the middle of a message")
        return message

    def _await(self, event: int, wait_s: float) -> bool:
        self._poll.register(self._connection, event)
        return bool(self._poll.poll(1e3 * max(0.0, wait_s)))
