"""A model's profile: measured tables, and how they are read between and beyond what was measured.

AsyFunc's tuple (c, b, l, p, d), cores, batch, latency, parameter size, data size, for the whole model and for each layer block;
with the time to load weights and to hand tensors over. Between two measured batches a latency is read on the straight line
between them, beyond the largest in proportion to it. Cores that were not measured are unknown, unless a serial fraction is
declared: then they follow Amdahl's law from the largest measured number of cores, and are marked as extrapolated.

    t(c) = t(c₀) · (s + (1 − s)·c₀/c),   c > c₀ measured cores, s the serial fraction
    Example: 100 ms on 2 cores, s = 0.05: 8 cores take 100·(0.05 + 0.95/4) = 28.75 ms.

`ProfileMeasurements` are the source of these numbers: the spread of each block's times, and the points behind each fitted line.
A table of medians hides that a block of a tenth of a millisecond scatters more than the model; two numbers of a line hide that
there are points off it. Both are kept, so that a profile can be checked without measuring again.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from gnomon_core.blocks import Layers, Run
from gnomon_core.engines import PROGRAM
from gnomon_core.errors import bad_request


@dataclass(frozen=True, slots=True)
class Points:
    """Seconds by size in bytes: medians, each with its interquartile range."""

    sizes_bytes: tuple[int, ...]
    seconds: tuple[float, ...]
    ranges_s: tuple[float, ...]

    @property
    def spread(self) -> float:
        """The largest interquartile range relative to its median."""
        return max((range_s / middle for range_s, middle in zip(self.ranges_s, self.seconds, strict=True) if middle), default=0.0)

    def off(self, fixed_s: float, seconds_per_byte: float) -> float:
        """The largest relative distance of a point from that line.

        Example: 2 s for 1 byte and 4 s for 2, on a line of 1 s and 1 s a byte: the second is 1 s of 4 off, 0.25.
        """
        pairs = zip(self.sizes_bytes, self.seconds, strict=True)
        return max(
            (abs(fixed_s + seconds_per_byte * size - measured_s) / measured_s for size, measured_s in pairs if measured_s),
            default=0.0,
        )

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
class ProfileMeasurements:
    """Measurements behind a profile; any of them may be missing, as in files of earlier versions.

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
    def from_json(document: Mapping[str, Any], blocks: int) -> ProfileMeasurements:
        """The measurements in the document of a profile of so many blocks.

        Raises:
            ValueError: the document does not match so many blocks.

        """
        spread = {str(cell): tuple(map(float, deviations)) for cell, deviations in document.get("block_spread", {}).items()}
        if any(len(deviations) != blocks for deviations in spread.values()):
            raise ValueError("not one spread for each block")
        transfer, network = (Points.from_json(document[name]) if name in document else None for name in ("transfer", "network"))
        loading = {str(mode): Points.from_json(points) for mode, points in document.get("loading", {}).items()}
        return ProfileMeasurements(spread, loading, transfer, network)


FORMAT = "gnomon-profile/1"
REREAD_S = 30.0
"""Seconds until readers of profiles notice a new measurement of a model."""


@dataclass(frozen=True, slots=True)
class LatencyTable:
    """Seconds by cores and batch. `serial_fraction` None leaves unmeasured cores unknown."""

    seconds: Mapping[int, Mapping[int, float]]
    serial_fraction: float | None = None

    def at(self, cores: int, batch: int) -> float | None:
        """Latency of a batch on this many cores in seconds; 0 for no samples, None if unknown."""
        if batch <= 0:
            return 0.0
        row = self.seconds.get(cores)
        if row is not None:
            return _between(row, batch)
        largest = max(self.seconds, default=0)
        if self.serial_fraction is None or not 0 < largest < cores:
            return None
        measured_s = _between(self.seconds[largest], batch)
        return measured_s * (self.serial_fraction + (1 - self.serial_fraction) * largest / cores)

    def measured(self, cores: int) -> bool:
        """Return whether these cores were measured and not extrapolated."""
        return cores in self.seconds

    def to_json(self) -> dict[str, dict[str, float]]:
        return {str(cores): {str(batch): row[batch] for batch in sorted(row)} for cores, row in sorted(self.seconds.items())}

    @staticmethod
    def from_json(document: Mapping[str, Mapping[str, float]], serial_fraction: float | None = None) -> LatencyTable:
        """The table in a document.

        Raises:
            ValueError: an empty row, or a number that is no time.

        """
        rows = {int(cores): {int(batch): float(seconds) for batch, seconds in row.items()} for cores, row in document.items()}
        for cores, row in rows.items():
            if cores < 1 or not row or any(batch < 1 or not 0 <= seconds < float("inf") for batch, seconds in row.items()):
                raise ValueError(f"a wrong row for {cores} cores")
        return LatencyTable(rows, serial_fraction)


