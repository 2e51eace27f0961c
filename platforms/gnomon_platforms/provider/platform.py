"""A foreign provider as an implementation of `Platform`: instances are slots, bounded by the provider's replicas.

    places = replicas that are available × requests that one takes at once     one node for each function, with so many cores

The number of replicas is never set here, except that a function without any is woken by the first request, as OpenFaaS's gateway
does it: to `com.openfaas.scale.min`, at least 1. While the provider cannot be reached, slots wait for it, and requests for slots.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Coroutine
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from gnomon_core.clock import Clock, WallClock
from gnomon_core.errors import GnomonError, bad_request, not_found
from gnomon_core.fleet import Instance, Node
from gnomon_core.functions import FunctionKey, FunctionSpec
from gnomon_core.interfaces import Capabilities, InstanceRequest, PlatformListener, Usage
from gnomon_core.pairs import Pair
from gnomon_core.profiles import ModelProfile
from gnomon_core.signature import ModelSignature
from gnomon_platforms.common import FOREIGN_KEEP_ALIVE_S, Ids, open_session, starting
from gnomon_platforms.provider.api import ProviderApi, ProviderLogs, ProviderOptions, unreachable
from gnomon_platforms.provider.catalog import Catalog
from gnomon_platforms.provider.channel import ChannelContext, ProviderChannel, Route, Slot

BATCH_SECRET = "gnomon-batch-token"  # noqa: S105 - its name, not its value
WAKE_POLL_S, AWAY_POLL_S = 0.1, 0.1

_LOG = logging.getLogger("gnomon.provider")


class ProviderPlatform:
    """The `Platform` (`gnomon_core.interfaces`) of slots at a foreign provider. `rng` draws the pauses between attempts."""

    name = "provider"
    capabilities = Capabilities(place=True, size=False, victim=True, resize=False, pair=False)

    def __init__(
        self,
        api: ProviderApi,
        catalog: Catalog,
        options: ProviderOptions,
        *,
        clock: Clock | None = None,
        rng: random.Random | None = None,
    ) -> None:
        self._api, self._catalog, self._options = api, catalog, options
        self._clock = clock or WallClock()
        self._rng = rng or random.SystemRandom()
        self._slots: dict[str, Slot] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._waking: dict[FunctionKey, asyncio.Task[None]] = {}
        self._ids = Ids()
        self._listener: PlatformListener | None = None
        self._session: aiohttp.ClientSession | None = None
        self._nodes: tuple[int, int, tuple[Node, ...]] = (-1, -1, ())
        self._changes = 0
        self._context = ChannelContext(lambda: not self._catalog.unreachable, self._away, options.start_timeout_s)
        self.logs = ProviderLogs(api)
        """Log lines of functions, from the provider."""

    async def start(self, listener: PlatformListener) -> None:
        """Start without a call to the provider: the catalogue has been read already."""
        self._listener = listener
        self._session = open_session(FOREIGN_KEEP_ALIVE_S, decompress=False)

    async def stop(self) -> None:
        """End every slot. The functions keep running."""
        for slot in list(self._slots.values()):
            slot.end("stopped")
        waking = list(self._waking.values())
        for task in (*self._tasks.values(), *waking):
            task.cancel()
        await asyncio.gather(*self._tasks.values(), *waking, return_exceptions=True)
        if self._session is not None:
            await self._session.close()

    def contents(self) -> set[str]:
        """Empty: images built on this machine are never in use here."""
        return set()

    def check(self, spec: FunctionSpec) -> None:
        """Check what a provider cannot run at all; images and capacity are the provider's to check."""
        if spec.env_process and not spec.env_process.strip():
            raise bad_request("process_missing", f"{spec.key} sets fprocess, but names none.", "Name it, or leave it out.")

    def revision(self, spec: FunctionSpec) -> str:
        """The image's name, and whether batches are sent as such, which is fixed when a slot begins."""
        return f"{spec.image} by batches" if self._batches(spec) else spec.image

    async def prepare(self, spec: FunctionSpec) -> None:
        """Warn if a function batches without the batch token; there is nothing to prepare."""
        if spec.settings.max_batch > 1 and not self._batches(spec):
            _LOG.warning(
                "function %s gets single requests: batches need its secret %s and --provider-batch-token",
                spec.key,
                BATCH_SECRET,
            )

    def signature(self, spec: FunctionSpec) -> ModelSignature | None:
        """None: a provider's functions take plain HTTP requests."""

    def profile(self, spec: FunctionSpec) -> ModelProfile | None:
        """None: the provider's machines were not measured."""

    def nodes(self) -> tuple[Node, ...]:
        """A node per function, with its name: its cores are places, free where no slot has them."""
        looks, changes, nodes = self._nodes
        if (looks, changes) != (self._catalog.looks, self._changes):
            nodes = tuple(self._node(key) for key in sorted(self._catalog.functions()))
            self._nodes = (self._catalog.looks, self._changes, nodes)
        return nodes

    def instances(self, function: str) -> tuple[Instance, ...]:
        return tuple(slot.instance for slot in self._slots.values() if slot.instance.function == function)

    async def create(self, request: InstanceRequest) -> Instance:
        """Open a slot. Later events are reported to the listener.

        Raises:
            GnomonError: 503 `no_capacity` where all places of the replicas are taken.

        """
        assert self._listener is not None
        spec, name = request.spec, str(request.spec.key)
        self.check(spec)
        places, taken = self._catalog.places(spec.key), self._taken(spec.key)
        if request.node not in (None, name):
            raise _no_capacity(f"{name} has no slots at {request.node!r}.")
        if self._catalog.of(spec.key) is None:
            raise _no_capacity(f"The provider has no function {name}.")
        if taken >= max(places, 1):
            raise _no_capacity(f"The provider's replicas of {name} take {places} requests at once, and all of them have a slot.")
        instance = starting(self._ids.new(f"{spec.key.name}-"), request, name, 0, self._clock.now_s())
        slot = self._slots[instance.id] = Slot(instance, spec, self._listener, self._ended)
        self._changes += 1
        self._begin(instance.id, self._open(slot))
        return instance

    async def destroy(self, instance_id: str) -> None:
        """Close a slot. Unknown ids are ignored."""
        slot = self._slots.get(instance_id)
        if slot is not None:
            slot.stop()
            # As on every platform, the listener is called from the loop, after this has returned.
            asyncio.get_running_loop().call_soon(slot.end, "stopped")

    async def resize(self, instance_id: str, cores: int) -> None:
        """Do nothing: the provider decides the size of replicas."""

    async def create_shadow(self, body_id: str, pair: Pair) -> Instance:
        """Refuse: a provider's replicas share nothing that we could reach."""
        del pair
        raise GnomonError(
            409, "no_such_body", f"{body_id} is a replica of a foreign provider.", "Choose a policy that needs no Shadows."
        )

    async def promote_shadow(self, shadow_id: str) -> Instance:
        """Refuse: a foreign provider has no Shadows."""
        raise GnomonError(409, "no_such_shadow", f"There is no Shadow {shadow_id}: a foreign provider has none.", "Decide again.")

    async def change_shadow(self, shadow_id: str, pair: Pair) -> None:
        """Do nothing: a foreign provider has no Shadows."""

    def usage(self, function: str) -> Usage:
        """Return zeros: the provider measures the usage of its replicas."""
        del function
        return Usage(0.0, 0)

    async def scale(self, key: FunctionKey, replicas: int) -> None:
        """Forward the number of replicas that an operator requests. The catalog shows it at once, or after its next poll.

        Raises:
            GnomonError: what the provider answers.

        """
        await asyncio.to_thread(self._api.scale, key, replicas)
        with contextlib.suppress(GnomonError):  # the provider has taken the number; the catalog reports what is wrong
            await asyncio.to_thread(self._catalog.refresh)

    def _node(self, key: FunctionKey) -> Node:
        places = self._catalog.places(key)
        return Node(str(key), places, 0, float(max(0, places - self._taken(key))), 0, pairs=False)

    def _taken(self, key: FunctionKey) -> int:
        return sum(slot.key == key for slot in self._slots.values())

    def _begin(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        task = self._tasks[name] = asyncio.get_running_loop().create_task(work)
        task.add_done_callback(lambda _: self._tasks.pop(name, None))

    async def _open(self, slot: Slot) -> None:
        assert self._session is not None
        try:
            async with asyncio.timeout(self._options.start_timeout_s):
                await self._replica(slot.key)
        except TimeoutError:
            slot.end(f"the provider had no replica within {self._options.start_timeout_s:g} s")
        except GnomonError as error:
            slot.end(str(error))
        else:
            key = slot.key
            name = str(key) if self._catalog.has_namespaces else key.name
            route = Route(self._session, f"{self._api.url}/function/{name}", lambda: self._replica(key), self._rng)
            token = self._options.batch_token if self._batches(slot.spec) else ""
            slot.ready(ProviderChannel(route, self._context, token, slot.end))

    def _batches(self, spec: FunctionSpec) -> bool:
        """True if batches can be sent as such: the function is a Body with the secret of our batch token."""
        return spec.settings.max_batch > 1 and BATCH_SECRET in spec.secrets and bool(self._options.batch_token)

    async def _replica(self, key: FunctionKey) -> None:
        """Return when the function has a replica. Concurrent callers wake the function once."""
        listed = self._catalog.of(key)
        if not self._catalog.unreachable and listed is not None and listed.available:
            return
        task = self._waking.get(key)
        if task is None:
            task = self._waking[key] = asyncio.get_running_loop().create_task(self._wake(key))
            task.add_done_callback(lambda ended: self._woken(key, ended))
        await asyncio.shield(task)

    def _woken(self, key: FunctionKey, ended: asyncio.Task[None]) -> None:
        self._waking.pop(key, None)
        if not ended.cancelled():
            ended.exception()  # marks it as retrieved; callers that wait get it as well

    async def _wake(self, key: FunctionKey) -> None:
        """Wait for a replica; request one if there is none and none is requested.

        Raises:
            GnomonError: the provider has no such function, or refuses.

        """
        until_s = self._clock.now_s() + self._options.start_timeout_s
        requested = False
        while self._clock.now_s() < until_s:
            if self._catalog.unreachable:
                # Only the catalog polls an unreachable provider, so that a thousand waiting functions do not.
                await self._clock.sleep(AWAY_POLL_S)
                continue
            try:
                status = await asyncio.to_thread(self._api.status, key)
                if status is None:
                    raise not_found("function_not_found", f"The provider has no function {key}.", "Deploy it again.")
                if status.get("availableReplicas"):
                    await asyncio.to_thread(self._catalog.refresh)
                    return
                if not status.get("replicas") and not requested:
                    await asyncio.to_thread(self._api.scale, key, self._least(key))
                    requested = True
            except GnomonError as error:
                if error.status != HTTPStatus.SERVICE_UNAVAILABLE:
                    raise
                self._catalog.lost(error)
            await self._clock.sleep(WAKE_POLL_S)
        raise TimeoutError

    def _least(self, key: FunctionKey) -> int:
        listed = self._catalog.of(key)
        return max(1, listed.spec.settings.scale.min if listed is not None else 1)

    def _away(self, why: str) -> None:
        self._catalog.lost(unreachable(self._api.url, why))

    def _ended(self, slot: Slot) -> None:
        del self._slots[slot.instance.id]
        self._changes += 1
        task = self._tasks.get(slot.instance.id)
        if task is not None and task is not asyncio.current_task():
            task.cancel()


def _no_capacity(message: str) -> GnomonError:
    return GnomonError(503, "no_capacity", message, "More replicas, or a larger gnomon/max-inflight, give more slots.")


if TYPE_CHECKING:
    import aiohttp
