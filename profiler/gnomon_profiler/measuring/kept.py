"""What a stored profile has of the cells that a run would measure.

    profile of this machine ─ of the same model, machine and software? ─ yes ▶ its cells, and those that are missing are measured
                                                                        └ no ▶ the reason, in words: all is measured anew

A profile has the median and the spread of every batch, and the points that its lines were fitted through: it can be written
again with more batches or cores beside them. How much memory an instance holds and how long starts take is measured each time:
the first is of the largest batch, the others are a platform's, and both are quick.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from gnomon_core.blocks import Layers
from gnomon_core.profiles import ModelProfile, Points
from gnomon_profiler.measuring.cells import TRANSFER_BYTES, Cell, loading_sets
from gnomon_profiler.measuring.session import Result

_SAME = ("machine", "torch", "cpu_capability", "python", "gnomon", "allocator", "weights_sha256")
"""Of the provenance, what has to be the same. Of our version that is the release: commits are told, and tell nothing apart."""


@dataclass(frozen=True, slots=True)
class Kept:
    """Cells of the last profile; `source` says when they were measured and by which version, `earlier` which of them before."""

    cells: Mapping[Cell, Result] = field(default_factory=dict)
    source: str = ""
    earlier: str = ""

    @property
    def largest_batch(self) -> int:
        """Of its latency cells; 0 without any."""
        return max((cell.batch for cell in self.cells), default=0)

    def without(self, cells: Iterable[Cell], repeats: int) -> Kept:
        """Without those of these cells that were repeated less often than that."""
        few = {cell for cell in cells if self.cells.get(cell, {}).get("repeats", repeats) < repeats}
        return replace(self, cells={cell: result for cell, result in self.cells.items() if cell not in few})


NOTHING_KEPT = Kept()


def difference(profile: ModelProfile, layers: Layers, now: Mapping[str, str]) -> str:
    """Why the cells of a profile say nothing of a model with these blocks, or with this provenance; "" where they do."""
    if profile.layers != layers:
        return "it is of another program, or of other blocks"
    for key in _SAME:
        before, after = (_release(one.get(key, "")) if key == "gnomon" else one.get(key, "") for one in (profile.provenance, now))
        if before != after:
            return f"{key} was {before or 'not said'} and is {after}"
    return ""


def kept_of(profile: ModelProfile) -> Kept:
    """What can be taken from it."""
    then = profile.provenance
    cells = dict(_latencies(profile)) | dict(_lines(profile))
    return Kept(cells, source_of(then), then.get("earlier", ""))


def source_of(provenance: Mapping[str, str]) -> str:
    """When what has this provenance was measured, and by which version."""
    return f"{provenance.get('date', 'an unknown day')} by {provenance.get('gnomon', 'an unknown version')}"


def _latencies(profile: ModelProfile) -> Iterator[tuple[Cell, Result]]:
    repeats = _fewest(profile.provenance.get("repeats", ""))
    for cores, row in profile.whole.seconds.items():
        tables = [table.seconds.get(cores, {}) for table in profile.blocks]
        for batch, whole_s in row.items():
            if all(batch in table for table in tables):
                key, blocks_s = f"{cores}/{batch}", [table[batch] for table in tables]
                range_s = whole_s * profile.spread.get(key, 0.0)
                result: Result = {"whole_s": whole_s, "range_s": range_s, "blocks_s": blocks_s, "repeats": repeats}
                spreads = profile.evidence.block_spread.get(key)
                if spreads is not None:
                    result["block_ranges_s"] = [spread * block_s for spread, block_s in zip(spreads, blocks_s, strict=True)]
                yield Cell("latency", cores, batch), result


def _lines(profile: ModelProfile) -> Iterator[tuple[Cell, Result]]:
    """Loading and hand-overs, where their points are those that would be measured."""
    evidence = profile.evidence
    sizes = tuple(profile.layers.parameter_bytes(numbers) for numbers in loading_sets(profile.layers))
    for mode, points in evidence.loading.items():
        if points.sizes_bytes == sizes:
            yield Cell("loading", mode=mode), _result(points)
    for what, found in (("transfer", evidence.transfer), ("network", evidence.network)):
        if found is not None and found.sizes_bytes == TRANSFER_BYTES:
            yield Cell(what), _result(found) | {"sizes_bytes": list(found.sizes_bytes)}


def _result(points: Points) -> Result:
    return {"seconds": list(points.seconds), "ranges_s": list(points.ranges_s)}


def _fewest(said: str) -> int:
    """Of "10 to 40 a cell, …"; 0 where nothing is said."""
    number = re.match(r"\d+", said)
    return int(number.group()) if number else 0


def _release(version: str) -> str:
    return version.partition(",")[0]
