"""Memory of four Bodies of one model that share its weights.

    python -m benchmarks.shadow.memory [--quick]

Read from the kernel's own account of each process: of the mapping of the weight file the proportional share, which counts a page
that four processes have by a quarter in each; and the private anonymous memory, idle after a batch of one and after batches of 8.
"""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

from benchmarks.programs import Pace, asked, ended_well
from benchmarks.report import Figure, measured, write
from benchmarks.shadow.models import MEGABYTE, StoredModel, counted, samples_of, stored
from benchmarks.shadow.node import Node, Serving, started
from gnomon_runtime.measuring.measurements import held_bytes

MODELS = ("resnet50", "inception_v3", "vgg16")
INSTANCES = 4
GOAL = 1.3
BATCHES = 2
"""Of 8, until the allocator has what it needs."""
_MAPPING = re.compile(r"[0-9a-f]+-[0-9a-f]+ \S+ \S+ \S+ (\d+) *.*")


def main(pace: Pace) -> None:
    figures: list[Figure] = []
    for name in MODELS[: 1 if pace.quick else None]:
        figures += asyncio.run(measure(stored(name)))
    write("shadow_memory", figures, repeats=INSTANCES, packages=("gnomon", "torch"), folder=pace.results)


async def measure(model: StoredModel) -> list[Figure]:
    """Of four Bodies beside each other."""
    async with started(cores=INSTANCES) as node:
        spec = await node.function(model, "memory")
        bodies = [await node.serving(spec, model, 1) for _ in range(INSTANCES)]
        idle_mb = [_private_mb(node, body, model) for body in bodies]
        for body in bodies:
            body.take(samples_of(model, 8))
            for _ in range(BATCHES):
                await body.ask()
        busy_mb = [_private_mb(node, body, model) for body in bodies]
        mapped_bytes = sum(mapped_share_bytes(_smaps(node, body), model.entry.weights) for body in bodies)
    name, file_bytes = model.entry.name, model.entry.weights.stat().st_size
    detail = f"{mapped_bytes / MEGABYTE:.1f} MB of a file of {file_bytes / MEGABYTE:.1f} MB, {INSTANCES} Bodies"
    return [
        counted(f"{name}: weight mappings ÷ file", mapped_bytes / file_bytes, "", at_most=GOAL, detail=detail),
        measured(f"{name}: private memory of a Body, idle", idle_mb, "MB", detail="without the weights"),
        measured(f"{name}: private memory of a Body after b = 8", busy_mb, "MB", detail="without the weights"),
    ]


def mapped_share_bytes(smaps: str, file: Path) -> int:
    """The proportional share of a file's mappings in the text of /proc/PID/smaps."""
    inode = file.stat().st_ino
    kib, counted_now = 0, False
    for line in smaps.splitlines():
        mapping = _MAPPING.fullmatch(line)
        if mapping:
            counted_now = int(mapping.group(1)) == inode
        elif counted_now and line.startswith("Pss:"):
            kib += int(line.split()[1])
    return 1024 * kib


def _private_mb(node: Node, body: Serving, model: StoredModel) -> float:
    private_bytes, _ = held_bytes(model.entry.weights, _smaps(node, body))
    return private_bytes / MEGABYTE


def _smaps(node: Node, body: Serving) -> str:
    pid = node.pid(body.instance.id)
    return Path(f"/proc/{pid}/smaps").read_text(encoding="utf-8", errors="replace")


if __name__ == "__main__":
    ended_well(lambda: main(asked(__doc__ or "")))
