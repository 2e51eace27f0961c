"""A model of three blocks and a machine that is played: what the Profiler would measure there."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from gnomon_core.blocks import Block, Layers
from gnomon_profiler.measuring.cells import Plan, Subject
from gnomon_profiler.measuring.session import Machine

MB = 1_000_000
LAYERS = Layers(
    "abc",
    ("y",),
    (
        Block("wide", 0, 3, ("x",), ("a",), ("w0",), 4_000_000, 1 * MB, splittable=True),
        Block("bare", 3, 4, ("a",), ("b",), (), 1_000, 0, splittable=True),
        Block("deep", 4, 9, ("b",), ("y",), ("w1", "w2"), 1_000_000, 3 * MB, splittable=True),
    ),
    {"x": 600, "a": 800, "b": 200, "y": 40},
)
PLAN = Plan((1, 2), (1, 2), 10, (0, 1))
MACHINE = Machine("AMD EPYC", "25 17", (0, 1), 24, "6.18")


def subject(tmp_path: Path) -> Subject:
    files = (tmp_path / name for name in ("program.json", "weights.safetensors", "layers.json"))
    return Subject("m@1", *files, LAYERS, {"weights.safetensors": "def"}, {"weights": "random, seed 0"})


class Bench:
    """Measures what a model of a machine says: batches take 10 ms a sample on a core, blocks 5, 1 and 4 of them.

    A batch holds 10 MB a sample beside 30. `spreads` are the spreads of a cell's tries, `dies_after` says after how many cells it
    is killed.
    """

    def __init__(self, spreads: Mapping[str, list[float]] | None = None, dies_after: int | None = None) -> None:
        self._spreads = {key: list(values) for key, values in (spreads or {}).items()}
        self._left = dies_after
        self.measured: list[str] = []

    def measure(self, order: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        if order["measure"] == "latency":
            for batch in order["batches"]:
                yield self._latency(int(order["cores"]), int(batch))
            return
        self._count(order["measure"])
        yield {
            "loading": {
                "seconds": [0.002 + 1e-9 * LAYERS.parameter_bytes(numbers) for numbers in order.get("sets", ())],
                "ranges_s": [0.0005 for _ in order.get("sets", ())],
            },
            "memory": {
                "idle_bytes": 20 * MB,
                "busy_bytes": (30 + 10 * order.get("batch", 0)) * MB,
                "proportional_bytes": 90 * MB,
            },
            "starts": {"body_s": 0.06, "shadow_s": 0.01},
            "transfer": {
                "sizes_bytes": order.get("sizes_bytes"),
                "seconds": [1e-4 + 1e-10 * size for size in order.get("sizes_bytes", ())],
                "ranges_s": [1e-5 for _ in order.get("sizes_bytes", ())],
            },
            "network": {
                "sizes_bytes": order.get("sizes_bytes"),
                "seconds": [2e-4 + 5e-10 * size for size in order.get("sizes_bytes", ())],
                "ranges_s": [2e-5 for _ in order.get("sizes_bytes", ())],
            },
        }[order["measure"]]

    def _latency(self, cores: int, batch: int) -> dict[str, Any]:
        key = f"latency/{cores}/{batch}"
        self._count(key)
        spread = (self._spreads.get(key) or [0.01]).pop(0)
        whole_s = 0.01 * batch / cores * (1 + spread)
        return {
            "whole_s": whole_s,
            "range_s": spread * whole_s,
            "repeats": 10,
            "blocks_s": [whole_s * part for part in (0.5, 0.1, 0.4)],
            "block_ranges_s": [whole_s * part for part in (0.05, 0.02, 0.0)],
        }

    def _count(self, key: str) -> None:
        if self._left == 0:
            raise KeyboardInterrupt
        self._left = None if self._left is None else self._left - 1
        self.measured.append(key)
