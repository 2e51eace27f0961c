"""What an instance does with a batch: the one interface between the process that holds a function and the function.

The same application answers the Unix socket, `POST /gnomon/batch` and `/` under gunicorn, and an Invoke on Lambda.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

from gnomon_core.wire import Frame


@dataclass(frozen=True, slots=True)
class Launch:
    """Everything an instance must know to begin.

    `kind` is "model" (a layer program), "handler" (a user's handler.py) or "process" (a process per request, as the classic
    watchdog runs it); `options` holds what only that kind needs, listed where its application is defined.
    `environment` is the whole environment of the function, nothing is inherited.
    """

    kind: str
    function: str
    instance_id: str
    cores: int = 1
    max_batch: int = 1
    environment: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(text: str | bytes) -> Launch:
        return Launch(**json.loads(text))


class Application(Protocol):
    """A loaded function. Used by one thread at a time."""

    def hello(self) -> Mapping[str, Any]:
        """What it serves, for the head of the HELLO frame."""
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
