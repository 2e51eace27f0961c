"""How long a variant takes: the measured table that stands for its instances in a simulation.

A profile is a JSON file; seconds by cores and batch:

    {"variant": "efficientnet-lite0", "load_s": 0.03, "memory_bytes": 120000000,
     "latency_s": {"1": {"1": 0.011, "4": 0.036, "8": 0.070}}, "noise": {"kind": "lognormal", "cv": 0.05}}

Between two measured batches it is read on the straight line between them, beyond the largest in proportion to it.
Noise multiplies each batch's latency by a random factor of mean 1: `lognormal` with a coefficient of variation, or `exponential`.
"""

from __future__ import annotations

import json
import math
import random
from bisect import bisect_left
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeAlias

from gnomon_core.errors import GnomonError, bad_request
from gnomon_core.pairs import Pair

Factor: TypeAlias = Callable[[random.Random], float]


@dataclass(frozen=True, slots=True)
class Noise:
    """How much a batch's latency varies around the table: `none`, `lognormal` or `exponential`."""

    kind: str = "none"
    cv: float = 0.0

    def factor(self) -> Factor | None:
        """What draws the factor of one batch; None where every batch takes what the table says."""
        if self.kind == "none" or (self.kind == "lognormal" and self.cv == 0.0):
            return None
        if self.kind == "exponential":
            return lambda chance: chance.expovariate(1.0)
        # A lognormal of mean 1 has μ = −σ²/2, and its coefficient of variation is √(exp σ² − 1).
        sigma = math.sqrt(math.log1p(self.cv**2))
        return lambda chance: chance.lognormvariate(-(sigma**2) / 2, sigma)


@dataclass(frozen=True, slots=True)
class Profile:
    """One variant's tables. It is a `LatencyModel` for any variant's name, because a simulated function has one variant.

    `load_s` lies between creating an instance and its first batch.
    """

    variant: str
    latency_s: Mapping[int, Mapping[int, float]]
    load_s: float = 0.0
    memory_bytes: int = 0
    noise: Noise = Noise()

    def seconds(self, variant: str, body_cores: int, batch: int, pair: Pair | None = None) -> float | None:
        """The latency of a batch; None for a number of cores that was not measured, and for pairs, of which it knows nothing."""
        del variant
        if pair is not None:
            return None
        measured = self.latency_s.get(body_cores)
        return None if measured is None else _at(measured, batch)


def constant(variant: str, service_s: float, *, cores: int = 1, load_s: float = 0.0, noise: Noise = Noise()) -> Profile:
    """A variant that takes the same time for each request of a batch, one after the other."""
    return Profile(variant, MappingProxyType({cores: MappingProxyType({1: service_s})}), load_s, 0, noise)


def read_profile(path: Path) -> Profile:
    """The profile in a file.

    Raises:
        GnomonError: 400 `bad_profile`, with what is wrong.

    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        profile = profile_from_json(document)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise _bad(path.name, f"cannot be read: {type(error).__name__}: {error}") from None
    for cores, measured in profile.latency_s.items():
        if cores < 1 or not measured or any(batch < 1 or not 0 < seconds < math.inf for batch, seconds in measured.items()):
            raise _bad(path.name, f"has a wrong row for {cores} cores")
    if not profile.latency_s or profile.noise.kind not in ("none", "lognormal", "exponential"):
        raise _bad(path.name, "has no latency, or a noise that is not known")
    return profile


def profile_from_json(document: Mapping[str, Any]) -> Profile:
    """The profile that a document describes; unchecked."""
    noise = document.get("noise", {})
    return Profile(
        variant=str(document["variant"]),
        latency_s=MappingProxyType(
            {
                int(cores): MappingProxyType({int(batch): float(seconds) for batch, seconds in sorted(row.items(), key=_number)})
                for cores, row in document["latency_s"].items()
            }
        ),
        load_s=float(document.get("load_s", 0.0)),
        memory_bytes=int(document.get("memory_bytes", 0)),
        noise=Noise(str(noise.get("kind", "none")), float(noise.get("cv", 0.0))),
    )


def _number(row: tuple[str, float]) -> int:
    return int(row[0])


def _at(measured: Mapping[int, float], batch: int) -> float:
    if batch in measured:
        return measured[batch]
    batches = sorted(measured)
    above = bisect_left(batches, batch)
    if above == len(batches):
        return measured[batches[-1]] * batch / batches[-1]
    if above == 0:
        return measured[batches[0]]
    left, right = batches[above - 1], batches[above]
    return measured[left] + (batch - left) / (right - left) * (measured[right] - measured[left])


def _bad(name: str, what: str) -> GnomonError:
    return bad_request(
        "bad_profile", f"{name} {what}.", 'A profile is {"variant", "latency_s": {"cores": {"batch": seconds}}, …}.'
    )
