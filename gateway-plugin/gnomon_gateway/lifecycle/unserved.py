"""Functions that are stored and cannot be served, such as one whose secret has been deleted: known all the same, and tried again.

    cannot be served ▶ its log says why ▶ tried again every five seconds ─┬─ served ──▶ forgotten
                                                                          └─ removed ─▶ forgotten

Meanwhile the API lists them without a replica, and calls of them are refused with 503: what is temporary is no 404.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator

from gnomon_core.errors import GnomonError
from gnomon_core.functions import FunctionKey, parse_key
from gnomon_core.seam_values import StoredFunction
from gnomon_gateway.service import FunctionDetail, FunctionStatus
from gnomon_gateway.serving.pair_metrics import PairMetrics

AGAIN_S = 5.0

_LOG = logging.getLogger("gnomon.functions")


class Unserved:
    """`again` tries to serve a function once more, and adds it again where that fails. `log` keeps a line of ours for it."""

    def __init__(self, again: Callable[[FunctionKey], Awaitable[None]], log: Callable[[FunctionKey, str, str], None]) -> None:
        self._again, self._log = again, log
        self._stored: dict[FunctionKey, StoredFunction] = {}
        self._reasons: dict[FunctionKey, str] = {}
        self._task: asyncio.Task[None] | None = None

    def __contains__(self, key: FunctionKey) -> bool:
        return key in self._stored

    def __iter__(self) -> Iterator[FunctionKey]:
        return iter(self._stored)

    def add(self, stored: StoredFunction, reason: str) -> None:
        """It cannot be served. A reason that has been told already is not told again."""
        key = stored.spec.key
        self._stored[key] = stored
        if self._reasons.get(key) != reason:
            self._reasons[key] = reason
            self._log(key, "", f"gnomon: {key} is not served: {reason}")
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())

    def forget(self, key: FunctionKey) -> None:
        """It is served, or there is no such function any more."""
        self._stored.pop(key, None)
        self._reasons.pop(key, None)

    def get(self, key: FunctionKey) -> StoredFunction | None:
        """What is stored of it; None for a function that is none of these."""
        return self._stored.get(key)

    def status(self, key: FunctionKey) -> FunctionStatus | None:
        stored = self._stored.get(key)
        return None if stored is None else FunctionStatus(stored.spec, stored.created_at)

    def detail(self, key: FunctionKey) -> FunctionDetail | None:
        status = self.status(key)
        return None if status is None else FunctionDetail(status, status.spec.settings.scheduler or "", (), {}, PairMetrics())

    def refusal(self, name: str) -> GnomonError | None:
        """What a call of `name` or `name.namespace` is answered; None where that is none of these."""
        if parse_key(name) not in self._stored:
            return None
        # The reason may name a secret, and whoever may call a function need not know of those.
        text = f"The function {name[:200]!r} cannot be served now."
        return GnomonError(503, "function_not_served", text, "Its log says why; it is tried again.", retry_after_s=AGAIN_S)

    async def stop(self) -> None:
        """Try no more."""
        self._stored.clear()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while self._stored:
            await asyncio.sleep(AGAIN_S)
            for key in tuple(self._stored):
                try:
                    await self._again(key)
                except Exception:  # noqa: BLE001 - whatever it is, it may be over the next time
                    _LOG.exception("%s could not be looked at again", key)
        self._task = None
