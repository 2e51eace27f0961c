"""The ingress as a process: an HAProxy, a controller that programs it, and a Lease for who writes status.

Whoever loses the Lease goes on programming its own proxy, and only writes no more: requests do not depend on who leads.
"""

from __future__ import annotations

import asyncio
import logging
import random
from dataclasses import dataclass

from gnomon_core.clock import WallClock
from gnomon_platforms.knative.ingress.controller import Controller, ControllerOptions
from gnomon_platforms.knative.ingress.page import Told, page
from gnomon_platforms.knative.ingress.proxy import Proxy, ProxyOptions
from gnomon_platforms.knative.resources import SYSTEM_NAMESPACE
from gnomon_platforms.kubernetes.client import Api
from gnomon_platforms.kubernetes.lease import Candidacy, Tenure
from gnomon_platforms.kubernetes.resources import LEASES
from gnomon_platforms.kubernetes.writes import Target

LEASE = "gnomon-ingress"

_LOG = logging.getLogger("gnomon.ingress")


@dataclass(frozen=True, slots=True)
class ServingOptions:
    """What the operator says. Without a namespace for the Lease this process is the only one, and writes."""

    controller: ControllerOptions
    proxy: ProxyOptions
    lease_namespace: str | None = SYSTEM_NAMESPACE
    leave_proxy: bool = False
    """Whether HAProxy goes on when this process ends in good order, for the next to take over."""
    drain_s: float = 25.0
    """How long HAProxy may answer what it holds when this process ends."""
    page: str = ""
    """Where it tells how it is, `ADDRESS:PORT` or `unix@PATH`; empty for nowhere."""


async def serve(api: Api, options: ServingOptions) -> None:
    """Serve until cancelled.

    Raises:
        GnomonError: the cluster cannot be seen at the start, or the page cannot be had.

    """
    clock, chance = WallClock(), random.SystemRandom()
    proxy = Proxy(options.proxy, clock)
    own, _ = options.controller.own
    if options.lease_namespace is None:
        alone = Controller(api, proxy, options.controller, clock=clock, chance=chance)
        try:
            async with page(options.page, Told(api.asked, lambda: True, proxy, alone, own)):
                await alone.run()
        finally:
            await _end(proxy, options)
        return
    # A process that loses the Lease writes no status any more and goes on programming its proxy: it need not end.
    tenure = Tenure(gone=lambda reason: _LOG.warning("%s", reason))
    candidacy = Candidacy(api, Target(LEASES, options.lease_namespace, LEASE), clock, chance, tenure=tenure)
    controller = Controller(
        api, proxy, options.controller, leading=lambda: candidacy.leads, fence=tenure.check, clock=clock, chance=chance
    )
    await candidacy.start()
    try:
        async with page(options.page, Told(api.asked, lambda: candidacy.leads, proxy, controller, own)):
            await controller.run()
    finally:
        # The next leader need not wait until HAProxy has answered what it holds.
        await asyncio.gather(candidacy.stop(), _end(proxy, options))


async def _end(proxy: Proxy, options: ServingOptions) -> None:
    if not options.leave_proxy:
        await proxy.close(options.drain_s)
