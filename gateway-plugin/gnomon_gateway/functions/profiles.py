"""Latency models from profiles, and the corrections learned from served batches, which are kept over restarts.

    LearnedLatency ──every few seconds, in a thread──▶ corrections.json ──at the start──▶ LearnedLatency

A machine that is slower than its profile stays slower after a restart: without the saved corrections, each restart would trust
the profile again and admit requests that miss their deadlines, until enough batches are measured. A correction belongs to one
machine and one profile: another machine's file, and corrections to a profile that has been measured again, are ignored.

The file is replaced atomically, so that a crash leaves the old one or the new one; an unreadable file counts as a missing one.
Example of an entry: {"resnet50@1": {"profile": "9f2c…", "cores": {"1": [1.22, 1.19]}}}.

The predictions of the profiles, and the profile itself as served latencies correct it:

    profile ──▶ ProfiledLatency ──▶ LearnedLatency ──▶ admission, scheduling, sizes of batches
       │                                  │ measured / predicted, by cores
       └──────────────▶ Corrected ◀───────┘ ──▶ the scaling policy's input

A machine that is busy with other work, or not the one that the profile was measured on, is slower at all sizes: rows with
measurements are scaled by the ratio for batches of Bodies without Shadows, the others by the mean ratio. Example: predicted
100 ms on 1 core and 60 ms on 2, measured 120 ms on 1: the policy reads 120 and 72 ms.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from threading import Lock
from typing import Any

from gnomon_core.atomic_files import replace_file
from gnomon_core.blocks import Run
from gnomon_core.clock import Clock
from gnomon_core.json_types import JsonObject
from gnomon_core.pairs import Pair, pair_seconds
from gnomon_core.profiles import LatencyTable, ModelProfile
from gnomon_gateway.dispatch.latency import LearnedLatency, LiveLatency

FORMAT = "gnomon-corrections/1"
SAVE_EVERY_S = 5.0
MOST = 1000
"""Variants that are remembered, those that have not been served for the longest time being forgotten first."""

_LOG = logging.getLogger("gnomon.gateway")


class LatencyModels:
    """The latency models of the gateway: profiles, the model that learns from served batches, and its saved corrections.

    `learned` starts from the predictions of the profiles; another model may be given instead. Corrections are kept over restarts
    where `keep` says so.
    """

    def __init__(self, learned: LiveLatency | None = None) -> None:
        self._profiled = ProfiledLatency()
        self.learned = learned or LearnedLatency(self._profiled)
        self.corrections: Corrections | None = None

    def keep(self, file: Path, machine_id: str, clock: Clock) -> Corrections:
        """Keep the corrections of this machine in a file. Returns the object that loads and saves them."""
        assert isinstance(self.learned, LearnedLatency)
        self.corrections = Corrections(file, machine_id, self.learned, clock)
        return self.corrections

    def use_profile(self, variants: Iterable[str], profile: ModelProfile | None) -> None:
        """Predict these variants by the profile from now on. Measurements taken against another profile are discarded.

        Corrections that were saved before a restart continue, if they were learned against the same profile.
        """
        if profile is None:
            return
        for variant in variants:
            if self._profiled.put(variant, profile):
                self.learned.forget(variant)
            if self.corrections is not None:
                self.corrections.begin(variant, profile)


class Corrections:
    """The corrections of one machine in one file. `load` and `save` block; everything else is called on the event loop."""

    def __init__(self, file: Path, machine_id: str, latency: LearnedLatency, clock: Clock) -> None:
        self._file = file
        self._machine_id = machine_id
        self._latency = latency
        self._clock = clock
        self._saved: dict[str, Any] = {}
        self._profiles: dict[str, str] = {}
        self._written: JsonObject = {}
        self._writing = Lock()

    def load(self) -> None:
        """Read what the last process wrote."""
        try:
            document = json.loads(self._file.read_bytes())
            if (document["format"], document["machine"]) == (FORMAT, self._machine_id):
                self._saved = dict(document["variants"])
        except FileNotFoundError:
            return
        except (OSError, ValueError, KeyError, TypeError):
            _LOG.warning("the saved latency corrections in %s cannot be read: latencies are learned again", self._file)

    def begin(self, variant: str, profile: ModelProfile) -> None:
        """Predict the variant by this profile from now on, starting from the corrections of the last process."""
        digest = _digest(profile)
        known = self._profiles.get(variant)
        self._profiles[variant] = digest
        if known == digest:
            return
        saved = self._saved.pop(variant, None)
        try:
            if saved is None or saved["profile"] != digest:
                return
            for cores, (factor, ratio) in saved["cores"].items():
                if 0 < factor < math.inf and 0 < ratio < math.inf:
                    self._latency.resume(variant, int(cores), factor, ratio)
        except (ValueError, KeyError, TypeError, AttributeError):
            _LOG.warning("the saved latency correction of %s cannot be read: it is learned again", variant)

    async def run(self) -> None:
        """Save what has changed, every few seconds, until cancelled."""
        while True:
            await self._clock.sleep(SAVE_EVERY_S)
            await asyncio.to_thread(self._write, self.to_json())

    def save(self) -> None:
        """Write what is known now, if it is not what was written last."""
        self._write(self.to_json())

    def to_json(self) -> JsonObject:
        """The corrections of every variant: as learned by this process, else as read from the file."""
        variants = dict(self._saved)
        for variant, digest in self._profiles.items():
            learned = self._latency.learned(variant)
            if learned:
                cores = {str(cores): [round(value, 4) for value in both] for cores, both in sorted(learned.items())}
                variants[variant] = {"profile": digest, "cores": cores}
        newest = dict(list(variants.items())[-MOST:])
        return {"format": FORMAT, "machine": self._machine_id, "variants": newest}

    def _write(self, document: JsonObject) -> None:
        # `save` at the end may run while the thread of `run` still writes.
        with self._writing:
            if document == self._written:
                return
            try:
                replace_file(self._file, json.dumps(document), durable=False)
            except OSError as error:
                _LOG.warning("the latency corrections cannot be saved in %s: %s", self._file, error)
            else:
                self._written = document


def _digest(profile: ModelProfile) -> str:
    """A digest of the measured times of the whole model, because ratios are relative to them."""
    tables = [profile.whole.to_json(), *([profile.memories.to_json()] if profile.memories.seconds else [])]
    measured = json.dumps([profile.layers.program_sha256, *tables], sort_keys=True)
    return hashlib.sha256(measured.encode()).hexdigest()[:16]


_MATTERS = 0.05
"""Less than this a correction does not move the profile, so that decisions do not follow its noise."""


class ProfiledLatency:
    """Latency by the profiles that are put here, of lone Bodies and of pairs (AsyFunc, Eq. 6)."""

    def __init__(self) -> None:
        self._profiles: dict[str, ModelProfile] = {}
        self._last: tuple[ModelProfile, tuple[int, ...], tuple[Run, ...]] | None = None

    def put(self, variant: str, profile: ModelProfile) -> bool:
        """Predict this variant by that profile from now on; returns whether the profile is new."""
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
            return None  # reported by the Body, which runs a user's model and may be wrong
        return pair_seconds(profile, body_cores, pair, batch, self._runs(profile, pair.blocks))

    def _runs(self, profile: ModelProfile, blocks: tuple[int, ...]) -> tuple[Run, ...]:
        """The runs of these blocks. A pair is looked up for one batch size after the other: the last runs are kept."""
        if self._last is None or self._last[0] is not profile or self._last[1] != blocks:
            self._last = (profile, blocks, profile.layers.runs(blocks))
        return self._last[2]


class Corrected:
    """A profile, scaled by measurements. The same object is returned until the measurements change."""

    def __init__(self, profile: ModelProfile) -> None:
        self.published = self._scaled = profile
        self._by: dict[int, float] = {}

    def by(self, corrections: Mapping[int, float]) -> ModelProfile:
        """The profile with its predictions multiplied by `corrections[cores]`."""
        moved = corrections.keys() != self._by.keys() or any(
            abs(ratio - self._by[cores]) > _MATTERS * self._by[cores] for cores, ratio in corrections.items()
        )
        if moved:
            self._by = dict(corrections)
            self._scaled = _scaled(self.published, self._by)
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
