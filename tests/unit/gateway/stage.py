"""Functions of a gateway whose platform does nothing by itself: a test says what the platform reports, in whatever order."""

# ruff: noqa: ARG002 - who stands in for a seam takes what the seam gives

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from gnomon_core.errors import GnomonError
from gnomon_core.fleet import Instance, InstanceKind, InstanceState, Node
from gnomon_core.functions import FunctionKey, FunctionSpec, read_deployment
from gnomon_core.interfaces import BatchChannel, Capabilities, InstanceRequest, PlatformListener, Usage
from gnomon_core.pairs import Pair
from gnomon_core.policy_registry import PolicyPlugin
from gnomon_core.profiles import ModelProfile
from gnomon_core.scaling import (
    CreateBody,
    CreateShadow,
    DecisionRecord,
    SetBufferPlan,
)
from gnomon_core.settings import Settings
from gnomon_core.signature import ModelSignature
from gnomon_core.wire import Frame, Kind, Member
from gnomon_gateway.dispatch.latency import LearnedLatency
from gnomon_gateway.functions.deployments import Deployed, OtherReplicas
from gnomon_gateway.functions.function_runtime import FunctionRuntime
from gnomon_gateway.functions.instances import Instances, ScalingControl
from gnomon_gateway.functions.manager import Manager
from gnomon_gateway.scheduling.policies import Immediate
from gnomon_gateway.scheduling.registry import BUILT_IN
from gnomon_gateway.store import SqliteStore

NAME = "fn.openfaas-fn"
PAIR = Pair(2, (1, 2), (0, 1, 1, 2))
OTHER = Pair(2, (1,), (0, 1, 1, 2))


class Silent:
    """A `BatchChannel` of an instance that nothing is sent to."""

    unread = ()

    def run(self, frame: Frame, done: object, stream: object = None) -> None:
        raise AssertionError

    def cancel(self, batch_id: int) -> None: ...

    async def probe(self, timeout_s: float) -> bool:
        return True


class Holding(Silent):
    """A `BatchChannel` whose batches end when the test says so."""

    def __init__(self) -> None:
        self.ends: list[Callable[[Frame | None], None]] = []

    def run(self, frame: Frame, done: Callable[[Frame | None], None], stream: object = None) -> None:  # type: ignore[override]
        self.ends.append(done)

    def end(self) -> None:
        """Answer the oldest batch, which has one member."""
        self.ends.pop(0)(Frame(Kind.RESULT, members=[Member(200, 1, b"", b"")]))


class Client:
    """A `Responder` that notes each outcome of its requests: the body of an answer, the code of an error."""

    def __init__(self) -> None:
        self.outcomes: list[bytes | str] = []
        self.errors: list[GnomonError] = []

    def answer(self, member: Member, head: bytes) -> None:
        self.outcomes.append(bytes(member.body))

    def refuse(self, error: GnomonError) -> None:
        self.outcomes.append(error.code)
        self.errors.append(error)

    def stream(self, frame: Frame) -> None:
        raise AssertionError(frame)

    def broken(self) -> None:
        raise AssertionError("broken")


class Scripted:
    """A `Platform` that does as it is told and says only what the test lets it say."""

    name = "scripted"
    capabilities = Capabilities(place=True, size=True, victim=True, resize=True, pair=True)

    def __init__(self) -> None:
        self.there: dict[str, Instance] = {}
        self.destroyed: list[str] = []
        self.changed: list[tuple[str, Pair]] = []
        self.refuses: GnomonError | None = None
        self.dies_at_once = False

    async def start(self, listener: PlatformListener) -> None: ...
    async def stop(self) -> None: ...
    def check(self, spec: FunctionSpec) -> None: ...
    async def prepare(self, spec: FunctionSpec) -> None: ...
    async def resize(self, instance_id: str, cores: int) -> None: ...

    def revision(self, spec: FunctionSpec) -> str:
        return "1"

    def signature(self, spec: FunctionSpec) -> ModelSignature | None:
        return None

    def nodes(self) -> tuple[Node, ...]:
        return ()

    def profile(self, spec: FunctionSpec) -> ModelProfile | None:
        return None

    def usage(self, function: str) -> Usage:
        return Usage(0.0, 0)

    def instances(self, function: str) -> tuple[Instance, ...]:
        return tuple(self.there.values())

    async def create(self, request: InstanceRequest) -> Instance:
        name = f"b{len(self.there) + 1}"
        body = Instance(name, NAME, request.version, "n", request.cores, 0, InstanceState.STARTING, 0.0)
        self.there[name] = body
        return body

    async def create_shadow(self, body_id: str, pair: Pair) -> Instance:
        if self.refuses is not None:
            raise self.refuses
        name = f"s-of-{body_id}"
        body = self.there[body_id]
        shadow = Instance(
            name, NAME, body.version, "n", 2, 0, InstanceState.STARTING, 0.0, kind=InstanceKind.SHADOW, partner=body_id, pair=pair
        )
        if not self.dies_at_once:
            self.there[name] = shadow
        await asyncio.sleep(0)
        return shadow

    async def promote_shadow(self, shadow_id: str) -> Instance:
        if self.refuses is not None:
            raise self.refuses
        shadow = self.there[shadow_id]
        risen = replace(shadow, kind=InstanceKind.BODY, state=InstanceState.STARTING, partner=None, pair=None)
        self.there[shadow_id] = risen
        return risen

    async def change_shadow(self, shadow_id: str, pair: Pair) -> None:
        self.changed.append((shadow_id, pair))

    async def destroy(self, instance_id: str) -> None:
        self.destroyed.append(instance_id)


