"""One end of a socket to an instance, the supervisor or the platform: never blocks, never grows without bound.

What the other side does not take now waits in an outbox, with descriptors of its own; when there is no room left, the other side
is not listening, and the link is broken. How often an instance may speak is bounded as well: a flood would cost the Bodies their
cores.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from gnomon_core import packets

MAX_WAITING = 64
"""Messages. An instance that reads between two batches gets a handful for each change of its pair."""
BURST = 200
PER_SECOND = 50.0


class LinkBrokenError(ConnectionError):
    """The other side does not listen, or does not keep to the protocol."""


class LinkEndedError(LinkBrokenError):
    """The other side has closed its socket; most often because its process has ended."""


class Link:
    """`max_waiting` bounds the outbox, `bounded` how often the other side may speak: not where it is one of ours."""

    def __init__(self, connection: socket.socket, *, max_waiting: int = MAX_WAITING, bounded: bool = True) -> None:
        connection.setblocking(False)  # noqa: FBT003 - the signature is socket's
        self.socket = connection
        self._outbox: deque[tuple[dict[str, Any], list[int]]] = deque()
        self._max_waiting = max_waiting
        self._bounded = bounded
        self._allowance = float(BURST)
        self._counted_s = 0.0

    @property
    def wants_to_write(self) -> bool:
        return bool(self._outbox)

    def send(self, message: Mapping[str, Any], descriptors: Sequence[int] = ()) -> None:
        """Send, now or as soon as the other side takes it. The descriptors are copied.

        Raises:
            LinkBrokenError: the other side has gone, or the outbox is full.

        """
        if len(self._outbox) >= self._max_waiting:
            raise LinkBrokenError("it does not listen")
        self._outbox.append((dict(message), [os.dup(descriptor) for descriptor in descriptors]))
        self.flush()

    def flush(self) -> None:
        """Send what the other side takes.

        Raises:
            LinkBrokenError: it has gone.

        """
        while self._outbox:
            message, descriptors = self._outbox[0]
            try:
                packets.send(self.socket, message, descriptors)
            except BlockingIOError:
                return
            except packets.PeerGoneError:
                raise LinkEndedError("it has closed its socket") from None
            except (OSError, ValueError) as error:
                raise LinkBrokenError(f"nothing can be sent to it: {error}") from error
            self._outbox.popleft()
            _close(descriptors)

    def receive(self, now_s: float) -> tuple[dict[str, Any], list[int]] | None:
        """The next message and its descriptors, which are the caller's to close; None where there is none now.

        Raises:
            LinkBrokenError: the other side has gone, sent what is no message, or sends too many.

        """
        try:
            message, descriptors = packets.receive(self.socket)
        except BlockingIOError:
            return None
        except packets.PeerGoneError:
            raise LinkEndedError("it has closed its socket") from None
        except (packets.PacketError, OSError) as error:
            raise LinkBrokenError(str(error)) from None
        if self._bounded and not self._may_speak(now_s):
            _close(descriptors)
            raise LinkBrokenError("it talks too much")
        return message, descriptors

    def _may_speak(self, now_s: float) -> bool:
        self._allowance = min(float(BURST), self._allowance + (now_s - self._counted_s) * PER_SECOND)
        self._counted_s = now_s
        self._allowance -= 1
        return self._allowance >= 0

    def close(self) -> None:
        """Release everything. May be called again."""
        for _, descriptors in self._outbox:
            _close(descriptors)
        self._outbox.clear()
        self.socket.close()


def _close(descriptors: Sequence[int]) -> None:
    for descriptor in descriptors:
        with contextlib.suppress(OSError):
            os.close(descriptor)
