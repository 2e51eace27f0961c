"""From a Shadow to a Body: the rest of the weights comes piece by piece, between the micro-batches of the pair that goes on.

    promote ─▶ pieces … ─▶ "complete"      (its Body lets go)      serve ─▶ bind, warm up ─▶ HELLO on a batch channel of its own

What the Shadow holds already is not loaded again. A piece is small enough that a hand-over which arrives during one hardly waits:
2 MiB are copied in about 1 ms, and mapped in less. Binding the program and the first run take tens of milliseconds; they wait
until the Body computes alone. Until then nothing of the Shadow has changed, so that a promotion can be given up at any moment.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator

from gnomon_core import packets
from gnomon_core.launch import Order
from gnomon_runtime import instance
from gnomon_runtime.body import ModelApplication
from gnomon_runtime.pair.orders import Coordination
from gnomon_runtime.pair.shadow_model import HeldBlocks

PIECE_BYTES = 2 << 20
PAPERS = 2
"""The order of the Body that it is to be, and that Body's end of its batch channel."""


class Promotion:
    """One Shadow on its way. The papers are copied."""

    def __init__(self, held: HeldBlocks, papers: list[int]) -> None:
        self._held = held
        self._pieces: Iterator[int] | None = held.rest(PIECE_BYTES)
        self._loading_s = 0.0
        self._order: Order | None = None
        self._channel = -1
        self.take(papers)

    def take(self, papers: list[int]) -> None:
        """The papers, or the same again from another coordinator.

        Raises:
            ValueError: they are none.

        """
        if len(papers) != PAPERS:
            raise ValueError(f"{len(papers)} descriptors; an order and a channel are two")
        order = Order.from_json(packets.read_file(papers[0]))
        self.close()
        self._order, self._channel = order, os.dup(papers[1])

    @property
    def complete(self) -> bool:
        """Whether the whole model is resident."""
        return self._pieces is None

    @property
    def loading_ms(self) -> float:
        """What the pieces have taken so far, the micro-batches between them left out."""
        return round(1e3 * self._loading_s, 3)

    def step(self) -> bool:
        """Load a piece. Whether that was the last.

        Raises:
            GnomonError: 422 `invalid_program`: the weight file does not fit the program.
            OSError: it cannot be read.

        """
        if self._pieces is None:
            return False
        began_s = time.monotonic()
        ended = next(self._pieces, None) is None
        self._loading_s += time.monotonic() - began_s
        if ended:
            self._pieces = None
        return ended

    def live(self, coordination: Coordination) -> int:
        """Be that Body, until its channel ends. Returns the exit status."""
        assert self._order is not None
        instance.pin(self._order.cpus)
        connection, self._channel = socket.socket(fileno=self._channel), -1
        application = ModelApplication(self._order.launch, self._held.whole(self._loading_s))
        return instance.run(application, connection, application.listen(coordination))

    def close(self) -> None:
        """Let go of the channel. May be called again."""
        if self._channel >= 0:
            os.close(self._channel)
            self._channel = -1