class PersistentPlatform(Scripted):
    """A platform whose instances outlive the gateway."""

    def adopt(self, spec: FunctionSpec, version: int) -> tuple[Instance, ...]:
        return ()

    def scaling_conflict(self, function: str) -> GnomonError | None:
        return None


class Scaling:
    """A `ScalingControl` that counts how often it was poked, and how often a start was forgiven."""

    def __init__(self) -> None:
        self.pokes = 0
        self.forgiven = 0

    def check(self, settings: Settings) -> str:
        return "immediate"

    def check_profile(self, settings: Settings, profile: ModelProfile | None) -> None: ...

    def poke(self, function: str) -> None:
        self.pokes += 1

    def served(self, function: str) -> None:
        self.forgiven += 1

    def request(self, function: str, instances: int) -> None: ...
    def redeployed(self, function: str) -> None: ...
    def start_backoff_s(self, function: str) -> float:
        return 0.0

    def removed(self, function: str) -> None: ...

    def desired(self, function: str) -> int | None:
        return 1

    def decisions(self, function: str, limit: int) -> Sequence[DecisionRecord]:
        return ()

    def makes_shadows(self, settings: Settings) -> bool:
        return False

    def policies(self) -> dict[str, str]:
        return {}


class Stage:
    """A function on a scripted platform, with one Body that is ready."""

    def __init__(self, platform: Scripted | None = None, other_replicas: OtherReplicas | None = None) -> None:
        self.platform = platform or Scripted()
        self.scaling = Scaling()
        self.log: list[str] = []
        self.instances = Instances(self.platform, self._line, self.scaling, lambda _: Immediate(), other_replicas)
        spec = read_deployment({"service": "fn", "image": "i"})
        runtime = FunctionRuntime(spec.key, spec.settings, Immediate(), LearnedLatency())
        self.deployed = Deployed(spec, 1, "1", {}, 0.0, runtime, other_replicas=other_replicas or OtherReplicas())
        self.instances.adopt(self.deployed)

    def _line(self, function: FunctionKey, instance_id: str, text: str) -> None:
        self.log.append(text)

    async def begin(self) -> None:
        await self.instances.apply(NAME, [CreateBody(1)])
        body = self.platform.there["b1"] = replace(self.platform.there["b1"], state=InstanceState.READY)
        channel: BatchChannel = Silent()
        self.instances.instance_ready(body, channel)

    async def shadow(self, body: str = "b1") -> None:
        await self.instances.apply(NAME, [CreateShadow(body, PAIR)])

    def paired(self, pair: Pair | None, partner: str | None = "s-of-b1") -> None:
        body = replace(self.platform.there["b1"], pair=pair, partner=partner if pair else None)
        self.platform.there["b1"] = body
        self.instances.pair_changed(body)

    def gone(self, name: str) -> None:
        self.platform.there.pop(name, None)
        self.instances.instance_gone(name, "it was killed")

    async def settle(self) -> None:
        await self.instances.settle()

    @property
    def known(self) -> Pair | None:
        """The dispatcher's record of the Body."""
        return self.deployed.runtime.dispatcher.workers.by_id["b1"].pair


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
