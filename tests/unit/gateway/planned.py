"""Functions whose buffers are planned: their scheduling policy says by which bounds it makes batches."""

from __future__ import annotations

from pathlib import Path

from gnomon_core.functions import FunctionSpec, read_deployment
from gnomon_core.policy_registry import PolicyPlugin
from gnomon_core.scaling import SetBufferPlan
from gnomon_core.settings import Settings
from gnomon_gateway.functions.deployments import OtherReplicas
from gnomon_gateway.functions.instances import ScalingControl
from gnomon_gateway.functions.manager import Manager
from gnomon_gateway.scheduling.policies import Immediate
from gnomon_gateway.scheduling.registry import BUILT_IN
from gnomon_gateway.store import SqliteStore
from tests.unit.gateway.shadow_stage import Scaling, Scripted

PLAN, OTHER_PLAN = SetBufferPlan(4, 0.05), SetBufferPlan(2, 0.01)
BOUNDED = "bounded"


class Bounded(Immediate):
    """A scheduling policy with the bounds that it was made for."""

    name = BOUNDED

    def __init__(self, settings: Settings) -> None:
        self.bounds = settings.max_batch, settings.max_wait_s


class Planning(Scaling):
    """A `ScalingControl` for functions whose policy asks for that scheduling."""

    def check(self, settings: Settings) -> str:
        del settings
        return BOUNDED


class Planned:
    """A gateway that follows another until `other_replicas.leads`. Its functions wait for as many as eight, up to 300 ms."""

    def __init__(self, folder: Path, scaling: ScalingControl | None = None, other_replicas: OtherReplicas | None = None) -> None:
        self.store = SqliteStore(folder / "functions.db")
        self.other_replicas = other_replicas or OtherReplicas()
        self.manager = Manager(
            self.store,
            Scripted(),
            scaling or Planning(),
            now=lambda: 0.0,
            schedulers={**BUILT_IN, BOUNDED: PolicyPlugin(Bounded, "Knows its bounds.")},
            other_replicas=self.other_replicas,
        )
        self.instances = self.manager.instances

    async def stop(self) -> None:
        await self.manager.stop()
        self.store.close()

    def policy(self, name: str = "fn") -> Bounded:
        """The scheduling policy of a function."""
        runtime = self.manager.directory.lookup(name)
        assert runtime is not None
        assert isinstance(runtime.policy, Bounded)
        return runtime.policy

    def bounds(self, name: str = "fn") -> tuple[int, float | None]:
        """The bounds of its batches: size and wait."""
        return self.policy(name).bounds


def deployment(most: int = 8, name: str = "fn", **environment: str) -> FunctionSpec:
    annotations = {"gnomon/max-batch": str(most), "gnomon/max-wait-ms": "300"}
    return read_deployment({"service": name, "image": "i", "annotations": annotations, "envVars": environment})
