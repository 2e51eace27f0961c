"""The state machine of a variant's instance (INFaaS, Figure 4), as a pure function of what was measured in a period.

               loaded
    Inactive ─────────▶ Active ◀──── mitigated ───┐
        ▲                │  ▲  └──── contended ─▶ Interfered
        │  rate ≥ peak   │  │ rate < peak          ▲ │
        │                ▼  │                      │ │ rate ≥ peak
        └─ unloaded    Overloaded ── contended ────┘ │
           from any      ▲                           │
                         └───────────────────────────┘

Figure 4 has no arrow from Interfered to Overloaded, but Interfered means slow *and* not overloaded (section 4): an interfered
instance whose rate reaches its peak is Overloaded here.

**Rate.** The rate is what arrives for the instance, not what it answers: an instance that is somewhat slower than its profile
never answers its profiled peak, and would count as Active while its queue grows.

**Hysteresis.** A period's measurements are noisy, and each change of state moves queries to other instances, which changes what
the next period measures. Therefore each state is left at another value than it is entered at, and only after several periods:

- Overloaded is entered at the peak, and left where the peak is again `headroom` times the rate. That is the slack of the
  Model-Autoscaler (1.05, section 5): an instance for which the autoscaler still wants more capacity does not count as recovered.
- Interfered is entered where batches take `contended` times their profiled time, and left at `mitigated` times it. Half of the
  excess is the distance between both. A profile's own spread may be larger than either: `spread`, the mean relative deviation of
  batches from their profile, raises both, so that an instance is as slow as only contention explains, not chance.
- A state is entered after `worse_periods` consecutive periods that show it, one by default, and left for Active after
  `better_periods`, two by default. An instance that is avoided in error costs one period of a neighbour's capacity; one that is
  chosen in error costs violated objectives.
- A period with fewer than `least_batches` batches says nothing about contention: the mean of a few batches is their spread. An
  interfered instance is avoided and may have none for long, so that it counts as Active again after `retry_periods` of them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from gnomon_core.variants import VariantState

PERIOD_S = 2.0
"""Between two measurements, the paper's interval of the monitoring daemon (section 5)."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """Measurements of an instance in a period. `slowdown` is the mean of measured / profiled time over its batches."""

    rate_rps: float
    saturation_rps: float
    slowdown: float = 1.0
    batches: int = 0
    spread: float = 0.0


@dataclass(frozen=True, slots=True)
class Thresholds:
    """The thresholds at which states are entered and left; the module's docstring gives the reasons for the defaults."""

    headroom: float = 1.05
    contended: float = 1.2
    mitigated: float = 1.1
    worse_periods: int = 1
    better_periods: int = 2
    retry_periods: int = 5
    least_batches: int = 3


DEFAULT_THRESHOLDS = Thresholds()


@dataclass(frozen=True, slots=True)
class Lifecycle:
    """The state of an instance; `indicated` is the state that its last `periods` measurements show instead of it."""

    state: VariantState = VariantState.INACTIVE
    indicated: VariantState = VariantState.INACTIVE
    periods: int = 0

    def loaded(self) -> Lifecycle:
        """Mark an instance as loaded, unless it is already."""
        return _settled(VariantState.ACTIVE) if self.state is VariantState.INACTIVE else self

    def unloaded(self) -> Lifecycle:
        """Mark an instance as unloaded, from any state."""
        return _settled(VariantState.INACTIVE)

    def measured(self, measurement: Measurement, thresholds: Thresholds = DEFAULT_THRESHOLDS) -> Lifecycle:
        """The state after one more period. An instance that is not loaded stays Inactive, whatever was measured."""
        if self.state is VariantState.INACTIVE:
            return self
        indicated = indicated_state(self.state, measurement, thresholds)
        if indicated is self.state:
            return _settled(self.state)
        periods = self.periods + 1 if indicated is self.indicated else 1
        if indicated is not VariantState.ACTIVE:
            needed = thresholds.worse_periods
        elif self.state is VariantState.INTERFERED and measurement.batches < thresholds.least_batches:
            needed = thresholds.retry_periods
        else:
            needed = thresholds.better_periods
        return _settled(indicated) if periods >= needed else replace(self, indicated=indicated, periods=periods)


def indicated_state(state: VariantState, measurement: Measurement, thresholds: Thresholds) -> VariantState:
    """The state that one period's measurements show of an instance that is loaded and in this state."""
    peak_rps = measurement.saturation_rps
    if state is VariantState.OVERLOADED:
        peak_rps /= thresholds.headroom
    if measurement.rate_rps >= peak_rps:
        return VariantState.OVERLOADED
    if measurement.batches < thresholds.least_batches:
        return VariantState.ACTIVE
    limit = thresholds.mitigated if state is VariantState.INTERFERED else thresholds.contended
    return VariantState.INTERFERED if measurement.slowdown >= limit + measurement.spread else VariantState.ACTIVE


def _settled(state: VariantState) -> Lifecycle:
    return Lifecycle(state, state)
