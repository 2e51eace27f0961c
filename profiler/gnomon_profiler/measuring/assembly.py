"""Assembles finished cells into a profile (tables, fitted lines, provenance), and reads the cells back from a stored profile.

    profile of this machine ─ of the same model, machine and software? ─ yes ▶ its cells, and those that are missing are measured
                                                                        └ no ▶ the reason, logged: every cell is measured anew

A stored profile has the median and the spread of every batch, and the points that its lines were fitted through: it can be
written again with more batches or cores beside them. How much memory an instance holds and how long starts take is measured
each time: the first is of the largest batch, the others are a platform's, and both are quick.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from gnomon_core.blocks import Layers
from gnomon_core.packaging import jemalloc
from gnomon_core.profiles import LatencyTable, Loading, ModelProfile, Network, Points, ProfileMeasurements
from gnomon_profiler.measuring.cells import TRANSFER_BYTES, WEIGHT_MODES, Cell, Plan, Subject, fixed_and_per_unit, loading_sets
from gnomon_profiler.measuring.session import Machine, Result, spread_of

_SAME = ("machine", "torch", "cpu_capability", "python", "gnomon", "allocator", "weights_sha256", "engine")
"""Parts of the provenance that must be equal for cells to be reused. Of our version only the release counts, not the commit."""


@dataclass(frozen=True, slots=True)
class StoredCells:
    """Cells of the last profile; `source` says when they were measured and by which version, `earlier` which of them before."""

    cells: Mapping[Cell, Result] = field(default_factory=dict)
    source: str = ""
    earlier: str = ""

    @property
    def largest_batch(self) -> int:
        """The largest batch among the latency cells; 0 without any."""
        return max((cell.batch for cell in self.cells), default=0)

    def without(self, cells: Iterable[Cell], repeats: int) -> StoredCells:
        """A copy without those of these cells that have fewer repeats."""
        too_few_repeats = {cell for cell in cells if self.cells.get(cell, {}).get("repeats", repeats) < repeats}
        return replace(self, cells={cell: result for cell, result in self.cells.items() if cell not in too_few_repeats})


NO_STORED_CELLS = StoredCells()


def difference(profile: ModelProfile, layers: Layers, now: Mapping[str, str]) -> str:
    """The reason why a profile's cells cannot be reused for these blocks and this provenance; "" if they can."""
    if profile.layers != layers:
        return "it is of another program, or of other blocks"
    for key in _SAME:
        before, after = (
            _release(provenance.get(key, "")) if key == "gnomon" else provenance.get(key, "")
            for provenance in (profile.provenance, now)
        )
        if before != after:
            return f"{key} was {before or 'not stated'} and is {after}"
    return ""


def stored_cells(profile: ModelProfile) -> StoredCells:
    """The cells of a stored profile that need not be measured again."""
    then = profile.provenance
    cells = dict(_latencies(profile)) | dict(_lines(profile))
    return StoredCells(cells, source_of(then), then.get("earlier", ""))


def source_of(provenance: Mapping[str, str]) -> str:
    """The time and version of the measurement with this provenance, as text."""
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
                spreads = profile.measurements.block_spread.get(key)
                if spreads is not None:
                    result["block_ranges_s"] = [spread * block_s for spread, block_s in zip(spreads, blocks_s, strict=True)]
                yield Cell("latency", cores, batch), result


def _lines(profile: ModelProfile) -> Iterator[tuple[Cell, Result]]:
    """The loading and hand-over cells, if their points are those that would be measured now."""
    evidence = profile.measurements
    sizes = tuple(profile.layers.parameter_bytes(numbers) for numbers in loading_sets(profile.layers))
    for mode, points in evidence.loading.items():
        if points.sizes_bytes == sizes:
            yield Cell("loading", mode=mode), _result(points)
    for kind, measured_points in (("transfer", evidence.transfer), ("network", evidence.network)):
        if measured_points is not None and measured_points.sizes_bytes == TRANSFER_BYTES:
            yield Cell(kind), _result(measured_points) | {"sizes_bytes": list(measured_points.sizes_bytes)}


def _result(points: Points) -> Result:
    return {"seconds": list(points.seconds), "ranges_s": list(points.ranges_s)}


def _fewest(text: str) -> int:
    """The smallest number of repeats in a text such as "10 to 40 a cell, …"; 0 if there is none."""
    number = re.match(r"\d+", text)
    return int(number.group()) if number else 0


def _release(version: str) -> str:
    return version.partition(",")[0]


_DIGITS = 6
LOOPBACK = "TCP over loopback, without a wire"
ALLOCATOR = f"{'glibc' if jemalloc() is None else 'jemalloc'}, freed memory kept"
"""The allocator of the measuring processes, which are started as instances are."""


