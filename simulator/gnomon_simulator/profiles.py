"""Execution times of variants: the measured table that stands for its instances in a simulation.

A profile is a JSON file; seconds by cores and batch:

    {"variant": "efficientnet-lite0", "load_s": 0.03, "memory_bytes": 120000000,
     "latency_s": {"1": {"1": 0.011, "4": 0.036, "8": 0.070}}, "noise": {"kind": "lognormal", "cv": 0.05}}

or a model's profile as `gnomon models profile` writes it, which also knows its layer blocks: then Bodies can have Shadows.
Tables are read as `gnomon_core.profiles` says, between two measured batches on the straight line between them, beyond the largest
in proportion to it. Noise multiplies each batch's latency by a random factor of mean 1: `lognormal` with a coefficient of
variation, or `exponential`.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

from gnomon_core.errors import GnomonError, bad_request
from gnomon_core.pairs import Pair, pair_seconds, shadow_seconds
from gnomon_core.profiles import FORMAT, LatencyTable, ModelProfile
from gnomon_core.units import MEGABYTE

Factor: TypeAlias = Callable[[random.Random], float]


@dataclass(frozen=True, slots=True)
class Noise:
    """Variation of a batch's latency around the table: `none`, `lognormal` or `exponential`."""

    kind: str = "none"
    cv: float = 0.0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.cv) and self.cv >= 0):
            raise bad_request("bad_noise", f"{self.cv} is no coefficient of variation.", "Use a number from 0.")

    def factor(self) -> Factor | None:
        """The generator of one batch's noise factor; None where every batch takes exactly its time in the table."""
        if self.kind == "none" or (self.kind == "lognormal" and self.cv == 0.0):
            return None
        if self.kind == "exponential":
            return lambda rng: rng.expovariate(1.0)
        # A lognormal of mean 1 has μ = −σ²/2, and its coefficient of variation is √(exp σ² − 1).
        sigma = math.sqrt(math.log1p(self.cv**2))
        return lambda rng: rng.lognormvariate(-(sigma**2) / 2, sigma)


@dataclass(frozen=True, slots=True)
class Profile:
    """The tables of one variant: a `LatencyModel` for any variant's name, because a simulated function has one variant.

    `load_s` lies between creating an instance and its first batch, `memory_bytes` is what it holds. `model` is the model's whole
    profile, None where only the latency of Bodies is known; `weight_mode` says whether the instances of a node share their
    weights.
    """

    variant: str
    latency: LatencyTable
    load_s: float = 0.0
    memory_bytes: int = 0
    noise: Noise = Noise()
    model: ModelProfile | None = None
    weight_mode: str = "shared"
    _known: dict[tuple[int, int, Pair | None], float | None] = field(default_factory=dict, init=False, repr=False, compare=False)

    def seconds(self, variant: str, body_cores: int, batch: int, pair: Pair | None = None) -> float | None:
        """The latency of a batch; None for a number of cores that is not known, and for pairs where the model is not."""
        del variant
        key = (body_cores, batch, pair)
        if key not in self._known:
            self._known[key] = self._seconds(body_cores, batch, pair)
        return self._known[key]

    def _seconds(self, body_cores: int, batch: int, pair: Pair | None) -> float | None:
        if pair is None:
            sold = self.model is not None and self.model.memories.measured(body_cores)
            return self.model.at(body_cores, batch) if sold and self.model is not None else self.latency.at(body_cores, batch)
        return None if self.model is None else pair_seconds(self.model, body_cores, pair, batch)

    def shadow_load_s(self, pair: Pair) -> float:
        """Seconds from the decision to a Shadow that has registered."""
        model = self._modelled
        return model.shadow_load_s(self.weight_mode, model.layers.parameter_bytes(pair.blocks))

    def promotion_s(self, pair: Pair) -> float:
        """Seconds from the decision to a Body that was this Shadow."""
        model = self._modelled
        return model.promotion_s(self.weight_mode, model.layers.parameter_bytes(pair.blocks))

    def shadow_memory_bytes(self, pair: Pair) -> int:
        """Memory of a Shadow in bytes; on its Body's node shared weights add nothing: the Body maps them already."""
        model = self._modelled
        mapped = self.weight_mode == "shared" and pair.node is None
        return model.memory_bytes(0 if mapped else model.layers.parameter_bytes(pair.blocks))

    def shadow_busy_s(self, pair: Pair, samples: int) -> float:
        """Seconds that a Shadow computes for its samples, without the hand-over: between runs it is idle."""
        model = self._modelled
        if samples <= 0:
            return 0.0
        runs = model.layers.runs(pair.blocks)
        handed_s = [model.transfer_seconds(samples * run.input_bytes, samples * run.output_bytes) for run in runs]
        taken_s = [shadow_seconds(model, run, pair.shadow_cores, samples) or 0.0 for run in runs]
        return sum(taken_s) - sum(handed_s)

    def extrapolated(self, serial_fraction: float) -> Profile:
        """The profile with cores beyond the measured ones, by Amdahl's law."""
        model = None if self.model is None else self.model.extrapolated(serial_fraction)
        return replace(self, latency=replace(self.latency, serial_fraction=serial_fraction), model=model)

    @property
    def _modelled(self) -> ModelProfile:
        assert self.model is not None, "only the Bodies of a profiled model have Shadows"
        return self.model


