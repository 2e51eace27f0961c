"""The scaling policies by name. A policy is one line of `BUILT_IN`.

A value of the table makes a policy for a function's settings. Policies of third parties are entry points of the group
`gnomon.scaling_policies` whose object is such a maker; they are loaded only if the operator names them, so that installing a
package changes nothing by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from importlib.metadata import entry_points
from types import MappingProxyType
from typing import TypeAlias

from gnomon_autoscaler.by_count import ByCount
from gnomon_autoscaler.counting import CountPolicy
from gnomon_autoscaler.policies import hpa, kpa, openfaas, rates
from gnomon_autoscaler.policies.fixed import Fixed
from gnomon_autoscaler.wrappers import DownDelay, RateLimit, standard
from gnomon_core.errors import bad_request
from gnomon_core.seams import Capabilities, ScalingPolicy
from gnomon_core.settings import Settings

GROUP = "gnomon.scaling_policies"

Maker: TypeAlias = Callable[[Settings], ScalingPolicy]
Policies: TypeAlias = Mapping[str, Maker]


def counted(make: Callable[[Settings], CountPolicy]) -> Maker:
    """A maker of full policies from a maker of count policies: the standard wrappers, then actions."""
    return lambda settings: ByCount(standard(make(settings)))


def _kpa(_: Settings) -> CountPolicy:
    return RateLimit(kpa.Kpa(), up=kpa.MAX_SCALE_UP_RATE, down=kpa.MAX_SCALE_DOWN_RATE)


def _hpa(_: Settings) -> CountPolicy:
    return DownDelay(RateLimit(hpa.Hpa(), up=hpa.MAX_UP_FACTOR, up_by=hpa.MAX_UP_BY), hpa.stabilization_s)


BUILT_IN: Policies = MappingProxyType(
    {
        "fixed": counted(lambda _: Fixed()),
        "hpa": counted(_hpa),
        "k-lv": counted(lambda _: rates.k_last_value()),
        "kpa": counted(_kpa),
        "lv": counted(lambda _: rates.last_value()),
        "od": counted(lambda _: rates.on_demand()),
        "openfaas": counted(openfaas.openfaas),
    }
)


def scaling_policy(name: str, settings: Settings, policies: Policies = BUILT_IN) -> ScalingPolicy:
    """The policy of that name for a function with these settings.

    Raises:
        GnomonError: 400 `unknown_policy`, listing the known ones; or what the policy has against the settings.

    """
    make = policies.get(name)
    if make is None:
        raise bad_request(
            "unknown_policy",
            f"annotation gnomon/autoscaler is {name[:100]!r}, which is no scaling policy.",
            f"Known ones: {', '.join(sorted(policies))}.",
        )
    return make(settings)


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


def with_entry_points(names: Iterable[str]) -> Policies:
    """The built-in policies and the installed ones that the operator names.

    Raises:
        GnomonError: 400 `unknown_policy` for a name that no installed package offers or that is built in.

    """
    offered = {point.name: point for point in entry_points(group=GROUP)}
    policies = dict(BUILT_IN)
    for name in names:
        if name in BUILT_IN:
            raise bad_request(
                "unknown_policy", f"scaling policy {name!r} is built in.", "It needs no naming; choose another name."
            )
        if name not in offered:
            there = ", ".join(sorted(offered)) or "none"
            raise bad_request(
                "unknown_policy",
                f"no installed package offers a scaling policy {name!r}.",
                f"Offered in the entry point group {GROUP}: {there}. Install the package into Gnomon's environment.",
            )
        policies[name] = offered[name].load()
    return policies
