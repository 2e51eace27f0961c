"""What it costs to hand tensors over, by their size: through shared memory that both sides keep.

Order: `sizes_bytes`, `repeats`, `cpus` (the first sends, the last receives). Answer, once: `sizes_bytes`, and `seconds` and
`ranges_s` of each, one way: the rows are copied into a buffer as a pair has it, a header goes over a socket, the other side wakes
and copies the rows out. The buffer is made and touched once, as a pair's is.
"""

from __future__ import annotations

import mmap
import os
import socket
import struct
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

import torch
from torch import Tensor

from gnomon_core import packets, shared_memory
from gnomon_runtime.instance import pin
from gnomon_runtime.measuring.statistics import median_and_range

_HEADER = struct.Struct("q")
_STAMP = struct.Struct("d")
_PAUSE_S = 0.002
"""Between hand-overs, so that the receiver sleeps when the header comes, as a Shadow does."""


def measure_transfer(order: Mapping[str, Any], say: Callable[[dict[str, Any]], None]) -> None:
    """Hand tensors of each size to a fork, going round."""
    sizes = [int(size) for size in order["sizes_bytes"]]
    cpus = list(order["cpus"])
    descriptor = shared_memory.make("gnomon-transfer", max(sizes))
    mine, theirs = packets.socket_pair()
    child = os.fork()
    if child == 0:
        mine.close()
        _receive(theirs, descriptor, cpus[-1:])
    theirs.close()
    pin(tuple(cpus[:1]))
    torch.set_num_threads(1)
    shared = torch.frombuffer(mmap.mmap(descriptor, max(sizes)), dtype=torch.uint8)
    rows = torch.randint(0, 255, (max(sizes),), dtype=torch.uint8)
    _hand_over(mine, shared, rows)
    repeats = [[_hand_over(mine, shared, rows[:size]) for size in sizes] for _ in range(int(order["repeats"]))]
    mine.close()
    os.waitpid(child, 0)
    found = [median_and_range(seconds) for seconds in zip(*repeats, strict=True)]
    say({"sizes_bytes": sizes, "seconds": [seconds for seconds, _ in found], "ranges_s": [range_s for _, range_s in found]})


def _hand_over(connection: socket.socket, shared: Tensor, rows: Tensor) -> float:
    time.sleep(_PAUSE_S)
    began_s = time.perf_counter()
    shared[: rows.numel()].copy_(rows)
    connection.send(_HEADER.pack(rows.numel()))
    ended_s: float = _STAMP.unpack(connection.recv(_STAMP.size))[0]
    return ended_s - began_s


def _receive(connection: socket.socket, descriptor: int, cpus: Sequence[int]) -> NoReturn:
    pin(tuple(cpus))
    torch.set_num_threads(1)
    size = os.fstat(descriptor).st_size
    shared = torch.frombuffer(mmap.mmap(descriptor, size), dtype=torch.uint8)
    rows = torch.empty(size, dtype=torch.uint8)
    while header := connection.recv(_HEADER.size):
        count: int = _HEADER.unpack(header)[0]
        rows[:count].copy_(shared[:count])
        connection.send(_STAMP.pack(time.perf_counter()))
    os._exit(0)
