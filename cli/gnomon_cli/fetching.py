"""Brings a model that a function names to this machine. Capturing takes seconds and has a process of its own.

A model that is here costs a look at the directory; one that is in a bucket is fetched by that look, beside the event loop, so
that nobody who asks for it later waits for hundreds of megabytes. One that nobody knows is left for the platform to refuse.
"""

from __future__ import annotations

import asyncio

from gnomon_core.errors import GnomonError
from gnomon_core.interfaces import ModelRepository
from gnomon_profiler.add import VERSION, ensure_model
from gnomon_profiler.names import in_catalog


class ModelFetcher:
    """Captures known models on demand; deployments that name the same one wait for one capture."""

    def __init__(self, repository: ModelRepository) -> None:
        self._repository = repository
        self._locks: dict[str, asyncio.Lock] = {}

    async def fetch(self, reference: str) -> None:
        """Return when the model is here, or at once if it cannot be brought here.

        Raises:
            GnomonError: 422 for a model that cannot be captured.

        """
        name, _, version = reference.partition("@")
        async with self._locks.setdefault(name, asyncio.Lock()):
            # The catalog's own is of one version: another was never put, and half a minute of capturing brings it no nearer.
            if not await asyncio.to_thread(self._is_there, reference) and in_catalog(name) and version in ("", VERSION):
                await asyncio.to_thread(ensure_model, self._repository, name)

    def _is_there(self, reference: str) -> bool:
        try:
            self._repository.get(reference)
        except GnomonError:
            return False
        return True
