"""The shared memory of one pair: a data socket and two buffers, with one writer each."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from gnomon_core import packets, shared_memory


@contextmanager
def hand_over(to_bytes: int, from_bytes: int) -> Iterator[tuple[list[int], list[int]]]:
    """What the Body and what the Shadow gets: its end of the data socket, the buffer to the Shadow, the buffer from it.

    Our own descriptors are closed on the way out, whatever happens: from then on the pair alone keeps the memory alive.

    Raises:
        OSError: the kernel has no memory or no descriptor left.

    """
    with ExitStack() as ours:
        for_body, for_shadow = (ours.enter_context(end) for end in packets.socket_pair())

        def keep(descriptor: int) -> int:
            ours.callback(os.close, descriptor)
            return descriptor

        there, back = (keep(shared_memory.make(name, size)) for name, size in (("there", to_bytes), ("back", from_bytes)))
        read_there, read_back = (keep(shared_memory.reader(descriptor)) for descriptor in (there, back))
        yield [for_body.fileno(), there, read_back], [for_shadow.fileno(), read_there, back]