def constant(variant: str, service_s: float, *, cores: int = 1, load_s: float = 0.0, noise: Noise = Noise()) -> Profile:
    """A variant that takes the same time for each request of a batch, one after the other."""
    return Profile(variant, LatencyTable({cores: {1: service_s}}), load_s, 0, noise)


def modelled(model: ModelProfile, weight_mode: str = "shared") -> Profile:
    """A profiled model, its Bodies loading as long and holding as much as in this weight mode.

    Raises:
        GnomonError: 400 `bad_profile` for a weight mode that was not measured.

    """
    if weight_mode not in model.loading:
        raise _bad(model.model, f"has no loading times with {weight_mode} weights")
    memory_bytes = model.memory_bytes(0 if weight_mode == "shared" else model.layers.parameter_bytes())
    return Profile(model.model, model.whole, model.body_load_s(weight_mode), memory_bytes, Noise(), model, weight_mode)


def on_lambda(model: ModelProfile, memory_mb: int, *, cores: int = 1, noise: Noise = Noise()) -> Profile:
    """A model by its profile over memory sizes; `memory_mb` is that of a function whose plan has not chosen another.

    Raises:
        GnomonError: 400 `bad_profile` for a size that was not measured.

    """
    row = model.memories.seconds.get(memory_mb)
    if row is None:
        raise _bad(model.model, f"was not measured with {memory_mb} MB")
    return Profile(model.model, LatencyTable({cores: row}), model.body_start_s, memory_mb * MEGABYTE, noise, model, "private")


def read_profile(path: Path, weight_mode: str = "shared") -> Profile:
    """The profile in a file, a variant's table or a model's profile.

    Raises:
        GnomonError: 400 `bad_profile`, with what is wrong.

    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        if document.get("format") == FORMAT:
            return modelled(ModelProfile.from_json(document), weight_mode)
        profile = profile_from_json(document)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise _bad(path.name, f"cannot be read: {type(error).__name__}: {error}") from None
    if not profile.latency.seconds or min(min(row.values()) for row in profile.latency.seconds.values()) <= 0.0:
        raise _bad(path.name, "has no latency, or one of no time")
    if profile.noise.kind not in ("none", "lognormal", "exponential"):
        raise _bad(path.name, "has a noise that is not known")
    return profile


def profile_from_json(document: Mapping[str, Any]) -> Profile:
    """The profile that a variant's document describes."""
    noise = document.get("noise", {})
    return Profile(
        variant=str(document["variant"]),
        latency=LatencyTable.from_json(document["latency_s"]),
        load_s=float(document.get("load_s", 0.0)),
        memory_bytes=int(document.get("memory_bytes", 0)),
        noise=Noise(str(noise.get("kind", "none")), float(noise.get("cv", 0.0))),
    )


def _bad(name: str, what: str) -> GnomonError:
    return bad_request(
        "bad_profile", f"{name} {what}.", 'A profile is {"variant", "latency_s": {"cores": {"batch": seconds}}, …}.'
    )
