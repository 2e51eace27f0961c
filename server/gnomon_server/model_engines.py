"""Converts the models of deployed functions for faster engines and profiles them, in the background, one model at a time.

    function deployed ─▶ its model has no report on engines? ─▶ convert and measure (a process of its own) ─▶ rolling update
                      ─▶ no profile of its engine here?      ─▶ profile: at most two cores, four batches, a minute or two

The layer program serves meanwhile. A conversion has a low priority and one core; progress is in the function's log. A model that
was converted, with or without success, has a report and is not converted again. A profile that was measured while something else
used the machine is not kept, and measured again when the server starts the next time or `gnomon models profile` is used.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from pathlib import Path

from gnomon_core.engines import PROGRAM, REPORT
from gnomon_core.errors import GnomonError
from gnomon_core.functions import FunctionKey, FunctionSpec
from gnomon_core.interfaces import FunctionStore, ModelRepository
from gnomon_core.profiles import profile_name
from gnomon_gateway.functions.logs import LogBook
from gnomon_gateway.functions.manager import Manager
from gnomon_profiler.engines import add_engines, installed_engines
from gnomon_profiler.measuring.profiling import ProfileOptions, profile_model, subject_of
from gnomon_profiler.measuring.session import this_machine
from gnomon_profiler.measuring.store import ProfileStore

MOST_CORES, BATCHES, REPEATS = 2, (1, 2, 4, 8), 5
MOST_SPREAD = 0.2
"""Above this relative interquartile range the machine was used by something else."""
_LOG = logging.getLogger("gnomon")


class ModelEngines:
    """The conversions of one server. `trigger` after each change of a function; `run` until cancelled."""

    def __init__(
        self, repository: ModelRepository, profiles: Path, store: FunctionStore, manager: Manager, logs: LogBook
    ) -> None:
        self._repository, self._store, self._manager, self._logs = repository, store, manager, logs
        self._profiles = ProfileStore(profiles)
        self._changed = asyncio.Event()
        self._failed: set[str] = set()
        self._profiled: set[tuple[str, str]] = set()
        """Models and engines that were profiled, or tried, by this process."""

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
        for engine in dict.fromkeys(spec.settings.engine for spec in users):
            if (model, engine) not in self._profiled:
                self._profiled.add((model, engine))
                await asyncio.to_thread(self._profile_here, model, engine, progress)

    def _profile_here(self, model: str, engine: str, progress: Callable[[str], None]) -> None:
        try:
            entry = self._repository.get(model)
            subject = subject_of(entry, engine)
            machine = this_machine()
            if self._profiles.get(subject.name, profile_name(machine.id, subject.engine.name)) is not None:
                return
            cores = tuple(range(1, min(machine.cores, MOST_CORES) + 1))
            options = ProfileOptions(cores, BATCHES, REPEATS, tries=1, engine=engine, most_spread=MOST_SPREAD)
            progress(f"{subject.label}: profiling on {len(cores)} cores")
            profile_model(entry, self._profiles, options, lambda _: None)
            progress(f"{subject.label}: profiled")
        except GnomonError as error:
            progress(f"{model}: not profiled: {error.message}")

    def _convert_here(self, model: str, progress: Callable[[str], None]) -> bool:
        try:
            entry = self._repository.get(model)
        except GnomonError:
            return False  # the function is refused or reported elsewhere
        if REPORT in entry.files:
            return False
        return REPORT in add_engines(self._repository, entry, progress=progress, background=True).files

    def _tell(self, keys: Iterable[FunctionKey], line: str) -> None:
        for key in keys:
            self._logs.append(key, "", f"gnomon: {line}")

    async def _renew(self, key: FunctionKey) -> None:
        try:
            await self._manager.renew(key)
        except GnomonError as error:
            self._tell([key], f"the new engine serves from the next deployment on: {error.message}")
