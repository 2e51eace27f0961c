"""What functions wrote, as the provider keeps it: its `/system/logs`, one JSON object a line, read when somebody asks."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from gnomon_core.errors import GnomonError
from gnomon_core.functions import FunctionKey
from gnomon_platforms.provider.api import ProviderApi, refusal, unreachable

if TYPE_CHECKING:
    import aiohttp

PATIENCE_S = 10.0
MAX_LINE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class ProviderLine:
    """A line, `at` in seconds since 1970."""

    instance: str
    at: float
    text: str


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which lines of a function: `instance` "" is those of all replicas, `tail` 0 all there are."""

    key: FunctionKey
    instance: str = ""
    since: float | None = None
    tail: int = 0

    def query(self, *, follow: bool) -> dict[str, str]:
        """As the provider is asked."""
        asked = {"name": self.key.name, "namespace": self.key.namespace, "follow": "true" if follow else "false"}
        asked["tail"] = str(self.tail if self.tail > 0 else -1)
        if self.instance:
            asked["instance"] = self.instance
        if self.since is not None:
            asked["since"] = datetime.fromtimestamp(self.since, UTC).isoformat().replace("+00:00", "Z")
        return asked


class ProviderLogs:
    """The provider's logs."""

    def __init__(self, api: ProviderApi) -> None:
        self._api = api

    async def lines(self, wanted: Wanted) -> list[ProviderLine]:
        """The lines there are, as they come.

        Raises:
            GnomonError: 503 `provider_unreachable`, and what the provider refuses.

        """
        follower = self.follow(wanted, follow=False)
        found = []
        try:
            while (line := await follower.next_line()) is not None:
                found.append(line)
        finally:
            follower.close()
        if follower.trouble is not None:
            raise follower.trouble
        return found

    def follow(self, wanted: Wanted, *, follow: bool = True) -> ProviderFollower:
        """The lines there are, and each new one."""
        return ProviderFollower(self._api, wanted.query(follow=follow), follow=follow)


class ProviderFollower:
    """Lines as the provider sends them. Whoever has it closes it."""

    def __init__(self, api: ProviderApi, query: Mapping[str, str], *, follow: bool) -> None:
        self.trouble: GnomonError | None = None
        """Why the lines ended before their end."""
        self._api, self._query, self._follow = api, query, follow
        self._lines: asyncio.Queue[ProviderLine | None] = asyncio.Queue(100)
        self._task = asyncio.get_running_loop().create_task(self._read())

    async def next_line(self) -> ProviderLine | None:
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
                session.get(f"{self._api.url}/system/logs", params=self._query, timeout=timeout) as answer,
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
            line = _read(text)
            if line is not None:
                await self._lines.put(line)


def _read(text: bytes) -> ProviderLine | None:
    try:
        document: Any = json.loads(text)
        at = datetime.fromisoformat(str(document["timestamp"])).timestamp()
        return ProviderLine(str(document.get("instance", "")), at, str(document["text"]))
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
