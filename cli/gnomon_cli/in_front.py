"""`gnomon serve --platform provider`: a foreign provider as the store of functions and as the platform.

PUT, POST, DELETE, secrets, namespaces ─▶ the store, which is the provider
/system/function, scale-function       ─▶ its replicas, not our slots: `ProvidedFunctions`
/function/…                            ─▶ queue ▶ slots ▶ the provider's /function/…
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace

from gnomon_cli.following import Following, Work
from gnomon_core.clock import Clock
from gnomon_core.errors import GnomonError
from gnomon_core.functions import FunctionKey, FunctionSpec
from gnomon_core.scaling import DecisionRecord
from gnomon_gateway.api.control import unknown_function
from gnomon_gateway.functions.manager import Manager
from gnomon_gateway.service import FunctionDetail, FunctionStatus, KnownPolicies
from gnomon_platforms.provider.api import ProviderApi
from gnomon_platforms.provider.catalog import Catalog
from gnomon_platforms.provider.options import ProviderOptions
from gnomon_platforms.provider.platform import ProviderPlatform
from gnomon_platforms.provider.store import ProviderStore

_LOG = logging.getLogger("gnomon.provider")


class InFront:
    """What is made of a provider.

    Raises:
        GnomonError: 503 `provider_unreachable`, 502 `provider_credentials`.

    """

    def __init__(self, options: ProviderOptions, clock: Clock) -> None:
        api = ProviderApi(options)
        self._catalog = Catalog(api, options)
        self._catalog.start()
        self.store = ProviderStore(api, self._catalog)
        self.platform = ProviderPlatform(api, self._catalog, options, clock=clock)
        self._functions: ProvidedFunctions | None = None
        self._following = Following()

    def functions(self, manager: Manager) -> ProvidedFunctions:
        """The manager's functions with the provider's replicas, which are followed from then on."""
        self._functions = ProvidedFunctions(manager, self._catalog, self.platform)
        return self._functions

    def follow(self, namespaces: Callable[[], Work]) -> None:
        """Serve what somebody else deploys, changes or removes at the provider."""
        assert self._functions is not None
        self._following.begin(self.store, self._functions.follow, namespaces)


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
        """Serve a function as the provider has it now. Where that cannot be, it is served as it was, and the log says why."""
        await self._manager.follow(key)
        listed, served = self._catalog.of(key), self._manager.status(key)
        if listed is None or served is None or served.spec == listed.spec:
            return
        try:
            await self._manager.update(listed.spec)
        except GnomonError as error:
            _LOG.warning("%s has been changed at the provider, and is served as it was: %s", key, error)

    async def scale(self, key: FunctionKey, replicas: int) -> None:
        """Ask the provider for replicas: we have none."""
        if self._manager.status(key) is None:
            raise unknown_function(key)
        await self._platform.scale(key, replicas)

    def status(self, key: FunctionKey, *, usage: bool = False) -> FunctionStatus | None:
        """What replicas use is left out: their provider measures it."""
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
