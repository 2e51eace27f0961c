"""The cost of a function's instances: cores and memory times time, and the share of the core time that computed.

An `InstanceLifetime` is how long a simulated instance existed, with how many cores, and what each of its calls cost.

CPU utility is AsyFunc's (section 7.2): cores × seconds spent in inference, divided by those that instances had. A Body is in
inference from its batch's beginning to its end, also while it waits for its Shadow; a Shadow only while it computes, so that one
that waits is idle.

Memory is what each instance holds, for as long as it exists, and, where weights are shared, one copy of them on each node for as
long as an instance is there.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gnomon_core.fleet import Instance, InstanceKind
from gnomon_core.lambda_pricing import LAMBDA_X86
from gnomon_core.units import MEGABYTE
from gnomon_simulator.profiles import Factor, Profile


@dataclass(slots=True)
class InstanceLifetime:
    """An instance from its creation to its end; what it costs adds up in `core_s` as its cores change.

    `busy_s` is how long a Shadow computed; a Body's dispatcher knows that of Bodies. A Shadow that becomes a Body begins a second
    one, of the same id. Where memory is sold, as on Lambda, each batch is a call that is paid for, and so is the start.
    """

    instance: Instance
    profile: Profile
    factor: Factor | None
    cores_since_s: float
    core_s: float = 0.0
    busy_s: float = 0.0
    gone_s: float | None = None
    calls: int = 0
    calls_usd: float = 0.0
    was_of: str | None = None
    """Id of a Shadow's Body, until it is promoted."""
    borrowed_cores: int = 0
    """Cores of its present batch beside those that it keeps."""

    @property
    def held_cores(self) -> int:
        """Cores that no other instance can have now: all its own, or those that it keeps and its batch has borrowed."""
        kept = self.instance.idle_cores
        return self.instance.cores if kept is None else kept + self.borrowed_cores

    def account(self, now_s: float) -> None:
        """Add the core seconds since the last change of its cores."""
        self.core_s += self.held_cores * (now_s - self.cores_since_s)
        self.cores_since_s = now_s

    def call(self, seconds: float) -> None:
        """Count one invocation of this duration; ignored where instances are held and not invoked."""
        if self.profile.model is not None and self.profile.model.memories.seconds:
            self.calls += 1
            self.calls_usd += LAMBDA_X86.invoke_usd(seconds, self.instance.memory_bytes // MEGABYTE)


@dataclass(frozen=True, slots=True)
class Cost:
    """Sums over a function's instances. `instance_s` and `body_core_s` are those of Bodies, `shadow_*` those of Shadows.

    `calls` and `calls_usd` are what Lambda would send a bill for, where the profile is one over memory sizes.
    """

    instance_s: float = 0.0
    body_core_s: float = 0.0
    body_busy_core_s: float = 0.0
    shadow_s: float = 0.0
    shadow_core_s: float = 0.0
    shadow_busy_core_s: float = 0.0
    shadows: int = 0
    memory_byte_s: float = 0.0
    calls: int = 0
    calls_usd: float = 0.0

    @property
    def core_s(self) -> float:
        """Cores × seconds of all instances."""
        return self.body_core_s + self.shadow_core_s

    @property
    def cpu_utility(self) -> float:
        """The share of that which was spent in inference."""
        return (self.body_busy_core_s + self.shadow_busy_core_s) / self.core_s if self.core_s else 0.0


def cost(lifetimes: Sequence[InstanceLifetime], now_s: float, *, busy_core_s: float) -> Cost:
    """The cost of these instances until `now_s`; `busy_core_s` is the core time that their Bodies spent in inference."""
    bodies = [lifetime for lifetime in lifetimes if lifetime.instance.kind is InstanceKind.BODY]
    shadows = [lifetime for lifetime in lifetimes if lifetime.instance.kind is InstanceKind.SHADOW]
    return Cost(
        instance_s=sum(_length_s(lifetime, now_s) for lifetime in bodies),
        body_core_s=sum(lifetime.core_s for lifetime in bodies),
        body_busy_core_s=busy_core_s,
        shadow_s=sum(_length_s(lifetime, now_s) for lifetime in shadows),
        shadow_core_s=sum(lifetime.core_s for lifetime in shadows),
        shadow_busy_core_s=sum(lifetime.busy_s * lifetime.instance.cores for lifetime in shadows),
        shadows=len(shadows),
        memory_byte_s=sum(lifetime.instance.memory_bytes * _length_s(lifetime, now_s) for lifetime in lifetimes)
        + _shared_byte_s(bodies, now_s),
        calls=sum(lifetime.calls for lifetime in bodies),
        calls_usd=sum(lifetime.calls_usd for lifetime in bodies),
    )


def _length_s(lifetime: InstanceLifetime, now_s: float) -> float:
    return (now_s if lifetime.gone_s is None else lifetime.gone_s) - lifetime.instance.started_s


def _shared_byte_s(bodies: Iterable[InstanceLifetime], now_s: float) -> float:
    """The weights that the Bodies of each node share. A Shadow there needs no other page of them; one elsewhere holds its own."""
    spans: defaultdict[str, list[tuple[float, float, int]]] = defaultdict(list)
    for lifetime in bodies:
        model = lifetime.profile.model
        if model is not None and lifetime.profile.weight_mode == "shared":
            end_s = now_s if lifetime.gone_s is None else lifetime.gone_s
            spans[lifetime.instance.node].append((lifetime.instance.started_s, end_s, model.layers.parameter_bytes()))
    return sum(_covered_byte_s(sorted(on_node)) for on_node in spans.values())


def _covered_byte_s(spans: Sequence[tuple[float, float, int]]) -> float:
    """Spans that overlap count once."""
    total, covered_s = 0.0, float("-inf")
    for begin_s, end_s, size in spans:
        total += size * max(0.0, end_s - max(begin_s, covered_s))
        covered_s = max(covered_s, end_s)
    return total
