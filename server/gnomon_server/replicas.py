"""Several gateway replicas on a cluster: this one's part in sharing the functions, and what starts when it leads.

    every replica   functions, instances and queues; the internal listener; load reports to the leader
    the leader      the ownership map, the autoscaler, all writes to the cluster

The composition root makes the parts; this module joins them to those of the other replicas.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping
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
from gnomon_gateway.replicas.replica import Reports
from gnomon_gateway.replicas.state_sync import PairFollower, Reporter
from gnomon_server.kubernetes import ClusterBackend
from gnomon_server.scaling import ScalingAdapter
from gnomon_server.scaling_state import ScalingStateTransfer

RETRY_S = 1.0
GRACE_S = 1.0
"""Load balancers and clients that learn by `/healthz` or an answer that we are leaving use another replica within this time."""

_LOG = logging.getLogger("gnomon")


class Replicas:
    """This replica. While it leads, `autoscaler` decides, and `scaling` passes the other replicas' requests on to it."""

    def __init__(
        self,
        cluster: ClusterBackend,
        clock: Clock,
        manager: Manager,
        elsewhere: OtherReplicas,
        app: GatewayApp,
        *,
        guard: Guard,
        autoscaler: Autoscaler,
        scaling: ScalingAdapter,
    ) -> None:
        self._cluster, self._clock, self._elsewhere = cluster, clock, elsewhere
        self._manager = manager
        self._reporter = Reporter(manager.runtimes, elsewhere.lost)
        self._followed = PairFollower(manager.instances.runtime_of)
        transfer = ScalingStateTransfer(autoscaler, lambda: elsewhere.leads)
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
            leads=lambda: elsewhere.leads,
            reports=Reports(
                self._reporter,
                self._heard,
                pairs=self._pairs,
                follow_pairs=self._followed.follow,
                plans=self._plans,
                follow_plans=self._follow_plans,
                learned=transfer.next,
                keep_learned=transfer.keep,
                follow_learned=transfer.take,
            ),
        )
        self.app = self._shared.app
        self.invoke = self._shared.invoke
        self.life = self._shared.life
        self._tasks: list[asyncio.Task[None]] = []
        self._leaving = False
        self._unwatch: Callable[[], None] = lambda: None
        self._scaling = scaling

    def want(self, function: str) -> None:
        """Ask the leader to look at this function."""
        self._reporter.want(function)
        self._shared.life.report_now()

    async def start(self, lead: Callable[[], Awaitable[None]]) -> None:
        """Join the other replicas, with functions that are served already. `lead` is awaited once this replica leads."""
        await self._board.start()
        await self._shared.start()
        self._unwatch = self._board.watch(self._changed)
        assigner = Assigner(self._board, self._shared.peers, self._clock, leads=self._cluster.leads, life=self._shared.life)
        beginning = begin_to_lead(self._cluster.leader.leading, lead, self._clock)
        self._tasks = [asyncio.create_task(assigner.run()), asyncio.create_task(beginning)]

    async def leave(self) -> None:
        """Hand every function over to the other replicas. Requests are forwarded until the servers stop, at least 1 s."""
        self._leaving = True
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
        self._elsewhere.keep({replica.id for replica in new.members})

    def _pairs(self) -> Mapping[str, Any] | None:
        """The table of Bodies and their Shadows; None unless this replica leads."""
        return state_sync.pairs_to_json(self._manager.instances.shadows.table()) if self._knows() else None

    def _plans(self) -> Mapping[str, Any] | None:
        """The buffer plans of functions; None unless this replica leads."""
        return state_sync.plans_to_json(self._manager.instances.plans()) if self._knows() else None

    def _knows(self) -> bool:
        """Whether this replica leads and is not leaving. If not, followers keep the state that they have."""
        return self._elsewhere.leads and not self._leaving

    def _follow_plans(self, plans: Mapping[str, Any]) -> None:
        """Apply the leader's plans. Ignored once this replica leads: the message is then a late one of the previous leader."""
        if not self._elsewhere.leads:
            state_sync.follow(self._manager.instances, plans)

    def _heard(self, replica: str, report: Mapping[str, Any]) -> None:
        """Process a replica's load report, as the leader."""
        self._elsewhere.hear(replica, report["functions"])
        for instance, (reason, served) in report["lost"].items():
            self._manager.instances.lost_elsewhere(str(instance), LostInstance(str(reason), bool(served)))
        for function in report["wanted"]:
            if self._manager.directory.lookup(str(function)) is not None:
                self._scaling.poke(str(function))


async def begin_to_lead(leading: asyncio.Event, lead: Callable[[], Awaitable[None]], clock: Clock) -> None:
    """Await `lead` once this process leads, and retry until it succeeds: no other process decides meanwhile."""
    await leading.wait()
    while True:
        try:
            await lead()
        except GnomonError as error:
            _LOG.warning("this gateway leads and cannot start to decide yet: %s", error)
        except Exception:  # noqa: BLE001 - this process renews the Lease, so no other one would lead
            _LOG.exception("this gateway leads and cannot start to decide yet")
        else:
            return
        await clock.sleep(RETRY_S)
