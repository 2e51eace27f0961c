"""The interface between the process that holds a function and the function, and the applications that implement it.

The same application answers the Unix socket, `POST /gnomon/batch` and `/` under gunicorn, and an Invoke on Lambda. The module of
an application is imported when the first instance of its kind starts, so that a handler's own environment needs neither torch nor
anything that another kind uses. An image gets no launch document: its environment variables describe the function.
"""

from __future__ import annotations

import importlib
import os
import socket
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol, TypeVar, cast, runtime_checkable

from gnomon_core.launch import Launch
from gnomon_core.wire import Frame

__all__ = ["Application", "Launch"]


class Application(Protocol):
    """A loaded function. Used by one thread at a time, unless its `hello` names a `concurrency` above 1."""

    def hello(self) -> Mapping[str, Any]:
        """The properties of the function, for the head of the HELLO frame.

        `concurrency`, 1 where it is left out, is how many threads may call `run` at once.
        """
        ...

    def run(self, batch: Frame) -> Frame | Iterator[Frame]:
        """Answer a BATCH frame.

        Returns a RESULT frame with one member per member, in order; or, for a batch of one whose answer streams, an iterator of
        STREAM_START, any number of STREAM_DATA, and STREAM_END. It never raises: an error is a member's code and body.
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
        """Accept the upgrade of a connection, and serve it until the Body has disconnected or `ending()` is true.

        `turn` runs something in the thread that computes, when it is its turn.
        """
        ...


class Channel(Protocol):
    """The part of a batch channel that is needed to wait for it."""

    @property
    def holds_more(self) -> bool:
        """True if a frame, or its beginning, has been received already."""
        ...

    def fileno(self) -> int: ...


class IdleWork(Protocol):
    """Work that an instance does while it is idle and between batches."""

    def attend(self, channel: Channel) -> None:
        """Return when the channel has a frame, or has ended."""
        ...


KINDS = {
    "model": "gnomon_runtime.body:ModelApplication",
    "handler": "gnomon_runtime.handler:load_application",
    "process": "gnomon_runtime.process:ProcessApplication",
    "redirect": "gnomon_runtime.process:RedirectApplication",
}


def load_function(launch: Launch) -> Application:
    """The application of a launch, ready to answer.

    Raises:
        ValueError: the kind is unknown.
        Exception: whatever the function's own code raises while it is loaded.

    """
    if launch.kind not in KINDS:
        raise ValueError(f"{launch.kind!r} is no kind of function; known: {', '.join(KINDS)}")
    module, _, name = KINDS[launch.kind].partition(":")
    return cast("Application", getattr(importlib.import_module(module), name)(launch))


def launch_from(environment: Mapping[str, str]) -> Launch:
    """The launch of an image: the handler in ./function, as environment variables describe it."""
    cores = int(environment.get("GNOMON_CORES") or len(os.sched_getaffinity(0)))
    name = environment.get("GNOMON_FUNCTION") or "function"
    folder = environment.get("GNOMON_HANDLER_FOLDER") or "function"
    return Launch(
        "handler",
        name,
        environment.get("HOSTNAME") or name,
        cores,
        int(environment.get("GNOMON_MAX_BATCH") or 64),
        dict(environment),
        {"folder": str(Path(folder).resolve())},
        int(environment.get("GNOMON_CONCURRENCY") or 0) or None,
    )
