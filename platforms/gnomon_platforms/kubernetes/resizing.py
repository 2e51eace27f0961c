"""Whether the cluster gives pods other cores while they run, which Kubernetes does since 1.33.

A pod is born with its deployment's cores, and an instance of another size gets its own by the subresource `resize`. Where there
is none it would never have them, be replaced after the time for a start, and its successor too: policies that choose cores are
refused there. What is refused of a single pod, by a quota or a webhook, is no size that is on its way.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from gnomon_core.errors import GnomonError
from gnomon_platforms.kubernetes.api import Api
from gnomon_platforms.kubernetes.errors import Refused, Unreachable

CORE_GROUP, SUBRESOURCE = "/api/v1", "pods/resize"
REFUSED_S = 30.0
"""A size that was refused is not asked for sooner again. Until then it is not on its way, and who decides on it is told so."""

_LOG = logging.getLogger("gnomon.kubernetes")


@dataclass(frozen=True, slots=True)
class RefusedSize:
    """So many cores a pod was refused, and why; until when they are not asked for."""

    cores: int
    why: GnomonError
    until_s: float


def resizes_pods(api: Api) -> bool:
    """Whether the API server offers it. One that does not say so is believed to: its answer to the first resize is told."""
    try:
        offered = api.call("GET", CORE_GROUP).get("resources") or ()
    except (Refused, Unreachable) as error:
        _LOG.warning("whether pods can be resized is not known: %s", error)
        return True
    if any(one.get("name") == SUBRESOURCE for one in offered):
        return True
    _LOG.warning("this API server offers no %s: policies that choose an instance's cores are refused", SUBRESOURCE)
    return False
