"""Functions that this gateway stores itself: on this machine as processes, or on AWS Lambda.

Both keep functions in SQLite and capture models of the catalog on demand.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from gnomon_core.clock import Clock
from gnomon_core.errors import GnomonError, stopping
from gnomon_core.interfaces import ModelRepository
from gnomon_gateway.redis_store import RedisStore
from gnomon_gateway.store import SqliteStore
from gnomon_platforms.images import BuiltImages
from gnomon_platforms.local.platform import LocalPlatform
from gnomon_profiler.add import VERSION, ensure_model
from gnomon_profiler.child_processes import ChildProcesses
from gnomon_profiler.measuring.session import this_machine
from gnomon_profiler.measuring.store import FOLDER as PROFILES
from gnomon_profiler.names import in_catalog
from gnomon_server.options import ServeOptions
from gnomon_server.platforms import Backend
from gnomon_server.process import THREADS, memory_is_short


class StoredHere(Backend):
    """Functions in SQLite in the state folder, models in the repository; registered models there too, or in Redis."""

    def __init__(self, options: ServeOptions, repository: ModelRepository) -> None:
        self.store: SqliteStore = SqliteStore(options.state / "functions.db")
        self._redis = RedisStore(options.store, self.store, options.state / "redis.db") if options.store else None
        self.metadata = self._redis or self.store
        self._models = ModelFetcher(repository)

    async def fetch_model(self, reference: str) -> None:
        await self._models.fetch(reference)

    def leave(self) -> None:
        self._models.end()

    async def end(self) -> None:
        if self._redis is not None:
            await asyncio.to_thread(self._redis.close)
        await asyncio.to_thread(self.store.close)


class LocalBackend(StoredHere):
    """Instances are processes of this machine."""

    def __init__(self, options: ServeOptions, repository: ModelRepository, built: BuiltImages, clock: Clock) -> None:
        super().__init__(options, repository)
        self.place = this_machine().id
        self.platform = LocalPlatform(
            options.state / "platform",
            repository=repository,
            built=built,
            images=options.images,
            cores=options.cores,
            preload_torch=options.pool > 0 and not memory_is_short(),
            pool=options.pool,
            reserved_cores=options.reserved_cores,
            lend_cores=options.lend_cores,
            profiles=options.model_folder / PROFILES,
            machine_id=self.place,
            clock=clock,
        )


class LambdaBackend(StoredHere):
    """A batch is one Invoke of a function on AWS Lambda."""

    place = "lambda"

    def __init__(self, options: ServeOptions, repository: ModelRepository, built: BuiltImages, clock: Clock) -> None:
        from gnomon_platforms.aws_lambda.platform import LambdaPlatform  # noqa: PLC0415 - boto3 is an extra of its own

        assert options.aws is not None
        super().__init__(options, repository)
        profiles = options.model_folder / PROFILES
        self.platform = LambdaPlatform(options.aws, repository, built, images=options.images, profiles=profiles, clock=clock)


MOST_CAPTURES = 2
"""Concurrent captures: each takes a core, and a gigabyte or more."""


class ModelFetcher:
    """Brings the models that functions name to this machine; deployments that name the same model wait for one capture.

    A model in the repository folder is only looked up. A model in a bucket is downloaded by the look-up, in a thread, so that no
    later look-up waits for hundreds of megabytes. The platform refuses an unknown model.
    """

    def __init__(self, repository: ModelRepository) -> None:
        self._repository = repository
        self._processes = ChildProcesses()
        self._threads = ThreadPoolExecutor(MOST_CAPTURES, f"{THREADS}-capture")
        self._locks: dict[str, asyncio.Lock] = {}
        self._fetches: dict[str, asyncio.Task[None]] = {}
        self._ended = False

    async def fetch(self, reference: str) -> None:
        """Wait until the model is on this machine. Returns at once if it cannot be fetched or captured.

        Raises:
            GnomonError: 422 for a model that cannot be captured; 503 `stopping`, after `end`.

        """
        if self._ended:
            raise stopping()
        if (fetching := self._fetches.get(reference)) is None:
            fetching = self._fetches[reference] = asyncio.create_task(self._fetch(reference))
            fetching.add_done_callback(partial(self._fetched, reference))
        try:
            # A caller that stops waiting, such as a client that leaves, does not end a fetch: its next call finds the model.
            await asyncio.shield(fetching)
        except asyncio.CancelledError:
            if fetching.cancelled():
                raise stopping() from None  # by `end`
            raise

    def _fetched(self, reference: str, fetching: asyncio.Task[None]) -> None:
        del self._fetches[reference]
        if not fetching.cancelled():
            fetching.exception()  # those who still wait get it

    async def _fetch(self, reference: str) -> None:
        name, _, version = reference.partition("@")
        async with self._locks.setdefault(name, asyncio.Lock()):
            # The catalog has one version of each model: half a minute of capturing would not produce the requested one.
            if not await asyncio.to_thread(self._is_there, reference) and in_catalog(name) and version in ("", VERSION):
                capture = partial(ensure_model, self._repository, name, processes=self._processes)
                await asyncio.get_running_loop().run_in_executor(self._threads, capture)

    def end(self) -> None:
        """End the captures under way, begin none, and wait for no repository that hangs."""
        self._ended = True
        self._processes.end()
        for fetching in self._fetches.values():
            fetching.cancel()
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _is_there(self, reference: str) -> bool:
        try:
            self._repository.get(reference)
        except GnomonError:
            return False
        return True
