"""The platform's client of a node's coordinator: requests for Shadows, and events about them.

The socket outlives the coordinators at its other end: the supervisor hands it to each of them. A new coordinator announces that
it is ready and with which epoch; requests that were under way are then sent again. A coordinator that does not answer for
`FROZEN_S` is frozen: the client asks the supervisor to replace it. The client neither waits nor decides.

    to it      {"do": "create", "zygote", …}   {"do": "change", …}         {"do": "destroy", "shadow"}
               {"do": "pool", "size", "most", "zygote"}    {"do": "ping", "number"}   {"do": "table"}
               {"do": "join", "shadow"} with the connection of its Body, which is on another node
    from it    {"event": "ready", "epoch"}   {"event": "registered", "shadow", "resident_bytes", "load_ms"}
               {"event": "paired", "shadow", "body", "blocks", "split"}   {"event": "unpaired", "shadow", "body", "reason"}
               {"event": "ending", "shadow", "reason"}: its process ends; the supervisor says when it has
               {"event": "failed", "shadow", "reason"}: it never had one
               {"event": "pool", "containers"}: it keeps so many from now on
               {"event": "pong", "number"}                 {"event": "table", "epoch", "rows"}
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gnomon_core import packets
from gnomon_core.coordination import fitting
from gnomon_core.packet_link import PacketLink

PING_S = 1.0
FROZEN_S = 5.0
OPTIONS = ("-I", "-m", "gnomon_coordinator")

_LOG = logging.getLogger(__name__)


class CoordinatorClient:
    """`send_supervisor` reaches the supervisor, which starts coordinators in this environment; `on_event` gets their events.

    Their epochs begin after `epoch`, the last one that any of the node's instances has seen. `python` is the interpreter of the
    supervisor, where that is in another container.
    """

    def __init__(
        self,
        send_supervisor: Callable[..., None],
        on_event: Callable[[Mapping[str, Any]], None],
        environment: Mapping[str, str],
        epoch: int = 0,
        python: str = sys.executable,
    ) -> None:
        self._send_supervisor = send_supervisor
        self._on_event = on_event
        self._loop = asyncio.get_running_loop()
        ours, theirs = packets.socket_pair()
        self.epoch = 0
        """The epoch of the coordinator that was ready last; 0 before the first."""
        self._ping = 0
        self._unanswered_since_s: float | None = None
        self._timer = self._loop.call_later(PING_S, self._watch)
        self._link = PacketLink(ours, self._on_message, self.close)
        request = {"do": "coordinator", "command": [python, *OPTIONS], "environment": dict(environment), "after": epoch}
        send_supervisor(request, [theirs.detach()])

    def send(self, message: Mapping[str, Any], descriptors: Sequence[int] = ()) -> None:
        """Send a request. Copies of the descriptors travel with it."""
        self._link.send(fitting(dict(message)), [os.dup(descriptor) for descriptor in descriptors])

    def close(self) -> None:
        """Release the socket. May be called again."""
        self._timer.cancel()
        self._link.close()

    def _on_message(self, event: dict[str, Any]) -> None:
        if event["event"] == "pong":
            self._unanswered_since_s = None
            return
        if event["event"] == "ready":
            self.epoch = int(event["epoch"])
            self._unanswered_since_s = None
        self._on_event(event)

    def _watch(self) -> None:
        self._timer = self._loop.call_later(PING_S, self._watch)
        if self._unanswered_since_s is not None:
            if self.epoch and self._loop.time() - self._unanswered_since_s > FROZEN_S:
                _LOG.error("the coordinator has not answered for %g s: asking the supervisor to replace it", FROZEN_S)
                self._unanswered_since_s = None
                self._send_supervisor({"do": "replace_coordinator", "epoch": self.epoch})
            return
        self._ping += 1
        self._unanswered_since_s = self._loop.time()
        self.send({"do": "ping", "number": self._ping})
