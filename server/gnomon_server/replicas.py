"""Several gateway replicas on a cluster: this one's part in sharing the functions, and what starts when it leads.

    every replica   functions, instances and queues; the internal listener; load reports to the leader
    the leader      the ownership map, the autoscaler, all writes to the cluster

The composition root makes the parts; this module joins them to those of the other replicas.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Any

from gnomon_autoscaler.controller import Autoscaler
from gnomon_core.clock import Clock
from gnomon_core.errors import GnomonError
from gnomon_core.ownership import OwnershipMap
from gnomon_gateway.api.access import Guard
from gnomon_gateway.api.invocation import GatewayApp
from gnomon_gateway.functions.deployments import LostInstance, OtherReplicas
from gnomon_gateway.functions.manager import Manager
from gnomon_gateway.replicas import state_sync
from gnomon_gateway.replicas.assigner import Assigner
from gnomon_gateway.replicas.gateway import SharedGateway
from gnomon_gateway.replicas.state_sync import PairFollower, Reporter
from gnomon_server.kubernetes import ClusterBackend
from gnomon_server.scaling import ScalingAdapter, ScalingStateTransfer

RETRY_S = 1.0
GRACE_S = 1.0
"""Load balancers and clients that learn by `/healthz` or an answer that we are leaving use another replica within this time."""

_LOG = logging.getLogger("gnomon")


class Replicas:
    """The gateway replica in this process. While it leads, `autoscaler` decides; `scaling` hands it other replicas' requests."""

    def __init__(
        self,
        cluster: ClusterBackend,
        clock: Clock,
        manager: Manager,
        other_replicas: OtherReplicas,
        app: GatewayApp,
        *,
        guard: Guard,
        autoscaler: Autoscaler,
        scaling: ScalingAdapter,
    ) -> None:
        self._cluster, self._clock, self._other_replicas = cluster, clock, other_replicas
        self._manager = manager
        self._reporter = Reporter(manager.runtimes, other_replicas.lost)
        self._pairs = PairFollower(manager.instances.runtime_of)
        self._transfer = ScalingStateTransfer(autoscaler, lambda: other_replicas.leads)
        self._board = cluster.board()
        host, port = cluster.inside
        self._shared = SharedGateway(
            app,
            guard,
            manager.directory,
            self._board,
            cluster.peer_secret(),
            identity=cluster.leader.identity,
            host=host,
            port=port,
            leads=lambda: other_replicas.leads,
            state=self,
        )
        self.app = self._shared.app
        self.invoke = self._shared.invoke
        self.agent = self._shared.agent
        self._tasks: list[asyncio.Task[None]] = []
        self._leadership: asyncio.Task[None] | None = None
        self._leaving = False
        self._unwatch: Callable[[], None] = lambda: None
        self._scaling = scaling

    def request_decision(self, function: str) -> None:
        """Ask the leader to look at this function."""
        self._reporter.want(function)
        self._shared.agent.report_now()

    async def start(self, lead: Callable[[], Awaitable[None]]) -> None:
        """Join the other replicas, with functions that are served already. `lead` is awaited once this replica leads."""
        await self._board.start()
        await self._shared.start()
        self._unwatch = self._board.watch(self._changed)
        assigner = Assigner(self._board, self._shared.peers, self._clock, leads=self._cluster.leads, agent=self._shared.agent)
        self._leadership = asyncio.create_task(begin_to_lead(self._cluster.leader.leading, lead, self._clock))
        self._tasks = [asyncio.create_task(assigner.run()), self._leadership]

    async def leave(self) -> None:
        """Hand every function over to the other replicas. Requests are forwarded until the servers stop, at least 1 s."""
        self._leaving = True
        if self._leadership is not None:
            # A replica that becomes the leader now would start an autoscaler that nothing stops.
            self._leadership.cancel()
        await asyncio.gather(self._shared.leave(), self._clock.sleep(GRACE_S))

    async def stop(self) -> None:
        """Leave the replicas, after all admitted requests have been answered."""
        self._unwatch()
        for task in self._tasks:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        await self._shared.stop()
        await self._board.stop()

    def _changed(self, new: OwnershipMap) -> None:
        self._other_replicas.keep({replica.id for replica in new.members})

    # StateExchange: what this replica reports, and what it sends while it leads

    def report(self, received: int) -> dict[str, Any]:
        return self._reporter.report(received)

    def follow(self, name: str, document: Mapping[str, Any]) -> None:
        if name == "pairs":
            self._pairs.follow(document)
        elif name == "learned":
            self._transfer.take(document)
        elif not self._other_replicas.leads:  # else this is a late message of the previous leader
            state_sync.follow(self._manager.instances, document)

    def take_report(self, replica: str, report: Mapping[str, Any]) -> None:
        self._other_replicas.take_report(replica, report["functions"])
        for instance, (reason, served) in report["lost"].items():
            self._manager.instances.lost_at_replica(str(instance), LostInstance(str(reason), bool(served)))
        for function in report["wanted"]:
            if self._manager.directory.lookup(str(function)) is not None:
                self._scaling.poke(str(function))

    def leader_state(self, address: str) -> dict[str, Any]:
        """Return pairs and plans; None for both unless this replica leads and does not leave, so that the others keep theirs."""
        pairs = plans = None
        if self._other_replicas.leads and not self._leaving:
            pairs = state_sync.pairs_to_json(self._manager.instances.shadows.table())
            plans = state_sync.plans_to_json(self._manager.instances.plans())
        return {"pairs": pairs, "plans": plans, "learned": self._transfer.next(address)}

    def keep(self, addresses: Collection[str]) -> None:
        self._transfer.keep(addresses)


async def begin_to_lead(leading: asyncio.Event, lead: Callable[[], Awaitable[None]], clock: Clock) -> None:
    """Await `lead` once this process leads, and retry until it succeeds: no other process decides meanwhile."""
    await leading.wait()
    while True:
        try:
            await lead()
        except GnomonError as error:
            _LOG.warning("this replica leads, but its autoscaler cannot start yet: %s", error)
        except Exception:  # noqa: BLE001 - this process renews the Lease, so no other one would lead
            _LOG.exception("this replica leads, but its autoscaler cannot start yet: internal error")
        else:
            return
        await clock.sleep(RETRY_S)
