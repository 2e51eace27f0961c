"""How long weights take to load: those of each block, and those of growing parts of the model.

Order: `program`, `weights` and `layers` (paths), `mode` ("shared" or "private"), `sets` of block numbers, `repeats`.
Answer, once: `seconds` and `ranges_s` of each set.

Each loading is that of a fresh fork, since a process that has mapped a page before has it in its page table. It is what a Shadow
does: `shared` maps the file and makes the pages of its blocks resident, from a page cache that is warm, as on a node that has
served the model; `private` reads them from there into memory of its own. What it costs to get the file to the node at all is the
storage's bandwidth and not this machine's.
"""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from gnomon_core.program import Weight
from gnomon_core.program_reader import parse_program
from gnomon_runtime.engine.block_weights import BlockWeights
from gnomon_runtime.engine.weights import WeightMode
from gnomon_runtime.measuring.latency import read_layers
from gnomon_runtime.measuring.statistics import median_and_range

_SECONDS = struct.Struct("d")


def measure_loading(order: Mapping[str, Any], say: Callable[[dict[str, Any]], None]) -> None:
    """Measure each set, going round so that a disturbance hits one repeat of many sets and not all repeats of one."""
    path, mode = Path(order["weights"]), order["mode"]
    expected = parse_program(Path(order["program"]).read_bytes()).weights
    layers = read_layers(Path(order["layers"]))
    sets = [layers.weights(numbers) for numbers in order["sets"]]
    _load_s(path, expected, mode, expected)
    repeats = [[_in_a_fork(path, expected, mode, names) for names in sets] for _ in range(int(order["repeats"]))]
    found = [median_and_range(seconds) for seconds in zip(*repeats, strict=True)]
    say({"seconds": [seconds for seconds, _ in found], "ranges_s": [range_s for _, range_s in found]})


def _load_s(path: Path, expected: Mapping[str, Weight], mode: WeightMode, names: Iterable[str]) -> float:
    began_s = time.perf_counter()
    BlockWeights(path, expected, mode).hold(names)
    return time.perf_counter() - began_s


def _in_a_fork(path: Path, expected: Mapping[str, Weight], mode: WeightMode, names: Iterable[str]) -> float:
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(write, _SECONDS.pack(_load_s(path, expected, mode, names)))
        os._exit(0)
    os.close(write)
    answer = os.read(read, _SECONDS.size)
    os.close(read)
    os.waitpid(child, 0)
    if len(answer) != _SECONDS.size:
        raise RuntimeError("a loading process ended early")
    seconds: float = _SECONDS.unpack(answer)[0]
    return seconds
