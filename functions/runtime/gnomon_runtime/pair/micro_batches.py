"""A Shadow that is reached over its instance's HTTP port: the blocks that it holds, for a Body that is on another node.

It is an application like any other: the image's port, probes, token and drain are those of a Body's image. The Body upgrades a
connection (`gnomon_runtime.pair.remote_link`), and gets the same answers to the same messages as from a Shadow on its own node.
What comes is checked before it is computed, because the token may be known to more than one Body.

A Shadow works for one Body. A new connection closes the previous one, which either the same Body has lost without notice, or
belongs to a Body that has been replaced.

`Launch.options`: `program`, `weights` and `layers` (paths), `weight_mode`, and `blocks`, the numbers of those to hold.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias

import torch

from gnomon_core.errors import GnomonError
from gnomon_core.launch import Launch
from gnomon_core.shared_memory import buffer_sizes
from gnomon_core.wire import Frame, error_result
from gnomon_runtime.engine.torch_support import keep_freed_memory
from gnomon_runtime.pair.headers import Kind as Say
from gnomon_runtime.pair.headers import Message, NonsenseError
from gnomon_runtime.pair.remote_link import StreamLink
from gnomon_runtime.pair.shadow_model import compute_answer, hold_model

Turn: TypeAlias = Callable[[Callable[[], Message]], Message]
"""Runs something when it is its turn, in the one thread that computes."""
_LOOK_S = 0.25
"""Seconds between checks of an idle connection whether the instance ends."""


class BlocksApplication:
    """The blocks of a model that a Shadow holds, as an application. They are computed by one thread at a time."""

    def __init__(self, launch: Launch) -> None:
        keep_freed_memory()
        torch.set_num_threads(launch.cores)
        options = launch.options
        self._held = hold_model(options, launch.cores)
        self._held.hold(options["blocks"])
        # Large enough for any run of any blocks: pages that are never touched cost nothing.
        self._sizes = buffer_sizes(self._held.layers, launch.max_batch)
        self._lock = threading.Lock()
        self._current: socket.socket | None = None

    def hello(self) -> Mapping[str, Any]:
        return {"kind": "shadow", "blocks": list(self._held.blocks), "resident_bytes": self._held.resident_bytes}

    def resize(self, cores: int) -> None:
        self._held.resize(cores)

    def run(self, batch: Frame) -> Frame | Iterator[Frame]:
        """Refuse: a Shadow takes no requests."""
        text = "A Shadow computes layer blocks for its Body and takes no requests."
        return error_result(batch, GnomonError(415, "unsupported_media_type", text, "Ask the Body."))

    def serve_body(self, connection: socket.socket, turn: Turn, ending: Callable[[], bool]) -> None:
        """Accept the upgrade, and answer the Body at the other end until either side ends."""
        with self._lock:
            # The Body that came last wins: an earlier connection may be one whose end has not been noticed yet.
            if self._current is not None:
                _shut(self._current)
            self._current = connection
        try:
            link = StreamLink(connection, self._sizes)
            link.accept_upgrade()
            while not ending():
                if link.wait_readable(_LOOK_S):
                    self._answer(link, turn)
        except (OSError, NonsenseError):
            # The Body has disconnected or sent an invalid message. It computes alone, and may reconnect.
            pass
        finally:
            with self._lock:
                if self._current is connection:
                    self._current = None

    def _answer(self, link: StreamLink, turn: Turn) -> None:
        """Compute the newest of the waiting hand-overs: earlier ones were given up.

        Raises:
            OSError: the Body has disconnected, or stalls.
            NonsenseError: it sends an invalid message.

        """
        requests = [message for message in link.pending() if message.kind is Say.COMPUTE]
        if requests:
            link.send(turn(lambda: compute_answer(self._held, requests[-1], link.to, link.back)))


def _shut(connection: socket.socket) -> None:
    """Shut down a connection, which wakes the thread that serves it."""
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:
        # The connection has ended already.
        return
