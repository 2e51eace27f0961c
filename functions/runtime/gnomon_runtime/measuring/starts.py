"""What lies between a decision and an instance besides loading its weights, where no platform was there to be asked.

Order: `program`, `weights` (paths), `cpus`, `repeats`. Answer, once: `shadow_s`, from an order to a process that was forked
before until the program is checked and bound, and `body_s`, until it has also answered a first batch of one. The loading of
weights is taken out of both: it is what `loading` measures.
"""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from gnomon_runtime.birth import use_cores
from gnomon_runtime.engine.allocator import keep_freed_memory
from gnomon_runtime.engine.timing import load_timed, touch
from gnomon_runtime.instance import pin
from gnomon_runtime.measuring.statistics import median_and_range

_SETTLE_S = 0.03
"""A fork is finished, its page tables copied, before its order comes: the pool refills between bursts."""
_STAMPS = struct.Struct("2d")


def measure_starts(order: Mapping[str, Any], say: Callable[[dict[str, Any]], None]) -> None:
    """Start so many instances and say the medians."""
    starts = [_start(order) for _ in range(int(order["repeats"]))]
    shadow_s, body_s = (median_and_range(seconds)[0] for seconds in zip(*starts, strict=True))
    say({"shadow_s": shadow_s, "body_s": body_s})


def _start(order: Mapping[str, Any]) -> tuple[float, float]:
    gate_read, gate_write = os.pipe()
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.read(gate_read, 1)
        os.write(write, _STAMPS.pack(*_become_an_instance(order)))
        os._exit(0)
    time.sleep(_SETTLE_S)
    began_s = time.perf_counter()
    os.write(gate_write, b"x")
    os.close(write)
    answer = os.read(read, _STAMPS.size)
    os.waitpid(child, 0)
    for descriptor in (gate_read, gate_write, read):
        os.close(descriptor)
    if len(answer) != _STAMPS.size:
        raise RuntimeError("a starting process ended early")
    shadow_at_s, body_at_s = _STAMPS.unpack(answer)
    return shadow_at_s - began_s, body_at_s - began_s


def _become_an_instance(order: Mapping[str, Any]) -> tuple[float, float]:
    """When it was bound and when it had answered, less the time it took to load. One clock serves all processes."""
    keep_freed_memory()
    pin(tuple(order["cpus"]))
    use_cores(1)
    model = load_timed(Path(order["program"]), Path(order["weights"]))
    bound_at_s = time.perf_counter() - model.weights.load_s
    began_s = time.perf_counter()
    touch(model.weights.tensors)
    touch_s = time.perf_counter() - began_s
    model.executor.run(model.inputs(1))
    return bound_at_s, time.perf_counter() - model.weights.load_s - touch_s
