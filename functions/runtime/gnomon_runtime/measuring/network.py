"""What it costs to hand tensors to a Shadow on another node, by their size, as far as one machine can say: TCP over loopback.

Order: `sizes_bytes`, `repeats`, `cpus` (the first sends, the last receives). Answer, once: `sizes_bytes`, and `seconds` and
`ranges_s` of each, one way: the rows are copied into the sender's buffer, message and rows go over a stream as a pair's do, the
other side wakes and has them in its own buffer. There is no wire in it: a lower bound for any network, and what an operator's own
figures of a network are added to.
"""

from __future__ import annotations

import os
import select
import socket
import struct
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

import torch
from torch import Tensor

from gnomon_core.shared_memory import aligned
from gnomon_runtime.instance import pin
from gnomon_runtime.measuring.statistics import median_and_range
from gnomon_runtime.pair.buffers import OwnBuffer
from gnomon_runtime.pair.headers import Kind, Message
from gnomon_runtime.pair.stream import Incoming, Outgoing, prepare

_STAMP = struct.Struct("d")
_PAUSE_S = 0.002
"""Between hand-overs, so that the receiver sleeps when one comes, as a Shadow does."""


def measure_network(order: Mapping[str, Any], say: Callable[[dict[str, Any]], None]) -> None:
    """Hand tensors of each size to a fork, going round."""
    sizes = [int(size) for size in order["sizes_bytes"]]
    cpus = list(order["cpus"])
    with socket.create_server(("127.0.0.1", 0)) as listener:
        mine = socket.create_connection(listener.getsockname())
        theirs, _ = listener.accept()
    stamps, stamp = os.pipe()
    child = os.fork()
    if child == 0:
        mine.close()
        _receive(theirs, stamp, aligned(max(sizes)), cpus[-1:])
    theirs.close()
    os.close(stamp)
    pin(tuple(cpus[:1]))
    torch.set_num_threads(1)
    prepare(mine)
    buffer = OwnBuffer(aligned(max(sizes)))
    buffer.prepare(max(sizes))
    rows = torch.randint(0, 255, (1, max(sizes)), dtype=torch.uint8)
    _hand_over(mine, buffer, rows, stamps)
    repeats = [[_hand_over(mine, buffer, rows[:, :size], stamps) for size in sizes] for _ in range(int(order["repeats"]))]
    mine.close()
    os.close(stamps)
    os.waitpid(child, 0)
    found = [median_and_range(seconds) for seconds in zip(*repeats, strict=True)]
    say({"sizes_bytes": sizes, "seconds": [seconds for seconds, _ in found], "ranges_s": [range_s for _, range_s in found]})


def _hand_over(connection: socket.socket, buffer: OwnBuffer, rows: Tensor, stamps: int) -> float:
    time.sleep(_PAUSE_S)
    began_s = time.perf_counter()
    written = buffer.write([rows])
    assert written is not None, "the buffer was made for the largest"
    outgoing = Outgoing(Message(Kind.COMPUTE, 1, 0, 1, 1, written), buffer)
    poll = select.poll()
    while not outgoing.push(connection):
        poll.register(connection, select.POLLOUT)
        poll.poll()
    ended_s: float = _STAMP.unpack(os.read(stamps, _STAMP.size))[0]
    return ended_s - began_s


def _receive(connection: socket.socket, stamp: int, size_bytes: int, cpus: Sequence[int]) -> NoReturn:
    pin(tuple(cpus))
    torch.set_num_threads(1)
    prepare(connection)
    buffer = OwnBuffer(size_bytes)
    buffer.prepare(size_bytes)
    incoming, poll = Incoming(buffer), select.poll()
    poll.register(connection, select.POLLIN)
    try:
        while True:
            if incoming.take(connection) is not None:
                os.write(stamp, _STAMP.pack(time.perf_counter()))
            else:
                poll.poll()
    finally:
        os._exit(0)
