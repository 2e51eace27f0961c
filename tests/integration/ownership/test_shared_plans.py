"""A function's batches are made by its policy's plan at the replica that owns it, while another one leads, and after that one."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from gnomon_autoscaler.controller import Autoscaler
from gnomon_autoscaler.executor import at_once
from gnomon_autoscaler.registry import BUILT_IN
from gnomon_core.clock import WallClock
from gnomon_core.functions import FunctionSpec, read_deployment
from gnomon_core.interfaces import Capabilities
from gnomon_core.policy_registry import PolicyPlugin
from gnomon_core.scaling import Decision, Observation, PolicyState, SetBufferPlan
from gnomon_gateway.api.access import Guard, host_rule
from gnomon_gateway.api.invocation import GatewayApp
from gnomon_gateway.functions.deployments import OtherReplicas
from gnomon_gateway.replicas.assignment import Place
from gnomon_server.replicas import Replicas
from gnomon_server.scaling import ScalingAdapter
from tests.integration.gateway.conftest import not_here
from tests.integration.ownership.conftest import SECRET
from tests.ownership_boards import MemoryBoard
from tests.unit.gateway.stage import BOUNDED, NAME, Planned
from tests.waiting import until

if TYPE_CHECKING:
    from gnomon_server.kubernetes import ClusterBackend

ABLE = Capabilities(place=True, size=True, victim=True, resize=True, pair=True)
AS_DEPLOYED, PLANNED = (8, 0.3), (4, 0.05)


class Once:
    """A scaling policy that tells its plan once, and remembers that it has."""

    name, period_s, needs, default_scheduler = "once", 0.1, frozenset[str](), BOUNDED

    def decide(self, seen: Observation, state: PolicyState) -> tuple[Decision, PolicyState]:
        del seen
        plan = () if state.values.get("told") else (SetBufferPlan(*PLANNED),)
        return Decision(plan, "as planned", 1), PolicyState(self.name, 1, {"told": True})


POLICIES = {**BUILT_IN, "once": PolicyPlugin(lambda _: Once(), "Tells a plan once.")}


def deployment(policy: str = "once") -> FunctionSpec:
    annotations = {"gnomon/autoscaler": policy, "gnomon/scheduler": BOUNDED}
    annotations |= {"gnomon/max-batch": "8", "gnomon/max-wait-ms": "300"}
    return read_deployment({"service": "fn", "image": "i", "annotations": annotations})


class Board(MemoryBoard):
    """A board for replicas that begin and end by themselves."""

    async def start(self) -> None: ...
    async def stop(self) -> None: ...


class Replica(Planned):
    """A gateway that decides once the test lets it lead. Its parts are those of `gnomon serve`, the cluster is played."""

    def __init__(self, name: str, folder: Path, board: Board) -> None:
        other_replicas = OtherReplicas(leads=False)
        scaling = ScalingAdapter(POLICIES, lambda: ABLE, other_replicas)
        super().__init__(folder, scaling, other_replicas=other_replicas)
        self.name, self._board = name, board
        self.autoscaler = Autoscaler(self.instances, WallClock(), policies=POLICIES, executor=at_once)
        scaling.bind(self.autoscaler)
        self.leading = asyncio.Event()
        cluster = SimpleNamespace(
            board=lambda: board,
            inside=("127.0.0.1", 0),
            peer_secret=lambda: SECRET,
            leader=SimpleNamespace(identity=name, leading=self.leading),
            leads=self.leading.is_set,
        )
        app, guard = GatewayApp(self.manager.directory, not_here), Guard(host_rule("127.0.0.1"), None)
        self.shared = Replicas(
            cast("ClusterBackend", cluster), WallClock(), self.manager, self.other_replicas, app,
            guard=guard, autoscaler=self.autoscaler, scaling=scaling,
        )  # fmt: skip
        self._deciding: asyncio.Task[None] | None = None

    async def start(self) -> None:
        await self.manager.start()
        await self.shared.start(self._lead)
        self._board.listening.add(self.shared.agent.address)

    async def end(self) -> None:
        """End the replica as if it was killed: nobody is told."""
        self._board.listening.discard(self.shared.agent.address)
        if self._deciding is not None:
            self._deciding.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._deciding
        await self.shared.stop()

    async def heard_of(self, spec: FunctionSpec) -> None:
        """Whether the leader's state has arrived."""
        await self.manager.follow(spec.key)

    @property
    def owns(self) -> bool:
        return self.shared.agent.place(NAME) is Place.HERE

    def buffer_plans(self) -> list[Any]:
        """The plans that this one's policies have told."""
        actions = [action for decision in self.autoscaler.decisions(NAME) for action in decision.actions]
        return [action for action in actions if isinstance(action, SetBufferPlan)]

    async def _lead(self) -> None:
        self.other_replicas.leads = True
        await self.manager.lead()
        self._deciding = asyncio.get_running_loop().create_task(self.autoscaler.run())


class Shared:
    """Replicas of one store, and who of them is running."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._board = folder, Board()
        self.running: list[Replica] = []

    async def add(self, name: str) -> Replica:
        replica = Replica(name, self._folder, self._board)
        await replica.start()
        self.running.append(replica)
        return replica

    async def kill(self, replica: Replica) -> None:
        self.running.remove(replica)
        await replica.end()
        await replica.stop()

    async def close(self) -> None:
        for replica in list(self.running):
            await self.kill(replica)


@pytest.fixture
async def shared(tmp_path: Path) -> AsyncIterator[Shared]:
    made = Shared(tmp_path)
    yield made
    await made.close()


async def led(shared: Shared) -> tuple[Replica, Replica]:
    """The replica that leads, and the one that has the function's queue."""
    leader, owner = await shared.add("a"), await shared.add("b")
    leader.leading.set()
    await until(lambda: leader.other_replicas.leads)
    await leader.manager.deploy(deployment())
    await owner.heard_of(deployment())
    await until(lambda: owner.owns and not leader.owns)
    return leader, owner


async def test_the_owner_makes_batches_by_the_leaders_plan(shared: Shared) -> None:
    leader, owner = await led(shared)
    await until(lambda: owner.bounds() == PLANNED, "the plan does not reach the replica that makes the batches")
    # A policy that plans nothing leaves batches as they were deployed.
    await leader.manager.update(deployment("fixed"))
    await until(lambda: owner.bounds() == AS_DEPLOYED)


async def test_next_leader_keeps_and_shares_the_plan(shared: Shared) -> None:
    """The policy's memory is handed on: it does not tell its plan again."""
    leader, owner = await led(shared)
    await until(lambda: owner.bounds() == PLANNED)
    await shared.kill(leader)
    owner.leading.set()
    await until(lambda: owner.autoscaler.decided(NAME), "the next leader decides nothing")
    late = await shared.add("c")
    await until(lambda: late.owns and not owner.owns)
    await until(lambda: late.bounds() == PLANNED, "who comes later is not told")
    assert owner.buffer_plans() == []
    assert owner.bounds() == PLANNED
