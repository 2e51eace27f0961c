"""What an instance holds besides its weights: memory that is its own, which a further instance takes again.

Order: `program`, `weights` (paths), `batch` (the largest). Answer, once: `idle_bytes` after loading and a batch of one,
`busy_bytes` after the largest batch (the allocator keeps what it once needed), and `proportional_bytes`, in which pages that are
shared with the process that was forked from count by their share. The weight file's mapping is in none of them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from gnomon_runtime.birth import use_cores
from gnomon_runtime.engine.allocator import keep_freed_memory
from gnomon_runtime.engine.timing import load_timed, touch

_MAPPING = re.compile(r"[0-9a-f]+-[0-9a-f]+ \S+ \S+ \S+ \d+ *(.*)")
_PRIVATE = ("Private_Clean", "Private_Dirty")


def measure_memory(order: Mapping[str, Any], say: Callable[[dict[str, Any]], None]) -> None:
    """Load in mode `shared` on one core, run, and read this process's mappings."""
    keep_freed_memory()
    use_cores(1)
    model = load_timed(Path(order["program"]), Path(order["weights"]))
    touch(model.weights.tensors)
    model.executor.run(model.inputs(1))
    idle_bytes, _ = held_bytes(Path(order["weights"]))
    for _ in range(2):
        model.executor.run(model.inputs(int(order["batch"])))
    busy_bytes, proportional_bytes = held_bytes(Path(order["weights"]))
    say({"idle_bytes": idle_bytes, "busy_bytes": busy_bytes, "proportional_bytes": proportional_bytes})


def held_bytes(weights: Path, smaps: str | None = None) -> tuple[int, int]:
    """Private and proportional bytes of this process, the weight file's mapping left out."""
    text = Path("/proc/self/smaps").read_text(encoding="utf-8", errors="replace") if smaps is None else smaps
    private_kib = proportional_kib = 0
    counted = True
    for line in text.splitlines():
        mapping = _MAPPING.fullmatch(line)
        if mapping:
            counted = mapping.group(1) != str(weights.resolve())
            continue
        name, _, value = line.partition(":")
        if counted and name in _PRIVATE:
            private_kib += int(value.split()[0])
        elif counted and name == "Pss":
            proportional_kib += int(value.split()[0])
    return 1024 * private_kib, 1024 * proportional_kib
