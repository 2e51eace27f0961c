"""Resource efficiency η: throughput per core plus throughput per unit of memory (line 7 of Algorithm 1, line 15 of Algorithm 2).

    η = n / (c·t) + n / (ρ·m·t)

n are the samples that an instance of c cores and memory m works off in t. ρ = MACs / parameter size makes ρ·m a number of MACs; κ
says how many cores a GMAC is worth, so that the two terms have the same unit:

    ρ·m = κ · GMACs of the model · m / size of its parameters

κ follows from the profile (`calibrated`): the cores that execute a GMAC within the objective. Then c and ρ·m both count cores
that are busy for one objective, and no unit decides the result.

Example: a model of 4 GMACs and 100 MB, κ = 1: an instance that holds 150 MB is worth 6 cores. With 2 cores and 8 samples in 0.5
s, η = 8 / (2 · 0.5) + 8 / (6 · 0.5) = 10.67.

The sum is the paper's heuristic for its objective, to serve the rate with the least Σ(c + ρ·m); `objective` ranks by that itself,
n / ((c + ρ·m)·t). They can disagree: docs/decisions/0011-mls.md.
"""

from __future__ import annotations

from dataclasses import dataclass

from gnomon_core.profiles import ModelProfile

GIGA = 1e9


def calibrated(profile: ModelProfile, slo_s: float) -> float:
    """κ in cores per GMAC: core-seconds that the profile's machine takes for a GMAC, by the objective; 0 without MACs.

    Example: 0.025 core-seconds per GMAC and an SLO of 0.5 s make 0.05 cores per GMAC: ρ·m of a 4 GMAC model is 0.2 cores.
    """
    return profile.core_seconds_per_gmac() / slo_s


@dataclass(frozen=True, slots=True)
class Efficiency:
    """η for one model. `cores_per_byte` is κ·ρ: how many cores a byte of memory is worth."""

    profile: ModelProfile
    cores_per_byte: float
    overhead_counts: bool = True
    objective: bool = False

    @staticmethod
    def of(profile: ModelProfile, kappa: float, *, overhead_counts: bool = True, objective: bool = False) -> Efficiency:
        """η with ρ of the model's layers and κ cores per GMAC. Memory costs nothing where a model has no parameters."""
        parameter_bytes = profile.layers.parameter_bytes()
        cores_per_byte = kappa * profile.layers.macs() / GIGA / parameter_bytes if parameter_bytes else 0.0
        return Efficiency(profile, cores_per_byte, overhead_counts, objective)

    def memory_cores(self, parameter_bytes: int) -> float:
        """ρ·m of an instance with so many bytes of weights, in cores."""
        held_bytes = self.profile.memory_bytes(parameter_bytes) if self.overhead_counts else parameter_bytes
        return self.cores_per_byte * held_bytes

    def at(self, samples: int, seconds: float, cores: int, parameter_bytes: int) -> float:
        """η of an instance with so many cores and weights that works off `samples` in `seconds`."""
        return self.of_rate(samples / seconds, cores, parameter_bytes)

    def of_rate(self, rate_rps: float, cores: int, *parameter_bytes: int) -> float:
        """η of so much throughput by instances with so many cores together, each with so many bytes of weights."""
        memory_cores = sum(self.memory_cores(each) for each in parameter_bytes)
        if self.objective:
            return rate_rps / (cores + memory_cores)
        return rate_rps / cores + (rate_rps / memory_cores if memory_cores else 0.0)
