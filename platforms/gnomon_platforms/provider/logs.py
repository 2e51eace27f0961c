"""What functions wrote, as the provider keeps it: its `/system/logs`, one JSON object a line, read when somebody asks."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

from gnomon_core.clock import moment_s, rfc3339
from gnomon_core.errors import GnomonError
from gnomon_core.functions import FunctionKey
from gnomon_core.interfaces import LogLine, LogQuery
from gnomon_platforms.provider.api import ProviderApi, refusal, unreachable

if TYPE_CHECKING:
    import aiohttp

PATIENCE_S = 10.0
MAX_LINE_BYTES = 1 << 20


class ProviderLogs:
    """The provider's logs."""

    def __init__(self, api: ProviderApi) -> None:
        self._api = api

    async def lines(self, query: LogQuery) -> list[LogLine]:
        """The lines there are, as they come.

        Raises:
            GnomonError: 503 `provider_unreachable`, and what the provider refuses.

        """
        follower = self.follow(query, follow=False)
        found = []
        try:
            while (line := await follower.next_line()) is not None:
                found.append(line)
        finally:
            follower.close()
        if follower.trouble is not None:
            raise follower.trouble
        return found

    def follow(self, query: LogQuery, *, follow: bool = True) -> ProviderFollower:
        """The lines there are, and each new one."""
        return ProviderFollower(self._api, query, follow=follow)


class ProviderFollower:
    """Lines as the provider sends them. Whoever has it closes it."""

    def __init__(self, api: ProviderApi, query: LogQuery, *, follow: bool) -> None:
        self.trouble: GnomonError | None = None
        """Why the lines ended before their end."""
        self._api, self._query, self._follow = api, query, follow
        self._lines: asyncio.Queue[LogLine | None] = asyncio.Queue(100)
        self._task = asyncio.get_running_loop().create_task(self._read())

    async def next_line(self) -> LogLine | None:
        """The next line; None at the end."""
        return await self._lines.get()

    def close(self) -> None:
        """Read no further."""
        self._task.cancel()

    async def _read(self) -> None:
        import aiohttp  # noqa: PLC0415 - only who has instances elsewhere needs it

        timeout = aiohttp.ClientTimeout(total=None if self._follow else PATIENCE_S, sock_connect=PATIENCE_S)
        try:
            async with (
                aiohttp.ClientSession(headers=self._api.headers, trust_env=False, read_bufsize=MAX_LINE_BYTES) as session,
                session.get(
                    f"{self._api.url}/system/logs", params=_asked(self._query, follow=self._follow), timeout=timeout
                ) as answer,
            ):
                if answer.status != 200:  # noqa: PLR2004 - HTTP's own
                    self.trouble = refusal(answer.status, await answer.read(), "read a function's logs")
                else:
                    await self._take(answer)
        except (OSError, ValueError, TimeoutError, aiohttp.ClientError) as error:
            self.trouble = unreachable(self._api.url, str(error) or type(error).__name__)
        await self._lines.put(None)

    async def _take(self, answer: aiohttp.ClientResponse) -> None:
        async for text in answer.content:
            line = _read(self._query.function, text)
            if line is not None:
                await self._lines.put(line)


def _read(function: FunctionKey, text: bytes) -> LogLine | None:
    try:
        document: Any = json.loads(text)
        at = moment_s(str(document["timestamp"]))
        return LogLine(function, str(document.get("instance", "")), at, str(document["text"]))
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def _asked(query: LogQuery, *, follow: bool) -> dict[str, str]:
    """As the provider is asked."""
    asked = {"name": query.function.name, "namespace": query.function.namespace, "follow": "true" if follow else "false"}
    asked["tail"] = str(query.tail if query.tail > 0 else -1)
    if query.instance:
        asked["instance"] = query.instance
    if query.since is not None:
        asked["since"] = rfc3339(query.since)
    return asked
