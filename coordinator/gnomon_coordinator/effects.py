"""Effects: the outputs of the node's state machine, as values that the server executes in order."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias


class Descriptors:
    """File descriptors for a Shadow: its order and its log's pipe until it has registered, or the connection of its Body."""

    def __init__(self, fds: tuple[int, ...]) -> None:
        self.fds = fds

    def close(self) -> None:
        """Close the descriptors. May be called again."""
        fds, self.fds = self.fds, ()
        for fd in fds:
            os.close(fd)


@dataclass(frozen=True, slots=True)
class Send:
    """Send a message to an instance, with copies of the descriptors if there are any."""

    id: str
    message: Mapping[str, Any]
    descriptors: Descriptors | None = None


@dataclass(frozen=True, slots=True)
class Connect:
    """Make a pair's data socket and two buffers of these sizes in bytes, and send them to both sides with these messages."""

    body: str
    shadow: str
    pair: Mapping[str, Any]
    join: Mapping[str, Any]
    to_bytes: int
    from_bytes: int


@dataclass(frozen=True, slots=True)
class Fork:
    """Ask the supervisor for an empty container."""

    id: str


@dataclass(frozen=True, slots=True)
class Assign:
    """Turn the container into this Shadow, in these control groups."""

    container: str
    shadow: str
    join: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Kill:
    """Kill a process at once."""

    id: str


@dataclass(frozen=True, slots=True)
class Close:
    """Close the link to an instance."""

    id: str


@dataclass(frozen=True, slots=True)
class Notify:
    """Send an event to the platform."""

    message: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class LogError:
    """Write an error of this coordinator to the platform's log."""

    text: str


Effect: TypeAlias = Send | Connect | Fork | Assign | Kill | Close | Notify | LogError
