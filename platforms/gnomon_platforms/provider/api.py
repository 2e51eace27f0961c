"""The provider's REST interface. Calls block; a refusal becomes an error with the provider's message.

401 ▶ 502 `provider_credentials`      no answer ▶ 503 `provider_unreachable`
400, 404, 409, … ▶ the same status, `provider_refused`      5xx ▶ 502 `provider_failed`

The logs of functions are the provider's too: `/system/logs`, one JSON object a line, read when somebody asks. `ProviderOptions`
is the operator's configuration of a foreign provider.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, TypeAlias
from urllib.parse import quote, urlencode

import urllib3

from gnomon_core.clock import parse_time_s, rfc3339
from gnomon_core.errors import GnomonError, cause_of
from gnomon_core.functions import FunctionKey
from gnomon_core.interfaces import LogLine, LogQuery

if TYPE_CHECKING:
    import aiohttp


Document: TypeAlias = dict[str, Any]
TIMEOUT_S = 30.0
CONNECT_S = 3.0
CONNECTIONS = 16
SHOWN_CHARACTERS = 300
CREDENTIALS = "provider_credentials"


class ProviderApi:
    """Client of the provider's REST interface. Thread-safe."""

    def __init__(self, options: ProviderOptions) -> None:
        self.url = options.url
        self.headers: Mapping[str, str] = {}
        if options.user:
            self.headers = urllib3.make_headers(basic_auth=f"{options.user}:{options.password}")
        self._pool = urllib3.PoolManager(maxsize=CONNECTIONS, block=False)

    def close(self) -> None:
        """Close the connections."""
        self._pool.clear()

    def call(
        self, method: str, path: str, document: Document | None = None, *, query: Mapping[str, str] | None = None, operation: str
    ) -> Any:
        """Call the provider and return its JSON document, None for an empty body; `operation` names it in messages.

        Raises:
            GnomonError: as the module says.

        """
        url = self.url + path + (f"?{urlencode(query)}" if query else "")
        headers = {**self.headers, "Content-Type": "application/json"} if document is not None else dict(self.headers)
        body = None if document is None else json.dumps(document).encode()
        timeout = urllib3.Timeout(connect=CONNECT_S, read=TIMEOUT_S)
        try:
            answer = self._pool.request(method, url, body=body, headers=headers, timeout=timeout, retries=False, redirect=False)
        except urllib3.exceptions.HTTPError as error:
            raise unreachable(self.url, cause_of(error)) from None
        if not HTTPStatus.OK <= answer.status < HTTPStatus.MULTIPLE_CHOICES:
            raise refusal(answer.status, answer.data, operation)
        try:
            return json.loads(answer.data) if answer.data.strip() else None
        except ValueError:
            raise GnomonError(
                502, "provider_failed", f"The provider answered no JSON when asked to {operation}.", f"Is {self.url} a provider?"
            ) from None

    def status(self, key: FunctionKey) -> Document | None:
        """Present status of a function; None if the name is unknown."""
        try:
            document = self.call("GET", f"/system/function/{quote(key.name)}", query=_where(key), operation=f"describe {key}")
        except GnomonError as error:
            if error.status == HTTPStatus.NOT_FOUND:
                return None
            raise
        return document if isinstance(document, dict) else None

    def scale(self, key: FunctionKey, replicas: int) -> None:
        """Request a number of replicas. Some providers read the namespace from the query, others from the body."""
        document = {"serviceName": key.name, "replicas": replicas, "namespace": key.namespace}
        path = f"/system/scale-function/{quote(key.name)}"
        self.call("POST", path, document, query={"namespace": key.namespace}, operation=f"scale {key} to {replicas}")


def _where(key: FunctionKey) -> dict[str, str]:
    return {"namespace": key.namespace, "usage": "false"}


def unreachable(url: str, why: str) -> GnomonError:
    """503: the provider gives no answer."""
    return GnomonError(
        503,
        "provider_unreachable",
        f"The provider at {url} cannot be reached: {why}.",
        "Start it, or name another one with --provider-url.",
        retry_after_s=1.0,
    )


def refusal(status: int, body: bytes, operation: str) -> GnomonError:
    """The provider's error response as an error for our users."""
    if status == HTTPStatus.UNAUTHORIZED:
        return GnomonError(
            502,
            CREDENTIALS,
            f"The provider does not take our credentials (when asked to {operation}).",
            "Name the folder of its basic-auth-user and basic-auth-password with --provider-credentials.",
        )
    message, hint = _error_message(body)
    if status < HTTPStatus.INTERNAL_SERVER_ERROR:
        return GnomonError(status, "provider_refused", f"The provider refused to {operation}: {message or status}", hint)
    return GnomonError(
        502, "provider_failed", f"The provider failed to {operation}: {status} {message}".strip(), hint or "See its log."
    )


def _error_message(body: bytes) -> tuple[str, str]:
    """The message of an error response, and its hint if the provider is a Gnomon gateway."""
    text = " ".join(body.decode("utf-8", "replace").split())
    try:
        error = json.loads(body)["error"]
        return str(error["message"])[:SHOWN_CHARACTERS], str(error.get("hint", ""))[:SHOWN_CHARACTERS]
    except (ValueError, KeyError, TypeError):
        return text[:SHOWN_CHARACTERS], ""


PATIENCE_S = 10.0
MAX_LINE_BYTES = 1 << 20


class ProviderLogs:
    """The provider's logs."""

    def __init__(self, api: ProviderApi) -> None:
        self._api = api

    async def lines(self, query: LogQuery) -> list[LogLine]:
        """The existing lines, as the provider sends them.

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
        """The existing lines, and each new one."""
        return ProviderFollower(self._api, query, follow=follow)


class ProviderFollower:
    """Log lines as the provider sends them. The caller closes it."""

    def __init__(self, api: ProviderApi, query: LogQuery, *, follow: bool) -> None:
        self.trouble: GnomonError | None = None
        """The error that broke the log stream off; None if it ended normally."""
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
                    f"{self._api.url}/system/logs", params=_log_parameters(self._query, follow=self._follow), timeout=timeout
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
        at = parse_time_s(str(document["timestamp"]))
        return LogLine(function, str(document.get("instance", "")), at, str(document["text"]))
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def _log_parameters(query: LogQuery, *, follow: bool) -> dict[str, str]:
    """The parameters of the provider's /system/logs for a query."""
    parameters = {"name": query.function.name, "namespace": query.function.namespace, "follow": "true" if follow else "false"}
    parameters["tail"] = str(query.tail if query.tail > 0 else -1)
    if query.instance:
        parameters["instance"] = query.instance
    if query.since is not None:
        parameters["since"] = rfc3339(query.since)
    return parameters


DEFAULT_IN_FLIGHT = 4
"""Requests in flight per replica: the threads of the server in OpenFaaS's Python templates."""
POLL_S = 2.0
START_TIMEOUT_S = 300.0


@dataclass(frozen=True, slots=True)
class ProviderOptions:
    """The operator's options. `url` has no trailing slash. Without `user`, no credentials are sent.

    `in_flight` is how many requests a replica gets at once where its function does not say that, `poll_s` the time between two
    looks at what the provider has. `batch_token` is the secret that Bodies there take batches by.
    """

    url: str
    user: str = ""
    password: str = ""
    in_flight: int = DEFAULT_IN_FLIGHT
    batch_token: str = ""
    poll_s: float = POLL_S
    start_timeout_s: float = START_TIMEOUT_S
