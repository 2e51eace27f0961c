"""The part of a cluster's platform that Shadows on nodes need: Bodies, claims, a listener; and the leaders that come after it."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Mapping
from typing import Any, cast

import aiohttp
import pytest

from gnomon_core.blocks import Layers
from gnomon_core.errors import GnomonError
from gnomon_core.fleet import Instance, InstanceState
from gnomon_core.functions import FunctionSpec, read_deployment
from gnomon_core.pairs import Pair
from gnomon_platforms.kubernetes.nodes import Claim
from gnomon_platforms.kubernetes.objects.placing import Placing
from gnomon_platforms.nodes.models import ServedModels
from gnomon_platforms.nodes.node_shadow import BodyPod, ShadowContext
from gnomon_platforms.nodes.shadows import ShadowTracker
from gnomon_profiler.repository import DirectoryRepository
from tests.integration.coordinator_node.node import TOKEN, Body, Node
from tests.platform_testing import Recorder
from tests.waiting import until

SPEC = read_deployment(
    {"service": "line", "image": "gnomon/body", "annotations": {"gnomon/model": "line@1", "gnomon/max-batch": "8"}}
)


class Platform:
    """The part of a platform that Shadows need: Bodies, claims, a listener. It leads since the node's present epoch."""

    def __init__(self, node: Node, session: aiohttp.ClientSession, models: ServedModels | None = None) -> None:
        self.node, self.events = node, Recorder()
        self.adopting_s = 0.0
        epoch = node.epoch
        self.bodies: dict[str, BodyPod] = {}
        self.claimed: dict[str, Claim] = {}
        self.pools: set[str] = set()
        self.pairs_told: list[tuple[str, list[str]]] = []
        self.cores = 8.0
        context = ShadowContext(
            bodies=self,
            capacity=cast("Any", self),
            listener=self.events,
            now_s=lambda: 0.0,
            epoch=lambda: epoch,
            adopting_s=lambda: self.adopting_s,
            models=models or ServedModels(DirectoryRepository(node.models), node.models),
        )
        self.pairs = ShadowTracker(context, session, TOKEN)

    def free_cores(self, node: str) -> float:
        del node
        return self.cores - sum(claim.cores for claim in self.claimed.values())

    def place_shadow(self, placing: Placing, cores: int, named: str) -> str:
        del placing, cores
        return named

    def claim(self, instance_id: str, claim: Claim) -> None:
        self.claimed[instance_id] = claim

    def withdraw(self, instance_id: str) -> None:
        self.claimed.pop(instance_id, None)

    def pool_ready(self, node: str, *, ready: bool) -> None:
        (self.pools.add if ready else self.pools.discard)(node)

    def of_instance(self, body_id: str) -> BodyPod | None:
        return self.bodies.get(body_id)

    def of_pod(self, uid: str) -> BodyPod | None:
        return next((body for body in self.bodies.values() if body.uid == uid), None)

    def placing(self, body: BodyPod) -> Placing:
        del body
        return Placing()

    def set_pairs(self, body_id: str, shadows: Mapping[str, Pair]) -> None:
        self.pairs_told.append((body_id, list(shadows)))

    async def reach(self) -> None:
        self.pairs.connections.set_address("node-a", f"http://127.0.0.1:{self.node.port}")
        await until(lambda: "node-a" in self.pools, "the node is not connected", 120.0)

    async def body(self, name: str) -> Body:
        """A Body in its pod, which the platform knows as an instance of this name."""
        body = self.node.shared_body()
        self.node.uids[name] = body.uid
        self.knows(name)
        await until(lambda: body.uid in {row["pod_uid"] for row in self.pairs.connections.states["node-a"]["bodies"]})
        return body

    def knows(self, name: str, spec: FunctionSpec = SPEC) -> None:
        """The pod's Body is an instance of this name here."""
        instance = Instance(name, "line.openfaas-fn", 1, "node-a", 1, 0, InstanceState.READY, 0.0)
        self.bodies[name] = BodyPod(instance, spec, self.node.uids[name], "node-a")

    def seen(self, shadow: str) -> Instance:
        [found] = [instance for instance in self.pairs.instances("line.openfaas-fn") if instance.id == shadow]
        return found


@contextlib.asynccontextmanager
async def leading(node: Node, *bodies: str, adopting_s: float = 60.0) -> AsyncIterator[Platform]:
    """The next leader, which knows these Bodies."""
    node.epoch += 1
    async with aiohttp.ClientSession() as session:
        made = Platform(node, session)
        made.adopting_s = adopting_s
        for body in bodies:
            made.knows(body)
        await made.reach()
        yield made
        await made.pairs.close()


def a_pair(node: Node, cores: int = 1, split: tuple[int, ...] = (0, 1, 1, 2)) -> Pair:
    return Pair(cores, tuple(node.blocks), split)


def layers_of(node: Node) -> Layers:
    return Layers.from_json(json.loads((node.models / node.files["layers"]).read_bytes()))


async def refusal(order: Awaitable[object]) -> str:
    with pytest.raises(GnomonError) as caught:
        await order
    return caught.value.code
