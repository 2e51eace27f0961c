"""What models' profiles foretell: a `LatencyModel`, and the profile itself as served latencies correct it.

    profile ──▶ ProfiledLatency ──▶ LearnedLatency ──▶ admission, scheduling, sizes of batches
       │                                  │ measured / foretold, by cores
       └──────────────▶ Corrected ◀───────┘ ──▶ what the scaling policy sees

A machine that is busy with something else, or another one than the profile was measured on, is slower as a whole: the measured
rows are scaled by what batches of lone Bodies took there, the others by the mean of that. Example: foretold 100 ms on 1 core and
60 ms on 2, measured 120 ms on 1: the policy reads 120 and 72 ms.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from gnomon_core.blocks import Run
from gnomon_core.pairs import Pair, pair_seconds
from gnomon_core.profiles import LatencyTable, ModelProfile

_MATTERS = 0.05
"""Less than this a correction does not move the profile, so that decisions do not follow its noise."""


class ProfiledLatency:
    """Latency by the profiles that are put here, of lone Bodies and of pairs (AsyFunc, Eq. 6)."""

    def __init__(self) -> None:
        self._profiles: dict[str, ModelProfile] = {}
        self._last: tuple[ModelProfile, tuple[int, ...], tuple[Run, ...]] | None = None

    def put(self, variant: str, profile: ModelProfile) -> bool:
        """Foretell this variant by that profile from now on; whether that is another one than before."""
        renewed = self._profiles.get(variant) != profile
        if renewed:
            self._profiles[variant] = profile
        return renewed

    def seconds(self, variant: str, body_cores: int, batch: int, pair: Pair | None = None) -> float | None:
        profile = self._profiles.get(variant)
        if profile is None:
            return None
        if pair is None:
            return profile.at(body_cores, batch)
        if max(pair.blocks, default=0) >= len(profile.layers.blocks):
            return None  # a Body says by itself what its Shadows hold
        return pair_seconds(profile, body_cores, pair, batch, self._runs(profile, pair.blocks))

    def _runs(self, profile: ModelProfile, blocks: tuple[int, ...]) -> tuple[Run, ...]:
        """The runs of these blocks. A pair is asked about for one batch size after the other: the last ones are kept."""
        if self._last is None or self._last[0] is not profile or self._last[1] != blocks:
            self._last = (profile, blocks, profile.layers.runs(blocks))
        return self._last[2]


class Corrected:
    """A profile, scaled as the measurements say. The same object is given until they say something else."""

    def __init__(self, profile: ModelProfile) -> None:
        self._profile = self._scaled = profile
        self._by: dict[int, float] = {}

    def by(self, corrections: Mapping[int, float]) -> ModelProfile:
        """The profile where batches took `corrections[cores]` times what it foretold."""
        moved = corrections.keys() != self._by.keys() or any(
            abs(ratio - self._by[cores]) > _MATTERS * self._by[cores] for cores, ratio in corrections.items()
        )
        if moved:
            self._by = dict(corrections)
            self._scaled = _scaled(self._profile, self._by)
        return self._scaled


def _scaled(profile: ModelProfile, by: Mapping[int, float]) -> ModelProfile:
    if not by:
        return profile
    mean = sum(by.values()) / len(by)

    def scaled(table: LatencyTable) -> LatencyTable:
        rows = {
            cores: {batch: seconds * by.get(cores, mean) for batch, seconds in row.items()}
            for cores, row in table.seconds.items()
        }
        return replace(table, seconds=rows)

    blocks = tuple(scaled(table) for table in profile.blocks)
    return replace(profile, whole=scaled(profile.whole), blocks=blocks, memories=scaled(profile.memories))