@dataclass(frozen=True, slots=True)
class ReadyTimes:
    """Seconds from a decision until an instance is ready with its weights resident, as a platform took them; `how` names it.

    `shadow_s` is for a Shadow with `shadow_bytes` of weights; None where the platform has none.
    """

    body_s: float
    how: str
    shadow_s: float | None = None
    shadow_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Measured:
    """The finished cells of a run, with their subject and plan."""

    subject: Subject
    plan: Plan
    results: Mapping[Cell, Result]

    def latencies(self) -> Iterator[tuple[Cell, Result]]:
        """The latency cells and their results."""
        return ((cell, result) for cell, result in self.results.items() if cell.kind == "latency")

    def result_of(self, kind: str, mode: str = "") -> Result:
        """The result of a cell that exists once, or once per weight mode."""
        return self.results[Cell(kind, mode=mode)]

    def memory(self) -> Result:
        """The result of the memory cell: an instance's memory when idle and after the largest batch."""
        return self.results[self.plan.memory_cell]


@dataclass(frozen=True, slots=True)
class ProfileContext:
    """The machine, software and time of a measurement; `software` as `machine.software` gives it."""

    machine: Machine
    software: Mapping[str, str]
    when: datetime


def assemble(
    measured: Measured, context: ProfileContext, ready: ReadyTimes | None = None, stored: StoredCells = NO_STORED_CELLS
) -> ModelProfile:
    """The profile of a model. What a platform's `ready` does not say of starts is taken from bare forks.

    `stored` are those of its cells that an earlier profile had.
    """
    subject = measured.subject
    whole_model: dict[int, dict[int, float]] = {}
    blocks: list[dict[int, dict[int, float]]] = [{} for _ in subject.layers.blocks]
    spread: dict[str, float] = {}
    for cell, result in measured.latencies():
        whole_model.setdefault(cell.cores, {})[cell.batch] = _rounded(result["whole_s"])
        spread[f"{cell.cores}/{cell.batch}"] = round(spread_of(result), 4)
        for table, seconds in zip(blocks, result["blocks_s"], strict=True):
            table.setdefault(cell.cores, {})[cell.batch] = _rounded(seconds)
    fixed_s, per_byte_s = _hand_over(measured.result_of("transfer"))
    loading = {mode: _loading(subject, measured.result_of("loading", mode)) for mode in WEIGHT_MODES}
    starts = _starts(measured, loading["shared"], ready)
    provenance = provenance_of(subject, context)
    return ModelProfile(
        model=subject.name,
        layers=subject.layers,
        whole=LatencyTable(whole_model),
        blocks=tuple(LatencyTable(table) for table in blocks),
        loading=loading,
        block_load_s={mode: _block_loads(subject, measured.result_of("loading", mode)) for mode in WEIGHT_MODES},
        body_start_s=_rounded(starts.body_s),
        shadow_start_s=_rounded(starts.shadow_s),
        overhead_bytes=int(measured.memory()["busy_bytes"]),
        transfer_fixed_s=fixed_s,
        transfer_seconds_per_byte=per_byte_s,
        network=Network(*_hand_over(measured.result_of("network")), LOOPBACK),
        spread=spread,
        provenance=provenance | _measured_as(measured, stored, source_of(provenance)) | {"starts": starts.how},
        measurements=_evidence(measured),
    )


def _evidence(measured: Measured) -> ProfileMeasurements:
    """The spread of each block, and what the lines were fitted through."""
    sizes = [measured.subject.layers.parameter_bytes(numbers) for numbers in loading_sets(measured.subject.layers)]
    transfer, network = (measured.result_of(what) for what in ("transfer", "network"))
    return ProfileMeasurements(
        block_spread={
            f"{cell.cores}/{cell.batch}": _block_spreads(result)
            for cell, result in measured.latencies()
            if "block_ranges_s" in result
        },
        loading={mode: _points(sizes, measured.result_of("loading", mode)) for mode in WEIGHT_MODES},
        transfer=_points(transfer["sizes_bytes"], transfer),
        network=_points(network["sizes_bytes"], network),
    )


def _block_spreads(result: Result) -> tuple[float, ...]:
    """Relative interquartile ranges; 0 for a block that takes no time."""
    pairs = zip(result["block_ranges_s"], result["blocks_s"], strict=True)
    return tuple(round(range_s / block_s, 4) if block_s else 0.0 for range_s, block_s in pairs)


def _points(sizes_bytes: Sequence[int], result: Result) -> Points:
    return Points(tuple(sizes_bytes), tuple(map(_rounded, result["seconds"])), tuple(map(_rounded, result["ranges_s"])))


