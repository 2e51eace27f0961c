"""A stock gateway of OpenFaaS in front of us, which scales as well: by its alerts, by hand, and from zero.

Its Community rule steps up while a function has more than five requests a second, goes back to the minimum after that, and never
asks for more than five. The function's own policy sees the queue itself and knows no such bound: taken for an operator's wishes,
alerts would end instances under load. Of two who set one number, the function has named one:

    nobody serves, or gnomon/autoscaler is `fixed` ▶ carried out: that is how a gateway wakes a function
    any other policy ▶ left aside; one line in the function's log, and one in ours

An alert and a hand look the same from here. The answer is 202 either way, because an AlertManager repeats what was refused.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from gnomon_core.functions import FunctionKey
from gnomon_gateway.service import FunctionStatus

LEFT_TO_OTHERS = "fixed"
_LOG = logging.getLogger("gnomon.openfaas")


class OuterScaling:
    """What is done with the numbers that a gateway in front asks for. `log` keeps a line for the function's users."""

    def __init__(self, log: Callable[[FunctionKey, str, str], None]) -> None:
        self._log = log
        self._told: dict[FunctionKey, str] = {}
        """The policy that each function had when it was told."""

    def heeds(self, status: FunctionStatus, replicas: int) -> bool:
        """Whether this number is to be carried out; told once for each policy of a function if it is not."""
        key, policy = status.spec.key, status.spec.settings.autoscaler
        if policy == LEFT_TO_OTHERS:
            return True
        if not status.available_replicas:
            # Twenty requests that come to nobody are twenty wishes for one instance: the first begins it.
            return replicas > status.replicas
        if replicas != status.replicas and self._told.get(key) != policy:
            self._told[key] = policy
            told = (
                f"the gateway in front asks for {replicas} instances: left aside, {policy} decides; "
                f"with gnomon/autoscaler: {LEFT_TO_OTHERS} it would be heeded"
            )
            self._log(key, "", f"gnomon: {told}")
            _LOG.warning("%s: %s", key, told)
        return False

    def forget(self, key: FunctionKey) -> None:
        """The function is gone."""
        self._told.pop(key, None)