@dataclass(frozen=True, slots=True)
class Loading:
    """Time to load weights in one weight mode: `fixed_s` plus `seconds_per_byte` for each byte."""

    fixed_s: float
    seconds_per_byte: float

    def seconds(self, parameter_bytes: int) -> float:
        return self.fixed_s + self.seconds_per_byte * parameter_bytes


@dataclass(frozen=True, slots=True)
class Network:
    """Handing tensors to another node, one way: `fixed_s` and then `seconds_per_byte`. `source` says who says so."""

    fixed_s: float
    seconds_per_byte: float
    source: str = ""

    @staticmethod
    def of(gbps: float, rtt_ms: float, software: Network | None = None) -> Network:
        """A network of this bandwidth and round-trip time, on top of what the two ends' software takes (TCP over loopback).

        The parts are added, as if no byte were copied while another is on the wire: rather too much than too little, because a
        Shadow elsewhere must be worth its way.
        Example: 10 Gbit/s and 0.2 ms with 50 µs and 0.4 ms/MB of software: 150 µs, and 0.8 + 0.4 = 1.2 ms/MB.

        Raises:
            GnomonError: 400 `bad_network`: no bandwidth, or a negative time.

        """
        if not 0 < gbps < float("inf") or not 0 <= rtt_ms < float("inf"):
            wrong = f"There is no such thing as a network of {gbps} Gbit/s and {rtt_ms} ms."
            raise bad_request("bad_network", wrong, "Use a bandwidth above 0.")
        source = f"declared: {gbps:g} Gbit/s, {rtt_ms:g} ms there and back"
        return Network(rtt_ms / 2e3, 8 / (gbps * 1e9), source).over(software)

    def over(self, software: Network | None) -> Network:
        """The network with the time that the software at the two ends adds."""
        if software is None:
            return self
        fixed_s, seconds_per_byte = self.fixed_s + software.fixed_s, self.seconds_per_byte + software.seconds_per_byte
        return Network(fixed_s, seconds_per_byte, self.source)


def profile_name(machine_id: str, engine: str = PROGRAM) -> str:
    """The name of a profile's file: that of the machine, and of the engine where that is not the layer program's."""
    return machine_id if engine == PROGRAM else f"{machine_id}+{engine}"


