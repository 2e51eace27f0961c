"""Converts models in use for faster engines and profiles them, in the background, one model at a time.

    function deployed ──┬▶ its model has no report on engines? ─▶ convert and measure (own process) ─▶ rolling update, or variants
    model registered  ──┘▶ no profile of its engines here?     ─▶ profile: at most two cores, four batches, a minute or two

A model is in use by functions that name it, and by applications for which it is registered: those use every engine that it has.
The layer program serves meanwhile. All models are converted before the first is profiled. Processes of the background have a low
priority; progress is in the function's log and in the description of the application. A model that was converted, with or without
success, has a report and is not converted again, unless a function asks for a precision that the report lacks, or the model has
got a validation set since. A profile that was measured while something else used the machine is not kept,
and measured again when the server starts the next time or `gnomon models profile` is used. A server that stops ends its
conversion or measurement at once; it begins anew after the next start.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from gnomon_core.engines import FP32, PROGRAM, REPORT, split_name
from gnomon_core.errors import GnomonError
from gnomon_core.functions import FunctionKey
from gnomon_core.interfaces import FunctionStore, ModelRepository
from gnomon_core.profiles import profile_name
from gnomon_gateway.applications.service import Applications
from gnomon_gateway.functions.logs import LogBook
from gnomon_gateway.functions.manager import Manager
from gnomon_profiler.child_processes import ChildProcesses
from gnomon_profiler.engines import add_engines, installed_engines
from gnomon_profiler.measuring.profiling import ProfileOptions, profile_model, subject_of
from gnomon_profiler.measuring.session import this_machine
from gnomon_profiler.measuring.store import ProfileStore

MOST_CORES, BATCHES, REPEATS = 2, (1, 2, 4, 8), 5
MOST_SPREAD = 0.2
"""Relative interquartile range above which something else used the machine."""
_LOG = logging.getLogger("gnomon")


@dataclass(slots=True)
class Use:
    """The users of one model, the engines, precisions and accuracy floors that they name, and the precisions to convert to."""

    functions: list[FunctionKey] = field(default_factory=list)
    applications: list[FunctionKey] = field(default_factory=list)
    engines: set[tuple[str, str, float]] = field(default_factory=set)
    precisions: set[str] = field(default_factory=lambda: {FP32})


class ModelEngines:
    """The conversions of one server. `trigger` after each change of a function or application; `run` once, until cancelled."""

    def __init__(
        self,
        repository: ModelRepository,
        profiles: Path,
        store: FunctionStore,
        manager: Manager,
        logs: LogBook,
        *,
        applications: Applications | None = None,
    ) -> None:
        self._applications = applications
        self._repository, self._store, self._manager, self._logs = repository, store, manager, logs
        self._profiles = ProfileStore(profiles)
        self._changed = asyncio.Event()
        self._processes = ChildProcesses()
        self._failed: set[str] = set()
        self._profiled: set[tuple[str, str, str, float]] = set()
        """Models, engines, precisions and accuracy floors that were profiled, or tried, by this process."""

    def trigger(self) -> None:
        """Convert again: a function was deployed or changed, or a model registered."""
        self._changed.set()

    async def run(self) -> None:
        """Convert and profile what functions and applications use, whenever that has changed."""
        if not installed_engines():
            return
        self._changed.set()
        try:
            await self._follow()
        finally:
            self._processes.end()

    async def _follow(self) -> None:
        while True:
            await self._changed.wait()
            self._changed.clear()
            uses = await self._uses()
            for model, use in uses.items():
                if model not in self._failed:
                    await self._convert(model, use)
            for model, use in uses.items():
                if model not in self._failed and not self._changed.is_set():
                    await self._profile(model, use)

    async def _uses(self) -> dict[str, Use]:
        """The models in use on other engines than the program, with their users."""
        uses: dict[str, Use] = {}
        for stored in await asyncio.to_thread(self._store.functions):
            settings = stored.spec.settings
            if settings.application is None and settings.model and settings.engine != PROGRAM:
                use = uses.setdefault(settings.model, Use())
                use.functions.append(stored.spec.key)
                use.engines.add((settings.engine, settings.precision, settings.accuracy_floor or 0.0))
                use.precisions.add(settings.precision)
        for registered in self._applications.registered() if self._applications is not None else ():
            if registered.engines != (PROGRAM,):
                use = uses.setdefault(registered.model, Use())
                use.applications.append(registered.application)
                use.engines.update((*split_name(name), 0.0) for name in registered.engines)
        return uses

    async def _convert(self, model: str, use: Use) -> None:
        try:
            converted = await asyncio.to_thread(self._convert_here, model, use.precisions, self._progress(model, use))
        except Exception as error:  # noqa: BLE001 - the program serves; the next model must still be converted
            self._failed.add(model)
            self._tell(model, use, f"{model}: could not be converted for other engines: {error}")
            _LOG.warning("%s could not be converted for other engines: %s", model, error)
            return
        if converted:
            for key in use.functions:
                await self._renew(model, key)
            for application in use.applications:
                self._reconcile(application)

    async def _profile(self, model: str, use: Use) -> None:
        for wanted in sorted(use.engines):
            if (model, *wanted) not in self._profiled:
                self._profiled.add((model, *wanted))
                if await asyncio.to_thread(self._profile_here, model, wanted, self._progress(model, use)):
                    for application in use.applications:
                        self._reconcile(application)

    def _progress(self, model: str, use: Use) -> Callable[[str], None]:
        """A function that reports progress from another thread."""
        loop = asyncio.get_running_loop()

        def progress(line: str) -> None:
            loop.call_soon_threadsafe(self._tell, model, use, line)

        return progress

    def _profile_here(self, model: str, wanted: tuple[str, str, float], progress: Callable[[str], None]) -> bool:
        """Return whether the model has a profile of this engine and precision that it did not have."""
        engine, precision, floor = wanted
        try:
            entry = self._repository.get(model)
            subject = subject_of(entry, engine, precision, floor)
            machine = this_machine()
            if self._profiles.get(subject.name, profile_name(machine.id, subject.engine.name)) is not None:
                return False
            cores = tuple(range(1, min(machine.cores, MOST_CORES) + 1))
            options = ProfileOptions(
                cores, BATCHES, REPEATS, tries=1, engine=engine, precision=precision, floor=floor, most_spread=MOST_SPREAD
            )
            progress(f"{subject.label}: profiling on {len(cores)} cores")
            profile_model(entry, self._profiles, options, lambda _: None, processes=self._processes)
            progress(f"{subject.label}: profiled")
        except GnomonError as error:
            if error.code != "engine_not_offered":
                progress(f"{model}: not profiled: {error.message}")
            return False
        return True

    def _convert_here(self, model: str, precisions: Iterable[str], progress: Callable[[str], None]) -> bool:
        try:
            entry = self._repository.get(model)
        except GnomonError:
            return False  # the function is refused or reported elsewhere
        converted = add_engines(
            self._repository, entry, progress=progress, precisions=precisions, background=True, processes=self._processes
        )
        return converted.sha256.get(REPORT) != entry.sha256.get(REPORT)

    def _tell(self, model: str, use: Use, line: str) -> None:
        for key in use.functions:
            self._logs.append(key, "", f"gnomon: {line}")
        if self._applications is not None:
            for application in use.applications:
                self._applications.report_progress(application, model, line)

    def _reconcile(self, application: FunctionKey) -> None:
        if self._applications is not None:
            self._applications.reconcile(application)

    async def _renew(self, model: str, key: FunctionKey) -> None:
        try:
            await self._manager.renew(key)
        except GnomonError as error:
            self._tell(model, Use([key]), f"the new engine serves from the next deployment on: {error.message}")
