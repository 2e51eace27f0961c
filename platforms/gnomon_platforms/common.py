"""Common parts of platforms: unique instance ids, and the record of an instance while it starts.

The resources that an instance claims on its node, for platforms that count them.

Cores are claimed as Kubernetes claims them: by the function's CPU request, else its limit; without either, a function that says
its size (a model, or `gnomon/cores`) claims its cores and any other a tenth of one, because most functions wait most of the time.
On one machine a claim that the deployment does not ask for counts only while the instance is in use (`local.nodes`).

The lifecycle of an instance whose process another system runs: a pod, a replica, a sandbox.

    requested ▶ ready, with a channel ▶ draining ▶ gone, reported to the listener once

Instances on this machine have their own lifecycle in `local`, because that platform starts and ends the processes itself.

HTTP sessions to remote instances, with one connection for each batch in flight.
"""

from __future__ import annotations

import asyncio
import itertools
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Generic, Protocol, Self, TypeVar

from gnomon_core.blocks import Layers
from gnomon_core.fleet import Instance, InstanceState
from gnomon_core.functions import FunctionSpec
from gnomon_core.interfaces import BatchChannel, InstanceRequest, PlatformListener
from gnomon_core.pairs import Pair
from gnomon_core.profiles import ModelProfile
from gnomon_core.units import parse_cores

if TYPE_CHECKING:
    import aiohttp


class Ids:
    """Unique ids: a readable name, a counter, and a random part that cannot be guessed from other ids."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)

    def new(self, name: str) -> str:
        """A new id that begins with this name."""
        return f"{name}{next(self._numbers)}-{secrets.token_hex(3)}"


class StartingInstances:
    """Requested instances whose recipe is still being read, perhaps from a remote store.

    They count as instances from the request on; otherwise a caller that counts meanwhile would request them twice.
    """

    def __init__(self) -> None:
        self._coming: dict[str, tuple[Instance, asyncio.Event]] = {}

    @contextmanager
    def counted(self, instance: Instance) -> Iterator[None]:
        """Count the instance during the block. A caller that then registers it without an `await` leaves no gap."""
        begun = asyncio.Event()
        self._coming[instance.id] = instance, begun
        try:
            yield
        finally:
            del self._coming[instance.id]
            begun.set()

    def of(self, function: str) -> list[Instance]:
        """The coming instances of a function."""
        return [instance for instance, _ in self._coming.values() if instance.function == function]

    async def begun(self, instance_id: str) -> None:
        """Return when the instance is registered or has failed; at once for an unknown id."""
        if (found := self._coming.get(instance_id)) is not None:
            await found[1].wait()


def starting(instance_id: str, request: InstanceRequest, node: str, memory_bytes: int, now_s: float) -> Instance:
    """The record of a requested instance while it starts."""
    return Instance(
        id=instance_id,
        function=str(request.spec.key),
        version=request.version,
        node=node,
        cores=request.cores,
        memory_bytes=memory_bytes,
        state=InstanceState.STARTING,
        started_s=now_s,
    )


SMALL_CLAIM_CORES = 0.1
MODEL_OVERHEAD_BYTES = 96 * 2**20
"""Memory of a model's instance besides its weights, in bytes: activations, and pages not shared with the zygote."""


def requested_cores(spec: FunctionSpec) -> float | None:
    """The CPU request of the deployment, or its CPU limit where it has no request; None without either."""
    requests = spec.raw.get("requests")
    if isinstance(requests, dict) and requests.get("cpu"):
        return parse_cores(str(requests["cpu"]))
    return spec.cpu_cores


def claimed_cores(spec: FunctionSpec, cores: int) -> float:
    """The cores that an instance of this function takes from its node."""
    requested = requested_cores(spec)
    if requested is not None:
        return requested
    says_its_size = spec.settings.model is not None or "gnomon/cores" in spec.annotations
    return float(cores) if says_its_size else SMALL_CLAIM_CORES


def shadow_bytes(layers: Layers, pair: Pair, profile: ModelProfile | None, weight_mode: str) -> int:
    """Memory of a Shadow in bytes: the overhead of any instance, plus its weights unless it maps those of its Body.

    On another node, which `pair.node` names, the Shadow has weights of its own.
    """
    overhead_bytes = MODEL_OVERHEAD_BYTES if profile is None else profile.overhead_bytes
    mapped = weight_mode == "shared" and pair.node is None
    return overhead_bytes + (0 if mapped else layers.parameter_bytes(pair.blocks))


class ClosableChannel(BatchChannel, Protocol):
    """A channel that its platform can end."""

    def close(self) -> None:
        """Close the channel without a message. A batch in flight is lost."""
        ...


Channel = TypeVar("Channel", bound=ClosableChannel)


class RemoteInstance(Generic[Channel]):
    """An instance on a remote platform. `ended` is called once, before the listener is notified of its end."""

    def __init__(self, instance: Instance, listener: PlatformListener, ended: Callable[[Self], None]) -> None:
        self.instance = instance
        self.channel: Channel | None = None
        self._listener = listener
        self._ended = ended

    @property
    def gone(self) -> bool:
        return self.instance.state is InstanceState.GONE

    def ready(self, channel: Channel) -> None:
        """Mark the instance READY and report its channel. Ignored if the instance was stopped meanwhile."""
        if self.instance.state is InstanceState.STARTING:
            self.channel = channel
            self.instance = replace(self.instance, state=InstanceState.READY)
            self._listener.instance_ready(self.instance, channel)

    def stop(self) -> None:
        """Mark the instance DRAINING; nothing is in flight."""
        if not self.gone:
            self.instance = replace(self.instance, state=InstanceState.DRAINING)

    def end(self: Self, reason: str) -> None:
        """End the instance: close its channel and report it gone. Idempotent."""
        if self.gone:
            return
        self.instance = replace(self.instance, state=InstanceState.GONE)
        # The channel references us by its callback: without this, the cycle would live until the garbage collector runs.
        channel, self.channel = self.channel, None
        if channel is not None:
            channel.close()
        self._ended(self)
        self._listener.instance_gone(self.instance.id, reason)


CONNECT_TIMEOUT_S = 3.0
POD_KEEP_ALIVE_S = 60.0
"""Seconds that an idle connection to a pod of ours is kept: less than the pod keeps it, so that no batch meets its close."""
FOREIGN_KEEP_ALIVE_S = 5.0
"""Seconds that an idle connection to foreign software is kept: less than any provider or proxy does, lest a request is lost."""


def open_session(
    keep_alive_s: float = POD_KEEP_ALIVE_S, *, decompress: bool = True, connect_timeout_s: float = CONNECT_TIMEOUT_S
) -> aiohttp.ClientSession:
    """Open an HTTP session. It bounds the time to connect only; callers bound the time to answer.

    With `decompress` False a body stays as it was sent, in order to be passed on.
    """
    import aiohttp  # noqa: PLC0415 - only who has instances elsewhere needs it

    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=keep_alive_s),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=connect_timeout_s),  # the library's own total is 300 s
        auto_decompress=decompress,
        trust_env=False,
    )
