"""`gnomon serve --platform knative`: the autoscaler class `gnomon`, beside Knative's own autoscaler.

    lead, by a Lease ▶ see every Revision ▶ the autoscaler's loop decides ▶ pods, ServerlessServices, PodAutoscalers' status

Requests do not pass through it. Its page (`knative_page`) says what was decided and why, where Bodies are, whether it sees and
may write, and how many Revisions there are and how many pods they are to have.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random, SystemRandom

import uvloop
from aiohttp import web

from gnomon_autoscaler.controller import Autoscaler
from gnomon_autoscaler.registry import SCALING, Policies
from gnomon_cli.knative_page import page
from gnomon_cli.process import begin_log, serve_until_signal
from gnomon_cli.scaling import ScalingAdapter
from gnomon_core.clock import WallClock
from gnomon_core.interfaces import Capabilities
from gnomon_core.policy_registry import refuse_strays
from gnomon_core.settings import Settings
from gnomon_gateway.scheduling.registry import SCHEDULING, Schedulers
from gnomon_platforms.knative.autoscaler.controller import AutoscalerOptions, KnativeAutoscaler
from gnomon_platforms.knative.resources import SYSTEM_NAMESPACE
from gnomon_platforms.kubernetes.client import Api, Asked, connect
from gnomon_platforms.kubernetes.lease import Leader, Tenure, Watchdog, count_from_now, identity_of_process
from gnomon_platforms.kubernetes.resources import LEASES
from gnomon_platforms.kubernetes.writes import Target, Writer

LEASE = "gnomon-knative-autoscaler"


@dataclass(frozen=True, slots=True)
class KnativeOptions:
    """What is told to it. `lease_namespace` is where the Lease is, None to lead without one. `policies` may be loaded."""

    kubeconfig: Path | None = None
    context: str | None = None
    scaled: AutoscalerOptions = field(default_factory=AutoscalerOptions)
    lease_namespace: str | None = SYSTEM_NAMESPACE
    policies: tuple[str, ...] = ()
    host: str = "127.0.0.1"
    port: int = 0


def within(options: KnativeOptions, namespace: str) -> KnativeOptions:
    """The same for one namespace only. Its Lease is there, so that each of several has its own leader."""
    return replace(options, scaled=replace(options.scaled, namespace=namespace), lease_namespace=namespace)


def capabilities(*, resizes: bool) -> Capabilities:
    """What policies may do with Revisions: a node that one names is a wish, and the scheduler's choice is accepted.

    A Deployment has a number, so Kubernetes picks its victims. Pods are resized where the cluster can; where no node can make
    Shadows, Bodies work alone.
    """
    return Capabilities(place=True, size=resizes, victim=False, resize=resizes, pair=True)


class ClassScaling(ScalingAdapter):
    """The same for Revisions. Nobody looks at their settings before they are there: all of it is done when they are read."""

    def __init__(self, policies: Policies, schedulers: Schedulers, capabilities: Callable[[], Capabilities]) -> None:
        super().__init__(policies, capabilities)
        self._known = (policies, schedulers)

    def check(self, settings: Settings) -> str:
        # Whether there is the scheduling policy that they name is the gateway's to know.
        refuse_strays(settings, *self._known, [settings.scheduler] if settings.scheduler else [])
        return super().check(settings)


class KnativeService:
    """The whole of it. `start` returns when it leads and sees everything."""

    def __init__(self, options: KnativeOptions, chance: Random, api: Api | None = None, tenure: Tenure | None = None) -> None:
        self._options = options
        self._api = api or connect(options.kubeconfig, options.context)
        self._clock = WallClock()
        self._tenure = tenure or Tenure()
        self._chance = chance
        policies = SCALING.with_named(options.policies)
        schedulers = SCHEDULING.with_named(options.policies)
        self._scaling = ClassScaling(policies, schedulers, lambda: capabilities(resizes=self.platform.resizes))
        fence = None if options.lease_namespace is None else self._tenure.check
        self.platform = KnativeAutoscaler(
            self._api, options.scaled, fence=fence, clock=self._clock, chance=chance, epoch=lambda: max(1, self._tenure.epoch)
        )
        self.autoscaler = Autoscaler(self.platform, self._clock, policies=policies)
        self._scaling.bind(self.autoscaler)
        self._page: web.AppRunner | None = None
        self._leader: Leader | None = None
        self._watchdog: Watchdog | None = None
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def leads(self) -> bool:
        """Whether it may write."""
        return self._options.lease_namespace is None or self._tenure.leading

    @property
    def asked(self) -> Asked:
        """What was asked of the API server, and how it was answered."""
        return self._api.asked

    @property
    def trouble(self) -> str:
        """What keeps it from working; empty while nothing does. One that waits for its turn to lead is well."""
        return self.platform.trouble if self.leads else ""

    @property
    def port(self) -> int:
        """Where its page listens."""
        assert self._page is not None
        port: int = self._page.addresses[0][1]
        return port

    async def start(self) -> None:
        """Lead, see everything, and begin to decide."""
        loop = asyncio.get_running_loop()
        self._page = web.AppRunner(page(self), access_log=None)
        await self._page.setup()
        await web.TCPSite(self._page, self._options.host, self._options.port).start()
        if self._options.lease_namespace is not None:
            writer = Writer(self._api, self._clock, self._chance)
            lease = Target(LEASES, self._options.lease_namespace, LEASE)
            # Nodes remember the epochs that they have obeyed, also those of an installation that was removed.
            self._leader = Leader(writer, lease, identity_of_process(), self._tenure, self._clock, counts_from=count_from_now)
            self._watchdog = Watchdog(self._tenure)
            self._watchdog.start()
            self._tasks.append(loop.create_task(self._leader.run()))
            await self._leader.leading.wait()
        await self.platform.start(self._scaling)
        self._tasks.append(loop.create_task(self.autoscaler.run()))

    async def stop(self) -> None:
        """Decide nothing more; Revisions stay as they are, for whoever leads next."""
        for task in reversed(self._tasks):
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        await self.platform.stop()
        if self._leader is not None:
            await self._leader.release()
        if self._watchdog is not None:
            self._watchdog.stop()
        if self._page is not None:
            await self._page.cleanup()
        self._api.close()


def serve_knative(options: KnativeOptions, *, verbose: bool = False) -> None:
    """Serve until SIGINT or SIGTERM.

    Raises:
        GnomonError: 501 without the Kubernetes client, 503 where there is no way to a cluster.

    """
    begin_log(verbose=verbose)
    said = f"Gnomon scales Revisions of the class {options.scaled.class_name}."
    uvloop.run(serve_until_signal(lambda: KnativeService(options, SystemRandom()), lambda _: said))
