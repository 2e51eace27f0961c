"""`gnomon serve --platform provider`: a foreign provider as the store of functions and as the platform.

PUT, POST, DELETE, secrets, namespaces ─▶ the store, which is the provider
/system/function, scale-function       ─▶ its replicas, not our slots: `ProvidedFunctions`
/function/…                            ─▶ queue ▶ slots ▶ the provider's /function/…
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace

from gnomon_autoscaler.registry import Policies, provided
from gnomon_core.clock import Clock
from gnomon_core.errors import GnomonError
from gnomon_core.functions import FunctionKey, FunctionSpec
from gnomon_core.interfaces import ModelRepository
from gnomon_core.scaling import DecisionRecord
from gnomon_gateway.functions.logs import LogReader
from gnomon_gateway.functions.manager import Manager
from gnomon_gateway.functions.service import FunctionDetail, FunctionStatus, KnownPolicies, unknown_function
from gnomon_platforms.images import BuiltImages
from gnomon_platforms.provider.api import ProviderApi
from gnomon_platforms.provider.catalog import Catalog, ProviderStore
from gnomon_platforms.provider.platform import ProviderPlatform
from gnomon_server.options import ServeOptions
from gnomon_server.platforms import Backend
from gnomon_server.store_changes import StoreChanges, Work

_LOG = logging.getLogger("gnomon.provider")


class ProviderBackend(Backend):
    """Functions and replicas are a foreign provider's.

    Raises:
        GnomonError: 503 `provider_unreachable`, 502 `provider_credentials`.

    """

    orchestration = "provider"
    isolates_users = False
    provided = True
    place = "provider"

    def __init__(self, serve: ServeOptions, repository: ModelRepository, built: BuiltImages, clock: Clock) -> None:
        del repository, built  # functions bring their models and images along
        assert serve.provider is not None
        api = ProviderApi(serve.provider)
        self._catalog = Catalog(api, serve.provider)
        self._catalog.start()
        self.store: ProviderStore = ProviderStore(api, self._catalog)
        self.platform: ProviderPlatform = ProviderPlatform(api, self._catalog, serve.provider, clock=clock)
        self._changes = StoreChanges(clock)

    @property
    def stored_logs(self) -> LogReader:
        return self.platform.logs

    def policies(self, policies: Policies) -> Policies:
        return provided(policies)

    def functions(self, manager: Manager) -> ProvidedFunctions:
        return ProvidedFunctions(manager, self._catalog, self.platform)

    def follow(self, manager: Manager, namespaces: Callable[[], Work]) -> None:
        """Follow deployments, changes and removals by others at the provider."""
        self._changes.follow(self.store, self.functions(manager).follow, namespaces)

    async def end(self) -> None:
        await asyncio.to_thread(self.store.close)


class ProvidedFunctions:
    """A `FunctionService` whose replicas are the provider's."""

    def __init__(self, manager: Manager, catalog: Catalog, platform: ProviderPlatform) -> None:
        self._manager, self._catalog, self._platform = manager, catalog, platform

    async def deploy(self, spec: FunctionSpec) -> None:
        await self._manager.deploy(spec)

    async def update(self, spec: FunctionSpec) -> None:
        await self._manager.update(spec)

    async def remove(self, key: FunctionKey) -> None:
        await self._manager.remove(key)

    async def follow(self, key: FunctionKey) -> None:
        """Apply the provider's current settings of a function. If they are refused, log why and keep the earlier ones."""
        await self._manager.follow(key)
        listed, served = self._catalog.of(key), self._manager.status(key)
        if listed is None or served is None or served.spec == listed.spec:
            return
        try:
            await self._manager.update(listed.spec)
        except GnomonError as error:
            _LOG.warning("function %s has changed at the provider, but its former version stays in use: %s", key, error)

    async def scale(self, key: FunctionKey, replicas: int) -> None:
        """Ask the provider for replicas."""
        if self._manager.status(key) is None:
            raise unknown_function(key)
        await self._platform.scale(key, replicas)

    def status(self, key: FunctionKey, *, usage: bool = False) -> FunctionStatus | None:
        """The status without usage, which the provider measures."""
        del usage
        status = self._manager.status(key)
        return None if status is None else self._provided(status)

    def detail(self, key: FunctionKey) -> FunctionDetail | None:
        detail = self._manager.detail(key)
        return None if detail is None else replace(detail, status=self._provided(detail.status))

    def list(self, namespace: str) -> Sequence[FunctionStatus]:
        return [self._provided(status) for status in self._manager.list(namespace)]

    def decisions(self, key: FunctionKey, limit: int) -> Sequence[DecisionRecord] | None:
        return self._manager.decisions(key, limit)

    def policies(self) -> KnownPolicies:
        return self._manager.policies()

    def _provided(self, status: FunctionStatus) -> FunctionStatus:
        listed = self._catalog.of(status.spec.key)
        replicas, available = (0, 0) if listed is None else (listed.replicas, listed.available)
        return replace(status, replicas=replicas, available_replicas=available)
