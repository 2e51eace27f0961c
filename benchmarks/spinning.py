"""Measures the time of a batch by how long its threads may spin for each other, alone and beside a busy process.

    python -m benchmarks.spinning [--quick]

The threads of a batch wait for each other at the end of each operation. libgomp lets them spin for 3 ms by default before they
sleep. A thread that spins holds its CPU. If another process runs on the CPU of the thread that is waited for, the kernel finds
no idle CPU for that thread, and the batch waits at each operation until the other process has had its turn.

ResNet50 with random weights, batches of one sample, on one thread and on two. Each setting has a process of its own, and the
processes take turns. `GOMP_SPINCOUNT` is what instances have (`gnomon_core.packaging`), other numbers stand beside it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Self

from benchmarks.programs import Pace, start, step
from benchmarks.report import Figure, measured, write
from gnomon_core.packaging import FOR_LIBRARIES

SETTINGS: Mapping[str, Mapping[str, str]] = {
    "libgomp's own": {},
    "10000": {"GOMP_SPINCOUNT": "10000"},
    "3000": {"GOMP_SPINCOUNT": "3000"},
    "1000": {"GOMP_SPINCOUNT": "1000"},
    "none": {"OMP_WAIT_POLICY": "passive"},
}
THREADS = (1, 2)
BATCHES = 4
ROUNDS, QUICK_ROUNDS = 20, 2


class Worker:
    """A process with one setting."""

    def __init__(self, setting: Mapping[str, str]) -> None:
        environment = {**os.environ, **FOR_LIBRARIES}
        environment.pop("GOMP_SPINCOUNT", None)
        command = [sys.executable, "-m", "benchmarks.spinning", "--worker"]
        self.process = subprocess.Popen(
            command, env=environment | setting, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def batches_s(self, threads: int) -> list[float]:
        """Seconds of some batches on so many threads."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{threads}\n")
        self.process.stdin.flush()
        found: list[float] = json.loads(self.process.stdout.readline())
        return found

    def __enter__(self) -> Self:
        self.batches_s(max(THREADS))
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()


@contextmanager
def neighbour(*, busy: bool) -> Iterator[None]:
    """A process that never waits, for the length of a block."""
    if not busy:
        yield
        return
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        yield
    finally:
        process.kill()
        process.wait()


def main(pace: Pace) -> None:
    rounds = QUICK_ROUNDS if pace.quick else ROUNDS
    figures: list[Figure] = []
    with ExitStack() as stack:
        workers = {name: stack.enter_context(Worker(setting)) for name, setting in SETTINGS.items()}
        for where, busy in (("alone", False), ("beside a busy process", True)):
            step(where)
            found: dict[tuple[str, int], list[float]] = {}
            with neighbour(busy=busy):
                for _ in range(rounds):
                    for name, worker in workers.items():
                        for threads in THREADS:
                            found.setdefault((name, threads), []).extend(worker.batches_s(threads))
            for (name, threads), seconds in found.items():
                key = f"{where}, spin count {name}: {threads} {'thread' if threads == 1 else 'threads'}"
                figures.append(measured(key, [1e3 * second for second in sorted(seconds)], "ms"))
    write("spinning", figures, repeats=rounds * BATCHES, packages=("torch", "torchvision"), folder=pace.results)


def work() -> None:
    """Execute batches as the numbers of threads on standard input say."""
    # The parent needs neither.
    import torch
    import torchvision  # type: ignore[import-untyped]

    model, sample = torchvision.models.resnet50().eval(), torch.zeros(1, 3, 224, 224)

    def batch_s() -> float:
        begun_s = time.perf_counter()
        with torch.inference_mode():
            model(sample)
        return time.perf_counter() - begun_s

    for line in sys.stdin:
        torch.set_num_threads(int(line))
        batch_s()
        print(json.dumps([batch_s() for _ in range(BATCHES)]), flush=True)


if __name__ == "__main__":
    if sys.argv[1:] == ["--worker"]:
        work()
    else:
        start(main, __doc__)
