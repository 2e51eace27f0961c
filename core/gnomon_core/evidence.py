"""What the numbers of a profile were taken from: how much each block's times scatter, and the points behind each fitted line.

A table of medians hides that a block of a tenth of a millisecond scatters more than the model; two numbers of a line hide that
there are points off it. Both are kept, so that whoever doubts a profile need not measure again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Points:
    """Seconds by size in bytes: medians, each with its interquartile range."""

    sizes_bytes: tuple[int, ...]
    seconds: tuple[float, ...]
    ranges_s: tuple[float, ...]

    @property
    def spread(self) -> float:
        """The largest interquartile range relative to its median."""
        return max((apart / middle for apart, middle in zip(self.ranges_s, self.seconds, strict=True) if middle), default=0.0)

    def off(self, fixed_s: float, seconds_per_byte: float) -> float:
        """How far the worst point is from that line, relative to the point.

        Example: 2 s for 1 byte and 4 s for 2, on a line of 1 s and 1 s a byte: the second is 1 s of 4 off, 0.25.
        """
        pairs = zip(self.sizes_bytes, self.seconds, strict=True)
        return max((abs(fixed_s + seconds_per_byte * size - found) / found for size, found in pairs if found), default=0.0)

    def to_json(self) -> dict[str, Any]:
        return {"sizes_bytes": list(self.sizes_bytes), "seconds": list(self.seconds), "ranges_s": list(self.ranges_s)}

    @staticmethod
    def from_json(document: Mapping[str, Any]) -> Points:
        """The points in a document.

        Raises:
            ValueError: as many sizes, seconds and ranges as each other there are not.

        """
        sizes, seconds, ranges = (document[name] for name in ("sizes_bytes", "seconds", "ranges_s"))
        if not len(sizes) == len(seconds) == len(ranges):
            raise ValueError("not one range for each measured point")
        return Points(tuple(map(int, sizes)), tuple(map(float, seconds)), tuple(map(float, ranges)))


@dataclass(frozen=True, slots=True)
class Evidence:
    """What is kept of a profile's measurements; all of it may be missing, as in files from before it was kept.

    `block_spread` is, by "cores/batch", the relative interquartile range of each block's times. `loading` is by weight mode: each
    block with weights by itself, then growing parts of the model. `transfer` and `network` are hand-overs, one way.
    """

    block_spread: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    loading: Mapping[str, Points] = field(default_factory=dict)
    transfer: Points | None = None
    network: Points | None = None

    def worst_block_spread(self, block: int) -> float | None:
        """The largest spread of a block over all cores and batches; None where none was kept."""
        return max((spreads[block] for spreads in self.block_spread.values()), default=None)

    def to_json(self) -> dict[str, Any]:
        """The document; empty where nothing was kept."""
        kept = {
            "block_spread": {cell: list(spreads) for cell, spreads in self.block_spread.items()},
            "loading": {mode: points.to_json() for mode, points in self.loading.items()},
            "transfer": self.transfer and self.transfer.to_json(),
            "network": self.network and self.network.to_json(),
        }
        return {name: value for name, value in kept.items() if value}

    @staticmethod
    def from_json(document: Mapping[str, Any], blocks: int) -> Evidence:
        """The evidence in the document of a profile of so many blocks.

        Raises:
            ValueError: it is of something else.

        """
        spread = {str(cell): tuple(map(float, found)) for cell, found in document.get("block_spread", {}).items()}
        if any(len(found) != blocks for found in spread.values()):
            raise ValueError("not one spread for each block")
        transfer, network = (Points.from_json(document[name]) if name in document else None for name in ("transfer", "network"))
        loading = {str(mode): Points.from_json(points) for mode, points in document.get("loading", {}).items()}
        return Evidence(spread, loading, transfer, network)