@dataclass(frozen=True, slots=True)
class ModelProfile:
    """The measured speed and size of a model on one kind of machine.

    `loading` is by weight mode, "shared" or "private"; `body_start_s` and `shadow_start_s` lie between a decision and an instance
    that has loaded nothing yet. `overhead_bytes` is what an instance holds besides its weights. `spread` is the relative
    interquartile range of the whole model's cells, by "cores/batch". `provenance` says machine, versions, date and commit.
    `block_load_s` is, by weight mode, what loading each block by itself took; empty where that was not measured. `network` is
    what a hand-over to another node takes; None where it is neither measured nor declared, and then no Shadow is made elsewhere.
    `memories` is the whole model by memory size in MB instead of cores, where a platform sells that; each call pays for its own
    time there, and instances cost nothing while they are idle. `measurements` are the source of the other numbers.
    """

    model: str
    layers: Layers
    whole: LatencyTable
    blocks: tuple[LatencyTable, ...]
    loading: Mapping[str, Loading]
    body_start_s: float
    shadow_start_s: float
    overhead_bytes: int
    transfer_fixed_s: float
    transfer_seconds_per_byte: float
    spread: Mapping[str, float] = field(default_factory=dict)
    provenance: Mapping[str, str] = field(default_factory=dict)
    block_load_s: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    network: Network | None = None
    memories: LatencyTable = LatencyTable({})
    measurements: ProfileMeasurements = field(default_factory=ProfileMeasurements)

    @property
    def engine(self) -> str:
        """The engine that ran the model; its version is in the provenance."""
        return self.provenance.get("engine", PROGRAM).partition(" ")[0]

    def at(self, size: int, batch: int) -> float | None:
        """Seconds of a batch of the whole model on an instance of this `gnomon_core.fleet.Instance.size`; None if unknown."""
        return (self.memories if self.memories.measured(size) else self.whole).at(size, batch)

    def run_seconds(self, run: Run, cores: int, batch: int) -> float | None:
        """Seconds of a run of blocks, as the sum of its blocks; None if one is unknown."""
        total_s = 0.0
        for table in self.blocks[run.first : run.last + 1]:
            seconds = table.at(cores, batch)
            if seconds is None:
                return None
            total_s += seconds
        return total_s

    def transfer_seconds(self, there_bytes: int, back_bytes: int) -> float:
        """Seconds to hand tensors to the Shadow and back."""
        return 2 * self.transfer_fixed_s + self.transfer_seconds_per_byte * (there_bytes + back_bytes)

    def memory_bytes(self, parameter_bytes: int) -> int:
        """Memory of an instance with its own copy of so many bytes of weights, in bytes."""
        return self.overhead_bytes + parameter_bytes

    def body_load_s(self, weight_mode: str) -> float:
        """Seconds from the decision until a Body serves."""
        return self.body_start_s + self.loading[weight_mode].seconds(self.layers.parameter_bytes())

    def shadow_load_s(self, weight_mode: str, parameter_bytes: int) -> float:
        """Seconds from the decision until a Shadow has loaded so many bytes of weights."""
        return self.shadow_start_s + self.loading[weight_mode].seconds(parameter_bytes)

    def core_seconds_per_gmac(self) -> float:
        """Seconds of a core for 10⁹ multiply-accumulates: on the fewest measured cores, in the batch that does best.

        0 for a model that has no such operation. Example: 4 GMACs, 0.8 s for eight samples on one core: 0.8 / 8 / 4 = 0.025 s.
        """
        gmacs = self.layers.macs() / 1e9
        cores = min(self.whole.seconds, default=0)
        if not gmacs or not cores:
            return 0.0
        return min(cores * seconds / batch for batch, seconds in self.whole.seconds[cores].items()) / gmacs

    def promotion_s(self, weight_mode: str, held_bytes: int) -> float:
        """Seconds to promote a Shadow with so many bytes of weights to a Body: the other weights, and the first batch."""
        rest_bytes = max(0, self.layers.parameter_bytes() - held_bytes)
        return max(0.0, self.body_start_s - self.shadow_start_s) + self.loading[weight_mode].seconds_per_byte * rest_bytes

    def extrapolated(self, serial_fraction: float) -> ModelProfile:
        """The profile with cores beyond the measured ones, by Amdahl's law."""
        return replace(
            self,
            whole=replace(self.whole, serial_fraction=serial_fraction),
            blocks=tuple(replace(table, serial_fraction=serial_fraction) for table in self.blocks),
        )

    def over_network(self) -> ModelProfile | None:
        """The profile of a Body whose Shadow is on another node; None if `network` is unknown."""
        if self.network is None:
            return None
        fixed_s, seconds_per_byte = self.network.fixed_s, self.network.seconds_per_byte
        return replace(self, transfer_fixed_s=fixed_s, transfer_seconds_per_byte=seconds_per_byte)

    def to_json(self) -> dict[str, Any]:
        document = {
            "format": FORMAT,
            "model": self.model,
            "provenance": dict(self.provenance),
            "layers": self.layers.to_json(),
            "whole_s": self.whole.to_json(),
            "blocks_s": [table.to_json() for table in self.blocks],
            "spread": dict(self.spread),
            "loading": {
                mode: {"fixed_s": load.fixed_s, "seconds_per_byte": load.seconds_per_byte} for mode, load in self.loading.items()
            },
            "block_load_s": {mode: list(seconds) for mode, seconds in self.block_load_s.items()},
            "body_start_s": self.body_start_s,
            "shadow_start_s": self.shadow_start_s,
            "overhead_bytes": self.overhead_bytes,
            "transfer": {"fixed_s": self.transfer_fixed_s, "seconds_per_byte": self.transfer_seconds_per_byte},
        }
        if self.memories.seconds:
            document["memories_s"] = self.memories.to_json()
        if measured := self.measurements.to_json():
            document["measured"] = measured
        return document if self.network is None else document | {"network": _network_to_json(self.network)}

    @staticmethod
    def from_json(document: Mapping[str, Any]) -> ModelProfile:
        """The profile in a document.

        Raises:
            ValueError: it is none.

        """
        if document.get("format") != FORMAT:
            raise ValueError(f"not {FORMAT}")
        try:
            layers = Layers.from_json(document["layers"])
            profile = ModelProfile(
                model=str(document["model"]),
                layers=layers,
                whole=LatencyTable.from_json(document["whole_s"]),
                blocks=tuple(LatencyTable.from_json(table) for table in document["blocks_s"]),
                loading={
                    str(mode): Loading(float(load["fixed_s"]), float(load["seconds_per_byte"]))
                    for mode, load in document["loading"].items()
                },
                body_start_s=float(document["body_start_s"]),
                shadow_start_s=float(document["shadow_start_s"]),
                overhead_bytes=int(document["overhead_bytes"]),
                transfer_fixed_s=float(document["transfer"]["fixed_s"]),
                transfer_seconds_per_byte=float(document["transfer"]["seconds_per_byte"]),
                spread={str(cell): float(spread) for cell, spread in document.get("spread", {}).items()},
                provenance={str(key): str(value) for key, value in document.get("provenance", {}).items()},
                block_load_s={
                    str(mode): tuple(float(duration_s) for duration_s in seconds)
                    for mode, seconds in document.get("block_load_s", {}).items()
                },
                network=_network_from_json(document["network"]) if "network" in document else None,
                memories=LatencyTable.from_json(document.get("memories_s", {})),
                measurements=ProfileMeasurements.from_json(document.get("measured", {}), len(layers.blocks)),
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"no profile: {type(error).__name__}: {error}") from None
        per_block = (profile.blocks, *profile.block_load_s.values())
        if any(len(values) != len(profile.layers.blocks) for values in per_block):
            raise ValueError("not one table for each block")
        return profile


def _network_to_json(network: Network) -> dict[str, Any]:
    return {"fixed_s": network.fixed_s, "seconds_per_byte": network.seconds_per_byte, "source": network.source}


def _network_from_json(document: Mapping[str, Any]) -> Network:
    network = Network(float(document["fixed_s"]), float(document["seconds_per_byte"]), str(document.get("source", "")))
    if not 0 <= network.fixed_s < float("inf") or not 0 <= network.seconds_per_byte < float("inf"):
        raise ValueError("a network that takes less than no time, or for ever")
    return network


def _between(row: Mapping[int, float], batch: int) -> float:
    if batch in row:
        return row[batch]
    batches = sorted(row)
    above = bisect_left(batches, batch)
    if above == len(batches):
        return row[batches[-1]] * batch / batches[-1]
    if above == 0:
        return row[batches[0]]
    left, right = batches[above - 1], batches[above]
    return row[left] + (batch - left) / (right - left) * (row[right] - row[left])
