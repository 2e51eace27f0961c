"""What the coordination wants done: values, in order, that the server carries out."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias


class Papers:
    """Descriptors for a Shadow: its order and the pipe of its log, until it has registered, or the connection of its Body."""

    def __init__(self, descriptors: tuple[int, ...]) -> None:
        self.descriptors = descriptors

    def close(self) -> None:
        """Let go of them. May be called again."""
        descriptors, self.descriptors = self.descriptors, ()
        for descriptor in descriptors:
            os.close(descriptor)


@dataclass(frozen=True, slots=True)
class Send:
    """A message to an instance, with copies of the papers where there are any."""

    id: str
    message: Mapping[str, Any]
    papers: Papers | None = None


@dataclass(frozen=True, slots=True)
class Connect:
    """Make a data socket and two buffers of these sizes, and give them to both sides with these messages."""

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
    """The container is that Shadow from now on, a member of these control groups."""

    container: str
    shadow: str
    join: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Kill:
    """End a process at once."""

    id: str


@dataclass(frozen=True, slots=True)
class Close:
    """Hear nothing more from an instance, and say nothing more to it."""

    id: str


@dataclass(frozen=True, slots=True)
class Tell:
    """An event for the platform."""

    message: Mapping[str, Any]


Effect: TypeAlias = Send | Connect | Fork | Assign | Kill | Close | Tell
