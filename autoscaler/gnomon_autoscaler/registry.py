"""The scaling policies by name. A policy is one line of `BUILT_IN`.

Those of third parties are entry points of the group `gnomon.scaling_policies` (`gnomon_core.policy_registry`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import Protocol, TypeAlias

from gnomon_autoscaler.policies import asyfunc, hpa, kpa, openfaas, rates
from gnomon_autoscaler.policies.fixed import Fixed, Provided
from gnomon_autoscaler.policies.mark import Mark
from gnomon_autoscaler.policies.target_tracking import TargetTracking
from gnomon_autoscaler.replica_policy import DesiredCount, Memory, ReplicaPolicy, ReplicaPolicyAdapter
from gnomon_autoscaler.wrappers import DownDelay, RateLimit, standard
from gnomon_core.errors import bad_request
from gnomon_core.interfaces import Capabilities, ScalingPolicy
from gnomon_core.packaging import how_to_install
from gnomon_core.policy_registry import GROUPS, Kind, PolicyPlugin
from gnomon_core.profiles import ModelProfile
from gnomon_core.scaling import Observation
from gnomon_core.settings import Setting, Settings

Policies: TypeAlias = Mapping[str, PolicyPlugin[ScalingPolicy]]


def replica_policy_plugin(
    make: Callable[[Settings], ReplicaPolicy], about: str, settings: tuple[Setting, ...] = ()
) -> PolicyPlugin[ScalingPolicy]:
    """The plug-in of a replica policy: in the standard wrappers, with its count turned into actions."""
    return PolicyPlugin(lambda function: ReplicaPolicyAdapter(standard(make(function))), about, settings)


class _FormerReplicaPolicy(Protocol):
    """A replica policy of a package that was written when `desired_count` was called `wish`."""

    name: str
    version: int
    period_s: float
    default_scheduler: str

    def wish(self, seen: Observation, memory: Memory) -> DesiredCount: ...


class _Renamed:
    """Adapts a former replica policy, whose method is `wish`, to `ReplicaPolicy`."""

    def __init__(self, former: _FormerReplicaPolicy) -> None:
        self.name, self.version, self.period_s = former.name, former.version, former.period_s
        self.default_scheduler = former.default_scheduler
        self.desired_count = former.wish


def counted(
    make: Callable[[Settings], _FormerReplicaPolicy], about: str, settings: tuple[Setting, ...] = ()
) -> PolicyPlugin[ScalingPolicy]:
    """Former name of `replica_policy_plugin`; installed plug-ins import it, with policies whose method is `wish`."""
    return replica_policy_plugin(lambda function: _Renamed(make(function)), about, settings)


def _kpa(_: Settings) -> ReplicaPolicy:
    return RateLimit(kpa.Kpa(), up=kpa.MAX_SCALE_UP_RATE, down=kpa.MAX_SCALE_DOWN_RATE)


def _hpa(_: Settings) -> ReplicaPolicy:
    return DownDelay(RateLimit(hpa.Hpa(), up=hpa.MAX_UP_FACTOR, up_by=hpa.MAX_UP_BY), hpa.stabilization_s)


def _gnomon(settings: Settings) -> ScalingPolicy:
    with _importing_numpy("gnomon replays arrivals"):
        from gnomon_autoscaler.policies.gnomon import gnomon  # noqa: PLC0415 - it needs numpy
    return gnomon(settings)


def _bridging(_: Settings) -> ScalingPolicy:
    with _importing_numpy("fixed+shadows pairs instances"):
        from gnomon_autoscaler.policies.gnomon.bridging import Bridging  # noqa: PLC0415 - it needs numpy
    return Bridging()


def _batch(settings: Settings) -> ScalingPolicy:
    return _planning("batch", settings)


def _batch_plus(settings: Settings) -> ScalingPolicy:
    return _planning("batch+", settings)


def _planning(name: str, settings: Settings) -> ScalingPolicy:
    """Make a policy of BATCH's kind."""
    with _importing_numpy(f"{name} plans"):
        from gnomon_autoscaler.policies.batch.policy import Batch  # noqa: PLC0415 - it needs numpy
    return Batch(name, settings)


@contextmanager
def _importing_numpy(does: str) -> Iterator[None]:
    """Import a policy at its first use: a gateway without one does not wait for numpy.

    Raises:
        GnomonError: 400 `package_missing`.

    """
    try:
        yield
    except ImportError as error:
        raise bad_request("package_missing", f"scaling policy {does} with numpy: {error}.", how_to_install("planner")) from None


