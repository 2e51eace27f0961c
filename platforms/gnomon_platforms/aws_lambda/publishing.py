"""Published versions, made once for whoever needs them, and functions that are removed when nobody does any more.

Slots of one function that begin together wait for one deployment; deployments of one function follow one another.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import Executor

from gnomon_core.background import Background
from gnomon_core.errors import GnomonError
from gnomon_core.functions import FunctionKey
from gnomon_platforms.aws_lambda.functions import RemoteFunctions
from gnomon_platforms.aws_lambda.recipes import Recipe

LINGER_S = 900.0
"""How long a function without slots stays: deploying it again takes seconds, keeping it costs nothing."""

_LOG = logging.getLogger(__name__)


class Publisher:
    """The versions of every function. `in_use` says whether a function has slots. On the event loop."""

    def __init__(self, remote: RemoteFunctions, threads: Executor, in_use: Callable[[str], bool]) -> None:
        self._remote = remote
        self._threads = threads
        self._in_use = in_use
        self._versions: dict[str, dict[tuple[str, int], asyncio.Task[str]]] = {}
        self._locks: dict[str, asyncio.Lock] = {}
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._removals = Background()

    def name(self, key: FunctionKey, recipe: Recipe) -> str:
        """The function's name on Lambda."""
        return self._remote.name(key, recipe)

    async def version(self, key: FunctionKey, recipe: Recipe, memory_mb: int) -> str:
        """The version of this revision and size, published if it was not.

        Raises:
            GnomonError: 422 or 503: what AWS says against it. The next who asks tries again.

        """
        name = self.name(key, recipe)
        made = self._versions.setdefault(name, {})
        wanted = (recipe.revision, memory_mb)
        if wanted not in made or _failed(made[wanted]):
            made[wanted] = asyncio.get_running_loop().create_task(self._publish(name, recipe, memory_mb))
        try:
            # Who stops waiting does not stop the others.
            return await asyncio.shield(made[wanted])
        finally:
            self.released(name)

    def released(self, name: str) -> None:
        """Something of this function has ended: remove it later, unless it is used again by then."""
        timer = self._timers.pop(name, None)
        if timer is not None:
            timer.cancel()
        if name in self._versions and not self._in_use(name):
            self._timers[name] = asyncio.get_running_loop().call_later(LINGER_S, self._begin_removal, name)

    async def stop(self) -> None:
        """Remove every function, once what is being deployed is there."""
        for timer in self._timers.values():
            timer.cancel()
        publishing = [task for made in self._versions.values() for task in made.values()]
        await asyncio.gather(*publishing, self._removals.settled(), return_exceptions=True)
        await asyncio.gather(*(self._remove(name) for name in list(self._versions)))

    async def _publish(self, name: str, recipe: Recipe, memory_mb: int) -> str:
        loop = asyncio.get_running_loop()
        async with self._locks.setdefault(name, asyncio.Lock()):
            package = await loop.run_in_executor(self._threads, self._remote.package, recipe)
            return await loop.run_in_executor(self._threads, self._remote.publish, name, recipe, package, memory_mb)

    def _begin_removal(self, name: str) -> None:
        self._removals.begin(self._remove_unused(name))

    async def _remove_unused(self, name: str) -> None:
        if not self._in_use(name):
            await self._remove(name)

    async def _remove(self, name: str) -> None:
        """From here on its versions are forgotten; whoever needs one waits for the lock and deploys it again."""
        self._versions.pop(name, None)
        async with self._locks.setdefault(name, asyncio.Lock()):
            try:
                await asyncio.get_running_loop().run_in_executor(self._threads, self._remote.delete, name)
            except GnomonError as error:
                _LOG.warning("%s", error)


def _failed(task: asyncio.Task[str]) -> bool:
    return task.done() and (task.cancelled() or task.exception() is not None)
