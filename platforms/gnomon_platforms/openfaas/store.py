"""The store of functions that is the cluster itself: see `stored_functions`, `stored_secrets` and `stored_namespaces`.

Nothing is kept beside Kubernetes: whoever has a kubeconfig sees the same functions, and a gateway on another machine serves them.
Calls block. What they wait for runs on a thread with an event loop of its own, on which informers and writer live; watchers are
called there as well, and may ask for functions and namespaces, but must not write.
"""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress

from gnomon_core.clock import Clock, WallClock
from gnomon_core.functions import FunctionKey
from gnomon_core.seam_values import StoredFunction, StoredNamespace
from gnomon_platforms.kubernetes.api import Api, Fence
from gnomon_platforms.kubernetes.loop_thread import LoopThread
from gnomon_platforms.kubernetes.objects.pod_template import PodOptions
from gnomon_platforms.kubernetes.writes import Writer
from gnomon_platforms.openfaas.stored_functions import StoredFunctions
from gnomon_platforms.openfaas.stored_namespaces import StoredNamespaces
from gnomon_platforms.openfaas.stored_secrets import StoredSecrets


class KubernetesStore:
    """See `gnomon_core.seams.FunctionStore`.

    `namespace` None looks after every namespace that is marked. `fence` is asked right before each write; `chance` draws pauses.
    """

    def __init__(
        self,
        api: Api,
        *,
        namespace: str | None = None,
        pods: PodOptions | None = None,
        fence: Fence | None = None,
        clock: Clock | None = None,
        chance: random.Random | None = None,
    ) -> None:
        self._watchers: list[Callable[[FunctionKey], None]] = []
        self._namespace_watchers: list[Callable[[], None]] = []
        self._lock = threading.Lock()
        self._writer = Writer(api, clock or WallClock(), chance or random.SystemRandom(), fence)
        self._functions = StoredFunctions(api, self._writer, namespace, pods or PodOptions(), self._tell)
        self._secrets = StoredSecrets(self._writer)
        self._namespaces = StoredNamespaces(api, self._writer, self._tell_of_namespaces, all_=namespace is None)
        self._thread = LoopThread("functions")
        try:
            self._thread.call(self._start())
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Look no longer. Everything stays in the cluster."""
        with suppress(RuntimeError):  # it was closed before
            self._thread.call(self._stop())
        self._thread.close()
        self._writer.close()

    def catch_up(self) -> None:
        """Return when all is known here that was stored when this was called.

        Raises:
            GnomonError: 503 `kubernetes_…`: the API server could not be asked in time.

        """
        self._thread.call(self._catch_up())

    def put_function(self, stored: StoredFunction) -> None:
        self._thread.call(self._functions.put(stored))

    def delete_function(self, key: FunctionKey) -> bool:
        return self._thread.call(self._functions.delete(key))

    def functions(self) -> Sequence[StoredFunction]:
        return self._functions.all()

    def put_secret(self, key: FunctionKey, value: bytes) -> None:
        self._thread.call(self._secrets.put(key, value))

    def secret(self, key: FunctionKey) -> bytes | None:
        return self._thread.call(self._secrets.get(key))

    def delete_secret(self, key: FunctionKey) -> bool:
        return self._thread.call(self._secrets.delete(key))

    def secrets(self, namespace: str) -> Sequence[str]:
        return self._thread.call(self._secrets.names(namespace))

    def put_namespace(self, stored: StoredNamespace) -> None:
        self._thread.call(self._namespaces.put(stored))

    def delete_namespace(self, name: str) -> bool:
        return self._thread.call(self._namespaces.delete(name))

    def namespaces(self) -> Sequence[StoredNamespace]:
        return self._namespaces.all()

    def watch(self, changed: Callable[[FunctionKey], None]) -> Callable[[], None]:
        return self._watch(self._watchers, changed)

    def watch_namespaces(self, changed: Callable[[], None]) -> Callable[[], None]:
        """Call `changed` after each change of the namespaces, until the returned function is called."""
        return self._watch(self._namespace_watchers, changed)

    async def _start(self) -> None:
        await self._functions.start()
        await self._namespaces.start()

    async def _catch_up(self) -> None:
        await asyncio.gather(self._functions.catch_up(), self._namespaces.catch_up())

    async def _stop(self) -> None:
        await self._functions.stop()
        await self._namespaces.stop()

    def _watch(self, watchers: list[Callable[..., None]], changed: Callable[..., None]) -> Callable[[], None]:
        with self._lock:
            watchers.append(changed)

        def stop() -> None:
            with self._lock, suppress(ValueError):
                watchers.remove(changed)

        return stop

    def _tell(self, key: FunctionKey) -> None:
        with self._lock:
            watchers = tuple(self._watchers)
        for changed in watchers:
            changed(key)

    def _tell_of_namespaces(self) -> None:
        with self._lock:
            watchers = tuple(self._namespace_watchers)
        for changed in watchers:
            changed()
