"""What it costs to hand tensors over between two processes, each on its CPU: milliseconds a megabyte, each way.

    python -m benchmarks.shadow.hand_over [--quick]

The Profiler's own measurement (`gnomon_runtime.measuring.transfer`): rows are copied into a buffer as a pair has it, a header
goes over the socket, the other side wakes and copies the rows out. A pair reads the rows where they are, so it pays less.
There and back are the same two processes with their CPUs exchanged.
"""

from __future__ import annotations

from collections import defaultdict

from benchmarks.pace import Pace, asked, step
from benchmarks.programs import ended_well
from benchmarks.report import Figure, write
from benchmarks.shadow.instances import two_cpus
from benchmarks.shadow.models import MEGABYTE
from benchmarks.shadow.samples import at_quantile
from gnomon_profiler.measuring.process import MeasuringProcess

SIZES_MB = (1, 2, 4, 8, 16, 32, 64)
GOAL_MS_PER_MB = 0.15
MEDIAN_OF = 9
"""Hand-overs of each size of which the Profiler's measurement takes the median: one sample here."""


def main(pace: Pace) -> None:
    samples = 5 if pace.quick else 21
    found: dict[tuple[str, int], list[float]] = defaultdict(list)
    cpus = two_cpus()
    with MeasuringProcess() as process:
        for number in range(samples):
            for way, ends in (("there", (cpus.body, cpus.shadow)), ("back", (cpus.shadow, cpus.body))):
                for size_mb, ms_per_mb in one_way(process, ends):
                    found[way, size_mb].append(ms_per_mb)
            if number % 5 == 0:
                step(f"{number + 1} of {samples}")
    figures = [figure_of(way, size_mb, values) for (way, size_mb), values in sorted(found.items())]
    write("shadow_hand_over", figures, repeats=samples, packages=("gnomon", "torch"), folder=pace.results)


def one_way(process: MeasuringProcess, ends: tuple[int, int]) -> list[tuple[int, float]]:
    """Megabytes, and milliseconds for each of them, from one CPU to the other."""
    sizes = [size * MEGABYTE for size in SIZES_MB]
    [measured] = process.measure({"measure": "transfer", "sizes_bytes": sizes, "repeats": MEDIAN_OF, "cpus": list(ends)})
    return [(size, 1e3 * seconds / size) for size, seconds in zip(SIZES_MB, measured["seconds"], strict=True)]


def figure_of(way: str, size_mb: int, values: list[float]) -> Figure:
    return at_quantile(f"{way}, {size_mb:2} MB", values, "ms/MB", at_most=GOAL_MS_PER_MB, detail=f"medians of {MEDIAN_OF}")


if __name__ == "__main__":
    ended_well(lambda: main(asked(__doc__ or "")))