BUILT_IN: Policies = MappingProxyType(
    {
        "asyfunc": PolicyPlugin(
            asyfunc.asyfunc, "Bodies for the stable load, Shadows for bursts, by the model's profile (AsyFunc)."
        ),
        "asyfunc-": PolicyPlugin(asyfunc.ablated, "asyfunc without layer-level scaling, or without what gnomon/ablation names."),
        "batch": PolicyPlugin(
            _batch, "The cheapest buffer (B, T) that meets the SLO, planned from the last hour's arrivals (BATCH)."
        ),
        "batch+": PolicyPlugin(_batch_plus, "batch's B and instances with the scheduler adaptive-fill instead of a timeout."),
        "fixed": replica_policy_plugin(lambda _: Fixed(), "As many as com.openfaas.scale.min, or as an operator asked for."),
        "fixed+shadows": PolicyPlugin(_bridging, "As fixed, with Shadows until the requested instances have started."),
        "gnomon": PolicyPlugin(
            _gnomon, "The fewest Bodies that would have kept the objective in the last minutes, on cores borrowed by the batch."
        ),
        "hpa": replica_policy_plugin(_hpa, "CPU use against gnomon/target-cpu-percent, as Kubernetes does it."),
        "k-lv": replica_policy_plugin(
            lambda _: rates.k_last_value(), "For 1.5 × the rate of the last 30 s (AsyFunc, section 2)."
        ),
        "kpa": replica_policy_plugin(
            _kpa, "Concurrency or requests per second in a stable and a panic window, as Knative does it."
        ),
        "lv": replica_policy_plugin(lambda _: rates.last_value(), "For the rate of the last 30 s (AsyFunc, section 2)."),
        "mark": PolicyPlugin(
            lambda _: Mark(), "For a predicted rate, so that bursts overflow to functions where a platform has some (MArk)."
        ),
        "od": replica_policy_plugin(
            lambda _: rates.on_demand(), "For the rate of the last second, on demand (AsyFunc, section 2)."
        ),
        "openfaas": replica_policy_plugin(
            openfaas.openfaas, "OpenFaaS's alert above 5 requests/s, or its formula where com.openfaas.scale.type is set."
        ),
        "target-tracking": replica_policy_plugin(
            lambda _: TargetTracking(),
            "Requests per instance and minute against 60 × gnomon/target-rps, as Amazon SageMaker does it.",
        ),
    }
)
SCALING: Kind[ScalingPolicy] = Kind("scaling policy", "gnomon/autoscaler", GROUPS[0], BUILT_IN)


def provided(policies: Policies = BUILT_IN) -> Policies:
    """The policies for a foreign provider that scales replicas itself: `openfaas` leaves the count to the provider.

    A function that names another one of `policies` gets the error 400 that says why.
    """
    return {
        **{
            name: PolicyPlugin(_refuse(name), "Not here: the provider scales.", offer.settings)
            for name, offer in policies.items()
        },
        "openfaas": PolicyPlugin(lambda _: Provided(), "The provider scales; as many requests under way as its replicas take."),
    }


def _refuse(name: str) -> Callable[[Settings], ScalingPolicy]:
    def make(settings: Settings) -> ScalingPolicy:
        if not settings.autoscaler_named and settings.autoscaler == name:
            return Provided()
        raise bad_request(
            "unsupported_policy",
            f"scaling policy {name} cannot be used here: the provider decides how many replicas there are.",
            "Leave gnomon/autoscaler out; gnomon/scheduler, gnomon/max-batch and gnomon/max-wait-ms hold here too.",
        )

    return make


def scaling_policy(name: str, settings: Settings, policies: Policies = BUILT_IN) -> ScalingPolicy:
    """The policy of that name for a function with these settings.

    Raises:
        GnomonError: 400 `unknown_policy`, listing the known ones; or what it or its own settings' table has against them.

    """
    return SCALING.policy(name, settings, policies)


def require(policy: ScalingPolicy, capabilities: Capabilities) -> None:
    """Refuse a policy that needs what the platform cannot do. A policy names its needs in an attribute `needs`.

    Raises:
        GnomonError: 400 `unsupported_policy`, naming what is missing.

    """
    needs: frozenset[str] = getattr(policy, "needs", frozenset())
    missing = sorted(need for need in needs if not getattr(capabilities, need))
    if missing:
        raise bad_request(
            "unsupported_policy",
            f"scaling policy {policy.name} needs what this platform cannot do: {', '.join(missing)}.",
            "Choose another policy, or deploy the function on another platform.",
        )


def decides_by_profile(policy: ScalingPolicy) -> bool:
    """Return whether the policy cannot decide without a model's profile. Such a policy has the attribute `needs_profile`."""
    return bool(getattr(policy, "needs_profile", False))


def require_profile(policy: ScalingPolicy, settings: Settings, profile: ModelProfile | None) -> None:
    """Refuse a policy that decides by a profile for a function that has none.

    Raises:
        GnomonError: 400 `no_profile`, with the command that measures one.

    """
    if not decides_by_profile(policy):
        return
    model = settings.model
    if model is None:
        raise bad_request(
            "no_profile",
            f"scaling policy {policy.name} decides by a model's profile, and the function has no model.",
            "Name one in gnomon/model and measure it with `gnomon models profile NAME`, or choose another policy.",
        )
    if profile is None:
        raise bad_request(
            "no_profile",
            f"scaling policy {policy.name} decides by the model's profile, and {model[:100]} has none here.",
            f"Measure it with `gnomon models profile {model[:100]}`, or choose another policy.",
        )
    if all(profile.whole.at(cores, 1) is None for cores in range(1, settings.max_cores + 1)):
        raise bad_request(
            "no_profile",
            f"the profile of {model[:100]} knows no number of cores up to gnomon/max-cores, {settings.max_cores}.",
            f"Measure them with `gnomon models profile {model[:100]}`, or choose another policy.",
        )
