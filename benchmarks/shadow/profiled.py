"""A model's profile, measured in the same run as what it is compared with, by the Profiler itself."""

from __future__ import annotations

import tempfile
from pathlib import Path

from benchmarks.pace import step
from benchmarks.shadow.models import StoredModel
from gnomon_core.pairs import Pair, best_split, predicted_ms, split_seconds
from gnomon_core.profiles import ModelProfile
from gnomon_profiler.measuring.profiling import MAX_BATCH, Wishes, profile_model
from gnomon_profiler.measuring.store import ProfileStore
from gnomon_runtime.pair.testing import Task

ONE_EACH = (1, 1)
"""Cores of the Body and of the Shadow."""


def measured_profile(model: StoredModel, repeats: int) -> ModelProfile:
    """The model on one core, batches of 1 to 8."""
    with tempfile.TemporaryDirectory(prefix="gnomon-benchmark-") as folder:
        wishes = Wishes(cores=(1,), repeats=repeats)
        profile, _ = profile_model(model.entry, ProfileStore(Path(folder)), wishes, lambda _: None)
    worst = max(profile.spread.values())
    step(f"{model.entry.name}: profiled, b = {MAX_BATCH} in {1e3 * whole_s(profile, MAX_BATCH):.0f} ms, spread up to {worst:.1%}")
    return profile


def whole_s(profile: ModelProfile, batch: int) -> float:
    """What a Body with one core takes for a batch."""
    return known(profile.whole.at(1, batch))


def task_of(model: StoredModel, profile: ModelProfile, pair: Pair) -> Task:
    """What a pair is told, as a platform with this profile tells it."""
    return Task(model, pair.blocks, pair.split, predicted_ms(profile, pair))


def best_pair(profile: ModelProfile, blocks: tuple[int, ...]) -> Pair:
    """A Shadow with one core that holds these blocks, and the split that the profile finds best."""
    return Pair(1, blocks, best_split(profile, ONE_EACH, blocks, MAX_BATCH))


def predicted_s(profile: ModelProfile, blocks: tuple[int, ...], batch: int, shadow_samples: int) -> float:
    """What the profile foretells of a batch (gnomon_core.pairs, Eq. 6)."""
    return known(split_seconds(profile, ONE_EACH, profile.layers.runs(blocks), batch, shadow_samples))


def known(seconds: float | None) -> float:
    """A time that the profile must know."""
    if seconds is None:
        raise RuntimeError("the profile lacks what was measured for it")
    return seconds
