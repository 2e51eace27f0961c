"""The stored functions that are not served, and the attempts to serve them.

    start ▶ one attempt per stored function ─┬─ served ▶ forgotten
                                             ├─ failed ▶ the reason in its log ▶ another attempt after five seconds or more
                                             └─ slow ──▶ the gateway starts without it; the attempt continues
    deployed, but its model takes long to come ▶ attempts, as for a stored function

Attempts run side by side, so that a function whose model store hangs delays no other function, and the start of the gateway by
`START_WAIT_S` at most. Attempts block worker threads: only some run at once, so that threads are left for everything else.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator
from functools import partial

from gnomon_core.errors import GnomonError
from gnomon_core.functions import FunctionKey, parse_key
from gnomon_core.interfaces import StoredFunction
from gnomon_gateway.functions.service import FunctionDetail, FunctionStatus
from gnomon_gateway.metrics import PairMetrics

START_WAIT_S = 5.0
"""The longest time that the gateway's start waits for functions. Usually all of them are served in milliseconds."""
MOST_ATTEMPTS = 16
"""Concurrent attempts: half of the gateway's worker threads."""
RETRY_RESTORE_S = 5.0
REST = 10.0
"""After a failed attempt, the next one begins no sooner than so many times its duration: a model whose capture fails after half
a minute must not keep a core busy for ever."""

_SLOW = "its image, its secrets or its model cannot be read yet; no error is reported so far"
_LOG = logging.getLogger("gnomon.functions")


class PendingRestore:
    """The stored functions that are not served.

    `serve` serves one of them as it was stored at the start, `retry` as it is stored now. Both add the function again, with the
    reason, if they fail.
    """

    def __init__(
        self,
        serve: Callable[[StoredFunction], Awaitable[None]],
        retry: Callable[[FunctionKey], Awaitable[None]],
        log: Callable[[FunctionKey, str, str], None],
    ) -> None:
        self._serve, self._retry, self._log = serve, retry, log
        self._stored: dict[FunctionKey, StoredFunction] = {}
        self._reasons: dict[FunctionKey, str] = {}
        self._attempts: dict[FunctionKey, asyncio.Task[None]] = {}
        self._turns = asyncio.Semaphore(MOST_ATTEMPTS)
        self._not_before_s: dict[FunctionKey, float] = {}
        self._retries: asyncio.Task[None] | None = None

    def __contains__(self, key: FunctionKey) -> bool:
        return key in self._stored

    def __iter__(self) -> Iterator[FunctionKey]:
        return iter(self._stored)

    async def start(self, functions: Iterable[StoredFunction]) -> None:
        """Serve these functions. Returns when every attempt has ended, or after `START_WAIT_S`."""
        for stored in functions:
            self._stored[stored.spec.key] = stored
            self._begin(stored.spec.key, partial(self._serve, stored))
        if self._attempts:
            await asyncio.wait(self._attempts.values(), timeout=START_WAIT_S)
        for key, stored in list(self._stored.items()):
            if key not in self._reasons:
                self.add(stored, _SLOW)

    def add(self, stored: StoredFunction, reason: str) -> None:
        """Add a function that cannot be served. The same reason is logged once."""
        key = stored.spec.key
        self._stored[key] = stored
        if self._reasons.get(key) != reason:
            self._reasons[key] = reason
            self._log(key, "", f"gnomon: {key} is not served: {reason}")
        if self._retries is None:
            self._retries = asyncio.get_running_loop().create_task(self._run())

    def forget(self, key: FunctionKey) -> None:
        """Forget a function that is served now, or was removed."""
        self._stored.pop(key, None)
        self._reasons.pop(key, None)
        self._not_before_s.pop(key, None)

    def interrupt(self, key: FunctionKey) -> None:
        """Cancel the attempt to serve this function, for a command that changes it: the attempt may hang."""
        if key in self._stored and (attempt := self._attempts.get(key)) is not None:
            attempt.cancel()

    def get(self, key: FunctionKey) -> StoredFunction | None:
        """The stored function; None if it is served or unknown."""
        return self._stored.get(key)

    def status(self, key: FunctionKey) -> FunctionStatus | None:
        stored = self._stored.get(key)
        if stored is None:
            return None
        reason = self._reasons.get(key)
        problem = None if reason is None else GnomonError(503, "function_not_served", f"The function is not served: {reason}")
        return FunctionStatus(stored.spec, stored.created_at, problem=problem)

    def detail(self, key: FunctionKey) -> FunctionDetail | None:
        status = self.status(key)
        return None if status is None else FunctionDetail(status, status.spec.settings.scheduler or "", (), {}, PairMetrics())

    def refusal(self, name: str) -> GnomonError | None:
        """The error for calls of `name` or `name.namespace`; None if the function is served or unknown."""
        if parse_key(name) not in self._stored:
            return None
        # The reason may name a secret, which callers of the function need not know.
        text = f"The function {name[:200]!r} cannot be served now."
        return GnomonError(
            503,
            "function_not_served",
            text,
            "The function's log says why; the gateway tries again by itself.",
            retry_after_s=RETRY_RESTORE_S,
        )

    async def stop(self) -> None:
        """End all attempts."""
        self._stored.clear()
        tasks = [*self._attempts.values(), *([] if self._retries is None else [self._retries])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _begin(self, key: FunctionKey, work: Callable[[], Awaitable[None]]) -> None:
        attempt = self._attempts[key] = asyncio.get_running_loop().create_task(self._attempt(key, work))
        attempt.add_done_callback(lambda _: self._attempts.pop(key, None))

    async def _attempt(self, key: FunctionKey, work: Callable[[], Awaitable[None]]) -> None:
        now_s = asyncio.get_running_loop().time
        async with self._turns:
            begun_s = now_s()
            try:
                await work()
            except Exception:  # noqa: BLE001 - the failure may be temporary
                _LOG.exception("%s cannot be served yet: internal error during the attempt", key)
            if key in self._stored:
                self._not_before_s[key] = now_s() + REST * (now_s() - begun_s)

    async def _run(self) -> None:
        while self._stored:
            await asyncio.sleep(RETRY_RESTORE_S)
            now_s = asyncio.get_running_loop().time()
            for key in self._stored.keys() - self._attempts.keys():
                if self._not_before_s.get(key, now_s) <= now_s:
                    self._begin(key, partial(self._retry, key))
        self._retries = None