def _hand_over(result: Result) -> tuple[float, float]:
    """The fixed part of a hand-over one way, and that of each byte."""
    fixed_s, per_byte_s = fixed_and_per_unit([float(size) for size in result["sizes_bytes"]], result["seconds"])
    return _rounded(fixed_s), _rounded(per_byte_s)


@dataclass(frozen=True, slots=True)
class _Starts:
    """Start times without loading, in seconds, and how they were measured."""

    body_s: float
    shadow_s: float
    how: str


def _starts(measured: Measured, shared: Loading, ready: ReadyTimes | None) -> _Starts:
    forks = measured.result_of("starts")
    if ready is None:
        return _Starts(forks["body_s"], forks["shadow_s"], "forks of a process with torch, without a platform")
    body_s = max(0.0, ready.body_s - shared.seconds(measured.subject.layers.parameter_bytes()))
    if ready.shadow_s is None:
        return _Starts(body_s, forks["shadow_s"], f"Body by {ready.how}; Shadow by forks of a process with torch")
    return _Starts(body_s, max(0.0, ready.shadow_s - shared.seconds(ready.shadow_bytes)), ready.how)


def provenance_of(subject: Subject, context: ProfileContext) -> dict[str, str]:
    """The provenance of a profile: model, machine, software and time."""
    return {
        "machine": str(context.machine),
        "machine_id": context.machine.id,
        **context.software,
        "date": context.when.date().isoformat(),
        "weights": str(subject.details.get("weights", "as captured")),
        "weights_sha256": subject.sha256.get("weights.safetensors", ""),
        "allocator": ALLOCATOR,
        **({"engine": f"{subject.engine.name} {subject.engine_version}".strip()} if subject.engine.files else {}),
    }


def _measured_as(measured: Measured, stored: StoredCells, source: str) -> dict[str, str]:
    """The provenance of a profile: the method, and which cells were measured at another time (`source`)."""
    memory, largest = measured.memory(), measured.plan.memory_cell.batch
    repeats = [int(result["repeats"]) for _, result in measured.latencies()]
    megabytes = {name: f"{memory[name] / 1e6:.1f} MB" for name in ("idle_bytes", "busy_bytes", "proportional_bytes")}
    return {
        "latency_weight_mode": "a compiled copy of its own"
        if measured.subject.engine.files
        else "shared, resident before the first batch",
        "loading_shared": "mapped from a warm page cache, every page resident",
        "loading_private": f"copied from a warm page cache at {_private_gigabytes_per_s(measured):.1f} GB/s",
        "overhead": f"{megabytes['idle_bytes']} idle, {megabytes['busy_bytes']} after a batch of {largest}, "
        f"{megabytes['proportional_bytes']} proportional",
        "repeats": f"{min(repeats)} to {max(repeats)} a cell, medians; spread is the interquartile range",
        **_earlier(measured, stored, source),
    }


def _earlier(measured: Measured, stored: StoredCells, source: str) -> dict[str, str]:
    taken_over = sum(measured.results.get(cell) is result for cell, result in stored.cells.items())
    of = f"{taken_over} of {len(measured.results)} cells are of {stored.source}" if stored.source != source else ""
    return {"earlier": "; ".join(filter(None, (of, stored.earlier)))} if taken_over and (of or stored.earlier) else {}


def _private_gigabytes_per_s(measured: Measured) -> float:
    """The bandwidth of loading a whole model in private mode, in GB/s."""
    seconds = measured.result_of("loading", "private")["seconds"]
    return measured.subject.layers.parameter_bytes() / seconds[-1] / 1e9 if seconds else 0.0


def _loading(subject: Subject, result: Result) -> Loading:
    sets = loading_sets(subject.layers)
    if not sets:
        return Loading(0.0, 0.0)
    sizes = [float(subject.layers.parameter_bytes(numbers)) for numbers in sets]
    fixed_s, per_byte_s = fixed_and_per_unit(sizes, result["seconds"])
    return Loading(_rounded(fixed_s), _rounded(per_byte_s))


def _block_loads(subject: Subject, result: Result) -> tuple[float, ...]:
    """Loading time of each block by itself, in seconds; 0 for a block without weights."""
    by_block = {
        numbers[0]: seconds
        for numbers, seconds in zip(loading_sets(subject.layers), result["seconds"], strict=True)
        if len(numbers) == 1
    }
    return tuple(_rounded(by_block.get(number, 0.0)) for number in range(len(subject.layers.blocks)))


def _rounded(seconds: float) -> float:
    """Six significant digits: files stay small, and no more is known."""
    return float(f"{seconds:.{_DIGITS}g}")
