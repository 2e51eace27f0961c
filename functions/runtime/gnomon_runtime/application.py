"""What an instance does with a batch: the one interface between the process that holds a function and the function.

The same application answers the Unix socket, `POST /gnomon/batch` and `/` under gunicorn, and an Invoke on Lambda.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol, TypeVar, runtime_checkable

from gnomon_core.launch import Launch
from gnomon_core.wire import Frame

__all__ = ["Application", "Launch"]


class Application(Protocol):
    """A loaded function. Used by one thread at a time, unless its `hello` names a `concurrency` above 1."""

    def hello(self) -> Mapping[str, Any]:
        """What it serves, for the head of the HELLO frame.

        `concurrency`, 1 where it is left out, is how many threads may call `run` at once.
        """
        ...

    def run(self, batch: Frame) -> Frame | Iterator[Frame]:
        """Answer a BATCH frame.

        Returns a RESULT frame with one member per member, in order; or, for a batch of one whose answer streams, an iterator of
        STREAM_START, any number of STREAM_DATA, and STREAM_END. It raises nothing: an error is a member's code and body.
        """
        ...

    def resize(self, cores: int) -> None:
        """Use this many threads from the next batch on."""
        ...


Task = TypeVar("Task")


@runtime_checkable
class ForBodies(Protocol):
    """An application that also works for Bodies on other nodes."""

    def serve_body(
        self, connection: socket.socket, turn: Callable[[Callable[[], Task]], Task], ending: Callable[[], bool]
    ) -> None:
        """Agree to an upgrade of the connection, and serve it until the Body has gone or `ending()`.

        `turn` runs something in the thread that computes, when it is its turn.
        """
        ...


class Channel(Protocol):
    """The batch channel, as far as waiting for it goes."""

    @property
    def holds_more(self) -> bool:
        """Whether a frame, or its beginning, has been received already."""
        ...

    def fileno(self) -> int: ...


class Beside(Protocol):
    """What an instance does while it is idle and between batches."""

    def attend(self, channel: Channel) -> None:
        """Return when the channel has a frame, or has ended."""
        ...
