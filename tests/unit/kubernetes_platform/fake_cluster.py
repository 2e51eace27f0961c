"""A cluster's state as a function's reconciler observes it, set by a test."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any

from gnomon_core.background import Background
from gnomon_core.clock import Clock, WallClock
from gnomon_core.functions import FunctionKey
from gnomon_platforms.kubernetes.channel import NodeContact
from gnomon_platforms.kubernetes.nodes import NodeCapacity
from gnomon_platforms.kubernetes.objects.functions import DeployedFunction
from gnomon_platforms.kubernetes.objects.pods import PodFacts
from gnomon_platforms.openfaas.observed import OpenFaasOptions


class FakeCluster:
    """See `gnomon_platforms.openfaas.observed.ObservedCluster`. `warned` has the last text of each Event by its reason."""

    def __init__(
        self,
        deployed: Callable[[], DeployedFunction | None],
        pods: Callable[[], Iterable[PodFacts]],
        *,
        start_timeout_s: float = 1e6,
        session: Any = None,
        clock: Clock | None = None,
    ) -> None:
        self._deployed, self._pods = deployed, pods
        self.leads = True
        self.clock: Clock = clock or WallClock()
        self.rng = random.Random(1)
        self.options = OpenFaasOptions(start_timeout_s=start_timeout_s, adopting_s=0.0)
        self.session = session
        self._node_contacts: defaultdict[str, NodeContact] = defaultdict(NodeContact)
        self.background = Background()
        self.warned: dict[str, str] = {}
        self.capacity, self.conflicts = NodeCapacity(), SimpleNamespace(scaling_conflict=lambda _: None)

    def deployed(self, _: FunctionKey) -> DeployedFunction | None:
        return self._deployed()

    def pods_of(self, _: FunctionKey) -> Iterable[PodFacts]:
        return self._pods()

    def adopting_s(self) -> float:
        return 0.0

    def node_contact(self, node: str) -> NodeContact:
        return self._node_contacts[node]

    def left_alone(self, _: FunctionKey) -> bool:
        return False

    async def caught_up(self, *_: object) -> None:
        return None

    def warn(self, _: FunctionKey, reason: str, text: str, case: str = "") -> None:
        del case
        self.warned[reason] = text
