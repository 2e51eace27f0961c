"""Brings a model that a function names into the repository. Capturing takes seconds and has a process of its own.

A model that is there costs a look at the directory; one that nobody knows is left for the platform to refuse.
"""

from __future__ import annotations

import asyncio

from gnomon_core.errors import GnomonError
from gnomon_core.seams import ModelRepository
from gnomon_profiler.add import ensure_model
from gnomon_profiler.names import in_catalog


class ModelFetcher:
    """Captures known models on demand; deployments that name the same one wait for one capture."""

    def __init__(self, repository: ModelRepository) -> None:
        self._repository = repository
        self._locks: dict[str, asyncio.Lock] = {}

    async def fetch(self, reference: str) -> None:
        """Return when the model is in the repository, or at once if it cannot be brought there.

        Raises:
            GnomonError: 422 for a model that cannot be captured.

        """
        name = reference.partition("@")[0]
        async with self._locks.setdefault(name, asyncio.Lock()):
            if in_catalog(name) and not await asyncio.to_thread(self._is_there, reference):
                await asyncio.to_thread(ensure_model, self._repository, name)

    def _is_there(self, reference: str) -> bool:
        try:
            self._repository.get(reference)
        except GnomonError:
            return False
        return True
