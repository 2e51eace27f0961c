"""Whether the cluster gives pods other cores while they run, which Kubernetes does since 1.33.

A pod is born with its deployment's cores, and an instance of another size gets its own by the subresource `resize`. Where there
is none it would never have them, be replaced after the time for a start, and its successor too: policies that choose cores are
refused there.
"""

from __future__ import annotations

import logging

from gnomon_platforms.kubernetes.api import Api
from gnomon_platforms.kubernetes.errors import Refused, Unreachable

CORE_GROUP, SUBRESOURCE = "/api/v1", "pods/resize"

_LOG = logging.getLogger("gnomon.kubernetes")


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
