"""Converts the models of deployed functions for faster engines, in the background, one model at a time.

    function deployed ─▶ its model has no report on engines? ─▶ convert and measure (a process of its own) ─▶ rolling update

The layer program serves meanwhile. The work has a low priority and one core, its progress is in the function's log, and a model
that was converted, with or without success, has a report and is not converted again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable

from gnomon_core.engines import PROGRAM, REPORT
from gnomon_core.errors import GnomonError
from gnomon_core.functions import FunctionKey, FunctionSpec
from gnomon_core.interfaces import FunctionStore, ModelRepository
from gnomon_gateway.functions.logs import LogBook
from gnomon_gateway.functions.manager import Manager
from gnomon_profiler.engines import add_engines, installed_engines

_LOG = logging.getLogger("gnomon")


class ModelEngines:
    """The conversions of one server. `trigger` after each change of a function; `run` until cancelled."""

    def __init__(self, repository: ModelRepository, store: FunctionStore, manager: Manager, logs: LogBook) -> None:
        self._repository, self._store, self._manager, self._logs = repository, store, manager, logs
        self._changed = asyncio.Event()
        self._failed: set[str] = set()

    def trigger(self) -> None:
        """A function has been deployed or changed."""
        self._changed.set()

    async def run(self) -> None:
        """Convert what deployed functions need, whenever one has changed."""
        if not installed_engines():
            return
        self._changed.set()
        while True:
            await self._changed.wait()
            self._changed.clear()
            stored = await asyncio.to_thread(self._store.functions)
            functions = [one.spec for one in stored if one.spec.settings.application is None]
            specs = [spec for spec in functions if spec.settings.model and spec.settings.engine != PROGRAM]
            for model in dict.fromkeys(spec.settings.model for spec in specs):
                users = [spec for spec in specs if spec.settings.model == model]
                if model is not None and model not in self._failed:
                    await self._convert(model, users)

    async def _convert(self, model: str, users: Iterable[FunctionSpec]) -> None:
        keys = [spec.key for spec in users]
        loop = asyncio.get_running_loop()

        def progress(line: str) -> None:
            loop.call_soon_threadsafe(self._tell, keys, line)

        try:
            converted = await asyncio.to_thread(self._convert_here, model, progress)
        except Exception as error:  # noqa: BLE001 - the program serves; the next model must still be converted
            self._failed.add(model)
            self._tell(keys, f"{model}: could not be converted for other engines: {error}")
            _LOG.warning("%s could not be converted for other engines: %s", model, error)
            return
        if converted:
            for key in keys:
                await self._renew(key)

    def _convert_here(self, model: str, progress: Callable[[str], None]) -> bool:
        try:
            entry = self._repository.get(model)
        except GnomonError:
            return False  # the function is refused or reported elsewhere
        if REPORT in entry.files:
            return False
        return REPORT in add_engines(self._repository, entry, progress=progress).files

    def _tell(self, keys: Iterable[FunctionKey], line: str) -> None:
        for key in keys:
            self._logs.append(key, "", f"gnomon: {line}")

    async def _renew(self, key: FunctionKey) -> None:
        try:
            await self._manager.renew(key)
        except GnomonError as error:
            self._tell([key], f"the new engine serves from the next deployment on: {error.message}")
