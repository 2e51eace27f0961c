"""The scheduling policies by name.

Policies of third parties are entry points of the group `gnomon.scheduling_policies`: a callable that takes the function's
settings and returns a `SchedulingPolicy`. They are loaded only if the operator names them (`allowed`), never because they are
installed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from importlib.metadata import entry_points

from gnomon_core.errors import GnomonError, bad_request
from gnomon_core.seams import SchedulingPolicy
from gnomon_core.settings import Settings
from gnomon_gateway.scheduling.adaptive import Adaptive, AdaptivePaper
from gnomon_gateway.scheduling.fixed import Fixed
from gnomon_gateway.scheduling.immediate import Immediate

GROUP = "gnomon.scheduling_policies"

_OWN: Mapping[str, tuple[Callable[[Settings], SchedulingPolicy], str]] = {
    "adaptive": (
        lambda settings: Adaptive(settings.slo_s, settings.max_wait_s),
        "sends a batch when waiting for one more request would miss the objective",
    ),
    "adaptive-paper": (
        lambda settings: AdaptivePaper(settings.slo_s),
        "adaptive as printed in AsyFunc: drops what cannot meet the objective",
    ),
    "fixed": (
        lambda settings: Fixed(settings.max_batch, settings.max_wait_s or 0.0),
        "sends a batch when it is full or its oldest request has waited gnomon/max-wait-ms",
    ),
    "immediate": (lambda _: Immediate(), "sends whatever waits as soon as an instance is idle"),
}


def scheduling_policies(allowed: Collection[str] = ()) -> Mapping[str, str]:
    """The known names, sorted, each with the sentence that describes it."""
    known = {name: sentence for name, (_, sentence) in _OWN.items()}
    known |= dict.fromkeys(allowed, "a policy that the operator added")
    return dict(sorted(known.items()))


def scheduling_policy(name: str, settings: Settings, allowed: Collection[str] = ()) -> SchedulingPolicy:
    """A new policy for a function with these settings.

    Raises:
        GnomonError: 400 `unknown_policy`, naming the known ones.

    """
    if name in _OWN:
        return _OWN[name][0](settings)
    if name in allowed:
        for point in entry_points(group=GROUP, name=name):
            policy: SchedulingPolicy = point.load()(settings)
            return policy
    raise _unknown(name, allowed)


def _unknown(name: str, allowed: Collection[str]) -> GnomonError:
    return bad_request(
        "unknown_policy",
        f"scheduling policy {name!r} is not known.",
        f"Known ones: {', '.join(scheduling_policies(allowed))}.",
    )
